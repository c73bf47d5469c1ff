package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

// DevicesCommand acts on many devices at once.
type DevicesCommand struct {
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
