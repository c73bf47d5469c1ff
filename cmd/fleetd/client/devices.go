package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

// DevicesCommand acts on many devices at once.
type DevicesCommand struct {
	Call    devicesCall    `cmd:"" help:"Call a tool of devices."`
	Tag     devicesTag     `cmd:"" help:"Add tags to devices."`
	Untag   devicesUntag   `cmd:"" help:"Remove tags from devices."`
	Hold    devicesHold    `cmd:"" help:"Put devices on hold: nobody else can act on them."`
	Release devicesRelease `cmd:"" help:"End the holds on devices."`
	Retire  devicesRetire  `cmd:"" help:"Retire devices for good."`
}

// bulkFlags pick the devices, and allow a dry run or a confirmation.
type bulkFlags struct {
	clientFlags
	Query   string   `help:"Filter that picks the devices, for example: tag:lab -hold. For every device in service: --query ''." xor:"which" required:"" placeholder:"FILTER"`
	ID      []string `help:"Ids of devices; MAC addresses in any form, separated by commas or in several flags." xor:"which" required:"" placeholder:"ID"`
	DryRun  bool     `help:"Only print what would change."`
	Confirm int      `help:"Number of changes from a dry run; if the number differs now, nothing changes." placeholder:"N"`
}

func (c *bulkFlags) act(ctx context.Context, body BulkInputBody) error {
	if len(c.ID) > 0 {
		body.Devices = &c.ID
	} else {
		body.Q = &c.Query
	}
	body.DryRun = &c.DryRun
	if c.Confirm > 0 {
		body.Confirm = new(int64(c.Confirm))
	}
	answer, err := c.do(ctx, http.MethodPost, "/devices/bulk", body)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var done Bulk
	if err := json.Unmarshal(answer, &done); err != nil {
		return err
	}
	format := "%s: %d of %d devices\n"
	if done.DryRun {
		format = "%s: would change %d of %d devices\n"
	}
	fmt.Printf(format, done.Act, done.Changed, done.Matched)
	for _, s := range done.Skipped {
		fmt.Printf("  left out: %d %s\n", s.Count, terminal.Printable(s.Reason))
	}
	return nil
}

type devicesCall struct {
	bulkFlags
	Tool        string        `arg:"" help:"Name of the tool: self.audio_speaker.set_volume"`
	Arguments   string        `arg:"" optional:"" help:"Arguments as a JSON object." default:"{}"`
	OfflineWait time.Duration `help:"Call devices that are offline when they are back, within this time: 24h."`
	Interrupt   bool          `help:"Do not wait for the end of conversations."`
	MaxInFlight int64         `help:"Maximum number of calls in flight at once. Default: 64." placeholder:"N"`
	Timeout     time.Duration `help:"How long to wait for each answer. Default: depends on the tool."`
	Purpose     string        `help:"Reason, for those who approve the call." placeholder:"TEXT"`
}

// body returns the request.
func (c *devicesCall) body() (body CreateFanOutInputBody, err error) {
	body = CreateFanOutInputBody{Tool: c.Tool, Arguments: new(json.RawMessage(c.Arguments)), DryRun: &c.DryRun,
		Interrupt: &c.Interrupt, MaxInFlight: &c.MaxInFlight}
	if !json.Valid([]byte(c.Arguments)) || !strings.HasPrefix(strings.TrimSpace(c.Arguments), "{") {
		return body, terminal.UsageError{Err: fmt.Errorf(
			"the arguments %q are not a JSON object; write for example '{\"volume\":50}'", c.Arguments)}
	}
	if len(c.ID) > 0 {
		body.Devices = &c.ID
	} else {
		body.Q = &c.Query
	}
	if c.Confirm > 0 {
		body.Confirm = new(int64(c.Confirm))
	}
	if c.OfflineWait > 0 {
		body.Offline, body.OfflineWaitMs = new("wait"), new(c.OfflineWait.Milliseconds())
	}
	if c.Timeout > 0 {
		body.TimeoutMs = new(c.Timeout.Milliseconds())
	}
	if c.Purpose != "" {
		body.Purpose = &c.Purpose
	}
	return body, nil
}

// Run prints what a dry run found, or the bulk call; it does not wait for the answers.
func (c *devicesCall) Run(ctx context.Context) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	answer, err := c.do(ctx, http.MethodPost, "/fanouts", body)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	if c.DryRun {
		var p Preview
		if err := json.Unmarshal(answer, &p); err != nil {
			return err
		}
		fmt.Printf("%s: would call %d of %d devices, %d of them offline\n", terminal.Printable(c.Tool), p.Targets, p.Matched,
			p.Offline)
		for _, s := range p.Skipped {
			fmt.Printf("  left out: %d %s\n", s.Count, terminal.Printable(s.Reason))
		}
		if p.NeedApproval > 0 {
			fmt.Printf("  %d need an approval; all calls wait for it\n", p.NeedApproval)
		}
		if p.NeedsConfirm {
			fmt.Printf("  repeat with --confirm %d to make the calls\n", p.Targets)
		}
		return nil
	}
	var made FanOut
	if err := json.Unmarshal(answer, &made); err != nil {
		return err
	}
	fmt.Printf("%s: bulk call %s of %d devices, %s; its calls: fleetd call list --fanout %s\n", terminal.Printable(made.Tool),
		made.ID, made.Targets, terminal.Printable(made.State), made.ID)
	return nil
}

type devicesTag struct {
	bulkFlags
	Tags []string `arg:"" help:"Tags to add; others stay."`
}

func (c *devicesTag) Run(ctx context.Context) error {
	return c.act(ctx, BulkInputBody{Act: "tag", Tags: &c.Tags})
}

type devicesUntag struct {
	bulkFlags
	Tags []string `arg:"" help:"Tags to remove; others stay."`
}

func (c *devicesUntag) Run(ctx context.Context) error {
	return c.act(ctx, BulkInputBody{Act: "untag", Tags: &c.Tags})
}

type devicesHold struct {
	bulkFlags
	Reason string        `arg:"" help:"Reason."`
	For    time.Duration `help:"End the holds after this time."`
}

func (c *devicesHold) Run(ctx context.Context) error {
	body := BulkInputBody{Act: "hold", Reason: &c.Reason}
	if c.For > 0 {
		body.Until = new(time.Now().Add(c.For).UTC())
	}
	return c.act(ctx, body)
}

type devicesRelease struct{ bulkFlags }

func (c *devicesRelease) Run(ctx context.Context) error {
	return c.act(ctx, BulkInputBody{Act: "release"})
}

type devicesRetire struct{ bulkFlags }

func (c *devicesRetire) Run(ctx context.Context) error {
	if c.Confirm == 0 && !c.DryRun {
		return terminal.UsageError{Err: errors.New(
			"this cannot be undone; count the devices with --dry-run, then repeat with --confirm and that number")}
	}
	return c.act(ctx, BulkInputBody{Act: "retire"})
}
