package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"fleetd/cmd/fleetd/terminal"

	"fleetd/fleet/campaign"
)

type campaignShow struct {
	campaignFlags
	Watch bool          `help:"Follow the campaign until it ends; exit with an error unless it completed."`
	Every time.Duration `help:"Polling interval." default:"2s" hidden:""`
}

func (c *campaignShow) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodGet, campaignPath(c.ID, ""), nil)
	if err != nil || !c.Watch {
		return printCampaign(&c.clientFlags, answer, err)
	}
	return c.watch(ctx, answer)
}

// watch follows a campaign. On a terminal it updates one line; for a script it
// prints the campaign each time that it changes.
func (c *campaignShow) watch(ctx context.Context, answer json.RawMessage) error {
	var shown, stage string
	for {
		var v Campaign
		if err := json.Unmarshal(answer, &v); err != nil {
			return err
		}
		line, now := v.line()
		switch {
		case line == shown:
		case !c.human():
			fmt.Println(string(answer))
		case stage != "" && stage != now:
			fmt.Print("\n" + line)
		default:
			fmt.Print("\r\033[K" + line)
		}
		shown, stage = line, now
		if v.State.Final() {
			return c.ended(v, answer)
		}
		var err error
		if answer, err = c.next(ctx); err != nil {
			return err
		}
	}
}

// watchTimeout is how long watch tries to reach a server that is restarting.
const watchTimeout = 2 * time.Minute

// next waits, then reads the campaign again. It retries while the server cannot
// be reached.
func (c *campaignShow) next(ctx context.Context) (json.RawMessage, error) {
	for until := time.Now().Add(watchTimeout); ; {
		select {
		case <-ctx.Done():
			return nil, errors.New("stopped following before the campaign ended")
		case <-time.After(c.Every):
		}
		answer, err := c.do(ctx, http.MethodGet, campaignPath(c.ID, ""), nil)
		var unreachable *url.Error
		if err == nil || !errors.As(err, &unreachable) || time.Now().After(until) {
			return answer, err
		}
	}
}

// line summarizes a campaign. A new stage begins on a new line.
func (v Campaign) line() (line, stage string) {
	succeeded, failed, done := tally(v.Counts)
	stage = stateText(v.State, v.PauseReason)
	if int(v.Wave) < len(v.Waves) && !v.State.Final() {
		stage += fmt.Sprintf(", wave %d of %d", v.Wave+1, len(v.Waves))
	}
	if v.Reason != "" {
		stage += ": " + terminal.Printable(v.Reason)
	}
	return fmt.Sprintf("%s; %d of %d devices done, %d succeeded, %d failed", stage, done, v.Targets, succeeded, failed),
		stage
}

func (c *campaignShow) ended(v Campaign, answer json.RawMessage) error {
	if c.human() {
		fmt.Print("\n\n")
		if err := printCampaign(&c.clientFlags, answer, nil); err != nil {
			return err
		}
	}
	if v.State != campaign.Completed {
		return fmt.Errorf("the campaign %s ended %s", v.ID, v.State)
	}
	return nil
}
