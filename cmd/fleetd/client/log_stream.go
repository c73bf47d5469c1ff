package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

type LogStreamCommand struct {
	List    logStreamList   `cmd:"" default:"withargs" help:"List log streams (the default)."`
	Create  logStreamCreate `cmd:"" help:"Send the sealed record to a webhook, a syslog server or an OpenTelemetry collector."`
	Show    logStreamShow   `cmd:"" help:"Show a log stream and its latest deliveries."`
	Test    logStreamTest   `cmd:"" help:"Send a test entry now. The exit code is 1 if it was not delivered."`
	Replay  logStreamReplay `cmd:"" help:"Send entries again from a time or number, or skip to it."`
	Enable  logStreamEnable `cmd:"" help:"Enable a log stream; it goes on where it was."`
	Disable logStreamOff    `cmd:"" help:"Disable a log stream."`
	Delete  logStreamDelete `cmd:"" help:"Delete a log stream."`
}

const (
	logStreamHeading   = "ID NAME KIND ADDRESS STATE NEXT BEHIND"
	logDeliveryHeading = "AT OUTCOME ENTRIES FROM TO REASON"
)

func (s LogStream) row() []string {
	state := "on"
	switch {
	case !s.Enabled:
		state = "off"
	case s.Failures > 0:
		state = fmt.Sprintf("failing (%d)", s.Failures)
	}
	return []string{s.ID, s.Name, string(s.Kind), s.URL, state, strconv.FormatInt(s.NextEntry, 10),
		strconv.FormatInt(s.LagEntries, 10)}
}

func (d LogDelivery) row() []string {
	outcome, reason := "delivered", ""
	if !d.Ok {
		outcome = "not delivered"
	}
	if d.Message != nil {
		reason = *d.Message
	}
	return []string{d.At.Format(time.DateTime), outcome, strconv.FormatInt(d.Entries, 10),
		strconv.FormatInt(d.FirstEntry, 10), strconv.FormatInt(d.LastEntry, 10), reason}
}

type logStreamList struct{ clientFlags }

func (c *logStreamList) Run(ctx context.Context) error {
	items, err := c.all(ctx, "/log-streams", url.Values{}, 1000)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, logStreamHeading, LogStream.row)
}

type logStreamCreate struct {
	clientFlags
	Name        string   `arg:"" help:"Name of the log stream."`
	Kind        string   `arg:"" enum:"webhook,syslog,otlp" help:"webhook, syslog or otlp."`
	Address     string   `arg:"" help:"https://… of a webhook or collector, tls://host:port of a syslog server."`
	Header      []string `help:"Further header of HTTP requests (\"Authorization: Bearer …\"); may be repeated." sep:"none"`
	CA          string   `type:"existingfile" help:"File with the certificates (PEM) that the receiver's is checked with. Default: those of fleetd's system."`
	Certificate string   `type:"existingfile" help:"File with the certificate (PEM) that fleetd shows the receiver."`
	Key         string   `type:"existingfile" help:"File with its key (PEM)."`
	EntryKind   []string `help:"Only entries of these kinds: call, late_answer, action, connection, campaign_step, firmware."`
	Action      []string `help:"Only these tools and actions; device.* matches any ending."`
	Outcome     []string `help:"Only these outcomes, such as timed_out or offline."`
	Device      []string `help:"Only these devices."`
	Batch       int      `help:"Entries of a request, at most. Default: 1 for a webhook, else 500."`
	From        string   `help:"start, now, a time (RFC 3339), or the number of an entry." default:"now"`
}

func (c *logStreamCreate) Run(ctx context.Context) error {
	body := map[string]any{"name": c.Name, "kind": c.Kind, "url": c.Address, "from": c.From,
		"filter": map[string]any{"kinds": orNone(c.EntryKind), "actions": orNone(c.Action), "outcomes": orNone(c.Outcome),
			"devices": orNone(c.Device)}}
	if len(c.Header) > 0 {
		body["headers"] = strings.Join(c.Header, "\n")
	}
	if c.Batch > 0 {
		body["batch"] = c.Batch
	}
	for name, file := range map[string]string{"ca_certificates": c.CA, "client_certificate": c.Certificate,
		"client_key": c.Key} {
		if file == "" {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return terminal.UsageError{Err: err}
		}
		body[name] = string(b)
	}
	answer, err := c.do(ctx, http.MethodPost, "/log-streams", body)
	if err != nil || !c.human() {
		return shown(&c.clientFlags, logStreamHeading, LogStream.row)(answer, err)
	}
	if err := shown(&c.clientFlags, logStreamHeading, LogStream.row)(answer, nil); err != nil {
		return err
	}
	var made struct{ Secret string }
	if err := json.Unmarshal(answer, &made); err != nil {
		return err
	}
	if made.Secret != "" {
		fmt.Printf("\nSecret that signs the requests, shown only once:\n%s\n", made.Secret)
	}
	return nil
}

// orNone returns an empty list for nil, which JSON would write as null.
func orNone(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// logStreamID names a log stream.
type logStreamID struct {
	clientFlags
	ID string `arg:"" help:"Id of the log stream."`
}

func (c *logStreamID) path(parts string) string {
	return "/log-streams/" + url.PathEscape(c.ID) + parts
}

type logStreamShow struct{ logStreamID }

func (c *logStreamShow) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodGet, c.path(""), nil)
	if err != nil || !c.human() {
		return shown(&c.clientFlags, logStreamHeading, LogStream.row)(answer, err)
	}
	if err := shown(&c.clientFlags, logStreamHeading, LogStream.row)(answer, nil); err != nil {
		return err
	}
	var s LogStreamDetail
	if err := json.Unmarshal(answer, &s); err != nil {
		return err
	}
	rows := make([][]string, len(s.Deliveries))
	for i, d := range s.Deliveries {
		rows[i] = d.row()
	}
	fmt.Println()
	return terminal.Table(logDeliveryHeading, rows)
}

type logStreamTest struct{ logStreamID }

func (c *logStreamTest) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodPost, c.path("/test"), nil)
	if err != nil {
		return err
	}
	var d LogDelivery
	if err := json.Unmarshal(answer, &d); err != nil {
		return err
	}
	if !c.human() {
		err = terminal.JSON(answer)
	} else if d.Ok {
		fmt.Println("The test entry was delivered.")
	}
	if err == nil && !d.Ok {
		return fmt.Errorf("the test entry was not delivered: %s", d.row()[5])
	}
	return err
}

type logStreamReplay struct {
	logStreamID
	From string `arg:"" help:"start, now, a time (RFC 3339), or the number of an entry."`
}

func (c *logStreamReplay) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodPost, c.path("/replay"), map[string]string{"from": c.From})
	if err != nil || !c.human() {
		return terminalJSON(answer, err)
	}
	var next struct {
		Entry int64 `json:"next_entry"`
	}
	if err := json.Unmarshal(answer, &next); err != nil {
		return err
	}
	fmt.Printf("The log stream goes on from entry %d.\n", next.Entry)
	return nil
}

func terminalJSON(answer json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	return terminal.JSON(answer)
}

type logStreamEnable struct{ logStreamID }

func (c *logStreamEnable) Run(ctx context.Context) error { return c.set(ctx, true) }

type logStreamOff struct{ logStreamID }

func (c *logStreamOff) Run(ctx context.Context) error { return c.set(ctx, false) }

func (c *logStreamID) set(ctx context.Context, enabled bool) error {
	return shown(&c.clientFlags, logStreamHeading, LogStream.row)(c.do(ctx, http.MethodPatch, c.path(""),
		map[string]bool{"enabled": enabled}))
}

type logStreamDelete struct{ logStreamID }

func (c *logStreamDelete) Run(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, c.path(""), nil)
	return err
}
