package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"fleetd/cmd/fleetd/terminal"

	"fleetd/fleet/enrolment"
)

type SerialCommand struct {
	Load    serialLoad    `cmd:"" help:"Load a list with a serial number, a comma and its key of 64 hex digits on each line. Either all lines are loaded, or none."`
	List    serialList    `cmd:"" help:"List serial numbers and the devices that proved them."`
	Release serialRelease `cmd:"" help:"Release a serial number from its device: the next device that proves it gets it."`
	Delete  serialDelete  `cmd:"" help:"Delete a serial number and its key."`
}

type serialLoad struct {
	clientFlags
	File string `arg:"" help:"File with the list; - reads standard input."`
}

func (c *serialLoad) Run(ctx context.Context) error {
	var in io.Reader = os.Stdin
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return terminal.UsageError{Err: err}
		}
		defer file.Close()
		in = file
	}
	list, err := io.ReadAll(io.LimitReader(in, enrolment.MaxSerialFile+1))
	if err != nil {
		return err
	}
	answer, err := c.sendList(ctx, list)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var done SerialLoad
	if err := json.Unmarshal(answer, &done); err != nil {
		return err
	}
	fmt.Printf("%d serial numbers added, %d already loaded\n", done.Added, done.Unchanged)
	return nil
}

// sendList posts the list. A refusal names every bad line that the server
// reports.
func (c *serialLoad) sendList(ctx context.Context, list []byte) (json.RawMessage, error) {
	req, err := c.request(ctx, http.MethodPost, "/serials", nil)
	if err != nil {
		return nil, err
	}
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(list)), int64(len(list))
	req.Header.Set("Content-Type", "text/csv")
	resp, err := (&http.Client{Timeout: 2 * time.Minute}).Do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the server at %s (is it running? see --url): %w", c.URL, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("the answer from %s was cut off: %w", c.URL, err)
	}
	if resp.StatusCode < 400 {
		return data, nil
	}
	var p Problem
	_ = json.Unmarshal(data, &p) // if data does not list lines, the problem is reported all the same
	if p.Errors != nil {
		for _, e := range *p.Errors {
			fmt.Fprintf(os.Stderr, "%s: %s\n", terminal.Printable(e.Field), terminal.Printable(e.Message))
		}
	}
	return nil, problem(resp, data)
}

func (s Serial) row() []string {
	return []string{s.Serial, s.State, orEmpty(s.DeviceID), orEmpty(s.ConflictDeviceID),
		fmt.Sprint(s.WrongProofs), s.LoadedAt.Format(time.DateTime)}
}

// orEmpty returns the text, or "" for nil.
func orEmpty(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

const serialHeading = "SERIAL STATE DEVICE CONFLICT WRONG LOADED"

type serialList struct {
	clientFlags
	State string `help:"List only serial numbers in this state; refused: with wrong proofs." enum:",unused,bound,conflict,refused" default:""`
	Limit int    `help:"Print at most this many." default:"1000"`
}

func (c *serialList) Run(ctx context.Context) error {
	params := url.Values{}
	if c.State != "" {
		params.Set("state", c.State)
	}
	items, err := c.all(ctx, "/serials", params, c.Limit)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, serialHeading, Serial.row)
}

type serialRelease struct {
	clientFlags
	Serial string `arg:"" help:"The serial number."`
}

func (c *serialRelease) Run(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodPost, "/serials/"+url.PathEscape(c.Serial)+"/release", nil)
	return err
}

type serialDelete struct {
	clientFlags
	Serial string `arg:"" help:"The serial number."`
}

func (c *serialDelete) Run(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, "/serials/"+url.PathEscape(c.Serial), nil)
	return err
}
