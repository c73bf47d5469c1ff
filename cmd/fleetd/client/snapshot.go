package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

type SnapshotCommand struct {
	List snapshotList `cmd:"" help:"List the pictures of a device, a bulk call or a call."`
	Get  snapshotGet  `cmd:"" help:"Store a picture in a file, or write it to the standard output."`
}

type snapshotList struct {
	clientFlags
	Device string    `help:"Device, newest pictures first." placeholder:"ID" xor:"of" required:""`
	FanOut string    `name:"fanout" help:"Bulk call: of each device the newest picture." placeholder:"ID" xor:"of" required:""`
	Call   string    `help:"Call, oldest pictures first." placeholder:"ID" xor:"of" required:""`
	Kind   string    `help:"Only pictures of this kind: screen or camera." enum:",screen,camera" default:""`
	Since  time.Time `help:"Only pictures taken since this time (RFC 3339)." placeholder:"TIME"`
	Until  time.Time `help:"Only pictures taken before this time (RFC 3339)." placeholder:"TIME"`
	Limit  int       `help:"Print at most this many." default:"50"`
}

func (c *snapshotList) Run(ctx context.Context) error {
	params := url.Values{}
	for name, value := range map[string]string{"device": c.Device, "fanout": c.FanOut, "call": c.Call, "kind": c.Kind} {
		if value != "" {
			params.Set(name, value)
		}
	}
	setTime(params, "since", c.Since)
	setTime(params, "until", c.Until)
	items, err := c.all(ctx, "/snapshots", params, c.Limit)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(items)
	}
	var rows [][]string
	for _, item := range items {
		var s Snapshot
		if err := json.Unmarshal(item, &s); err != nil {
			return err
		}
		rows = append(rows, []string{s.ID, s.DeviceID, s.Kind, s.CreatedAt.Format(time.DateTime),
			fmt.Sprintf("%dx%d", s.Width, s.Height), strconv.FormatInt(s.Bytes, 10), s.Question})
	}
	return terminal.Table("ID DEVICE KIND TAKEN SIZE BYTES QUESTION", rows)
}

type snapshotGet struct {
	Server
	ID  string `arg:"" help:"Id of the picture."`
	Out string `short:"o" help:"File to write. Default: the standard output." placeholder:"FILE"`
}

func (c *snapshotGet) Run(ctx context.Context) error {
	if c.Out == "" && terminal.Interactive() {
		return terminal.UsageError{Err: fmt.Errorf("a picture would fill the terminal; name a file with --out, or use a pipe")}
	}
	body, err := c.open(ctx, "/snapshots/"+url.PathEscape(c.ID))
	if err != nil {
		return err
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("the answer from %s was cut off: %w", c.URL, err)
	}
	if c.Out != "" {
		return os.WriteFile(c.Out, data, 0o644)
	}
	_, err = os.Stdout.Write(data)
	return err
}
