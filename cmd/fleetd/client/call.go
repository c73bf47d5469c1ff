package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

type CallCommand struct {
	List   callList   `cmd:"" help:"List calls, newest first."`
	Cancel callCancel `cmd:"" help:"Cancel a call that waits for its device or for the end of a conversation."`
}

const callHeading = "ID DEVICE TOOL ARGUMENTS MADE-BY STATE CREATED WAITS-UNTIL ERROR"

func (c Call) row() []string {
	arguments, _ := json.Marshal(c.Arguments) // cannot fail: it was JSON
	until, why := "", ""
	if c.State == "pending_device" && c.WaitUntil != nil {
		until = c.WaitUntil.Format(time.DateTime)
	}
	if c.Error != nil {
		why = c.Error.Code
	}
	return []string{c.ID, c.DeviceID, c.Tool, string(arguments), c.Actor.Name, c.State, c.CreatedAt.Format(time.DateTime),
		until, why}
}

type callList struct {
	clientFlags
	Device string `help:"List only calls of this device."`
	Tool   string `help:"List only calls of this tool."`
	State  string `help:"List only calls in these states, separated by commas; pending_device: waiting for the device."`
	Fanout string `help:"List only calls of this bulk call." placeholder:"ID"`
	Digest string `help:"List only calls with this digest in their arguments; see fleetd redaction digest."`
	Limit  int    `help:"Print at most this many." default:"100"`
}

func (c *callList) Run(ctx context.Context) error {
	params := url.Values{}
	for name, v := range map[string]string{"device": c.Device, "tool": c.Tool, "state": c.State, "digest": c.Digest,
		"fanout": c.Fanout} {
		if v != "" {
			params.Set(name, v)
		}
	}
	items, err := c.all(ctx, "/calls", params, c.Limit)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, callHeading, Call.row)
}

type callCancel struct {
	clientFlags
	ID string `arg:"" help:"Id of the call."`
}

func (c *callCancel) Run(ctx context.Context) error {
	return shown(&c.clientFlags, callHeading, Call.row)(c.do(ctx, http.MethodPost,
		"/calls/"+url.PathEscape(c.ID)+"/cancel", nil))
}
