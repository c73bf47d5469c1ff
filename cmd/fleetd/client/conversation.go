package client

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// ConversationsCommand lists conversations of devices with voice servers.
type ConversationsCommand struct {
	clientFlags
	Device   string `help:"List only conversations of this device."`
	Upstream string `help:"List only conversations with this voice server, by its name."`
	End      string `help:"List only conversations with this ending (a code), open ones, or failed ones."`
	Since    string `help:"List only conversations that began at or after this time: 2026-08-01T00:00:00Z."`
	Until    string `help:"List only conversations that began before this time."`
	Limit    int    `help:"Print at most this many." default:"100"`
}

const conversationHeading = "ID DEVICE UPSTREAM BEGAN SECONDS ENDED HELLO-MS CALLS RECEIVED LOST JITTER-MS"

func (c Conversation) row() []string {
	seconds, ended := "", "open"
	if c.DurationMs != nil {
		seconds = strconv.FormatInt(*c.DurationMs/1000, 10)
	}
	if c.Ended != nil {
		ended = *c.Ended
	}
	return []string{c.ID, c.DeviceID, c.Upstream, c.BeginAt.Format(time.DateTime), seconds, ended,
		strconv.FormatInt(c.HelloMs, 10), strconv.FormatInt(c.Calls, 10), strconv.FormatInt(c.Audio.Received, 10),
		strconv.FormatInt(c.Audio.Lost, 10), fmt.Sprintf("%.1f", c.Audio.JitterMs)}
}

// Run prints the list.
func (c *ConversationsCommand) Run(ctx context.Context) error {
	params := url.Values{}
	for name, v := range map[string]string{"device": c.Device, "upstream": c.Upstream, "end": c.End, "since": c.Since,
		"until": c.Until} {
		if v != "" {
			params.Set(name, v)
		}
	}
	items, err := c.all(ctx, "/conversations", params, c.Limit)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, conversationHeading, Conversation.row)
}
