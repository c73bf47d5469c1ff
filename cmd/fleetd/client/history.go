package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

type HistoryCommand struct {
	List     historyList     `cmd:"" help:"List the devices of a past moment."`
	Count    historyCount    `cmd:"" help:"Count the devices of a past moment."`
	Diff     historyDiff     `cmd:"" help:"List the devices that differ between two moments."`
	Adoption historyAdoption `cmd:"" help:"Show how many devices ran which version over time."`
	Device   historyDevice   `cmd:"" help:"List what a device was, newest first."`
	Begin    historyBegin    `cmd:"" help:"Show how far the history goes back."`
}

const pastHeading = "ID NAME BOARD VERSION PRESENCE HOLD TAGS SINCE"

func (d PastDevice) row() []string {
	hold, presence := "", ""
	if d.Hold != nil {
		hold = d.Hold.Reason
	}
	if d.Presence != nil {
		presence = *d.Presence
	}
	return []string{d.ID, d.Name, d.Board, d.Version, presence, hold, strings.Join(d.Tags, ","),
		d.Since.Format(time.DateTime)}
}

// setTime adds a time to the parameters of a request, unless it is zero.
func setTime(params url.Values, name string, at time.Time) {
	if !at.IsZero() {
		params.Set(name, at.UTC().Format(time.RFC3339Nano))
	}
}

// historyMoment are the flags of a question about a moment.
type historyMoment struct {
	clientFlags
	AsOf  time.Time `help:"The moment (RFC 3339). Default: now." placeholder:"TIME"`
	Query string    `short:"q" help:"Filter of the devices at that moment. Default: all devices in service then."`
}

func (c *historyMoment) params() url.Values {
	params := url.Values{"q": {c.Query}}
	setTime(params, "as_of", c.AsOf)
	return params
}

type historyList struct {
	historyMoment
	Limit int `help:"Print at most this many." default:"1000"`
}

func (c *historyList) Run(ctx context.Context) error {
	items, err := c.all(ctx, "/history/devices", c.params(), c.Limit)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, pastHeading, PastDevice.row)
}

// ask prints the answer to a request: as JSON, or as a table that rows makes of it.
func ask[T any](ctx context.Context, c *clientFlags, path string, params url.Values, heading func(T) string,
	rows func(T) [][]string) error {
	answer, err := c.do(ctx, http.MethodGet, path+"?"+params.Encode(), nil)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var v T
	if err := json.Unmarshal(answer, &v); err != nil {
		return err
	}
	return terminal.Table(heading(v), rows(v))
}

type historyCount struct {
	historyMoment
	By string `help:"version, board, tag or presence." enum:"version,board,tag,presence" default:"version"`
}

func (c *historyCount) Run(ctx context.Context) error {
	params := c.params()
	params.Set("by", c.By)
	return ask(ctx, &c.clientFlags, "/history/counts", params,
		func(PastCounts) string { return strings.ToUpper(c.By) + " DEVICES" },
		func(v PastCounts) (rows [][]string) {
			for _, i := range v.Items {
				rows = append(rows, []string{i.Value, strconv.FormatInt(i.Count, 10)})
			}
			return append(rows, []string{"(all)", strconv.FormatInt(v.Total, 10)})
		})
}

type historyDiff struct {
	clientFlags
	From  time.Time `help:"The first moment (RFC 3339). Default: a day before the second." placeholder:"TIME"`
	To    time.Time `help:"The second moment. Default: now." placeholder:"TIME"`
	Query string    `short:"q" help:"Filter: the devices that match it at either moment."`
	Field string    `help:"List only changes of this: added, removed, version, tools, board, name, tags, hold, enrolment or presence."`
	Limit int       `help:"Print at most this many." default:"1000"`
}

func (c *historyDiff) Run(ctx context.Context) error {
	params := url.Values{"q": {c.Query}}
	setTime(params, "from", c.From)
	setTime(params, "to", c.To)
	if c.Field != "" {
		params.Set("field", c.Field)
	}
	items, err := c.all(ctx, "/history/diff", params, c.Limit)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, "ID CHANGED VERSION TAGS PRESENCE", PastChange.row)
}

func (d PastChange) row() []string {
	between := func(of func(*PastDevice) string) string {
		before, after := "", ""
		if d.Before != nil {
			before = of(d.Before)
		}
		if d.After != nil {
			after = of(d.After)
		}
		if before == after {
			return before
		}
		return before + " -> " + after
	}
	return []string{d.ID, strings.Join(d.Fields, ","),
		between(func(p *PastDevice) string { return p.Version }),
		between(func(p *PastDevice) string { return strings.Join(p.Tags, ",") }),
		between(func(p *PastDevice) string { return orEmpty(p.Presence) })}
}

type historyAdoption struct {
	clientFlags
	From    time.Time `help:"Default: 30 days before the end, or the beginning of the history." placeholder:"TIME"`
	To      time.Time `help:"Default: now." placeholder:"TIME"`
	Points  int       `help:"Number of moments." default:"31"`
	Query   string    `short:"q" help:"Filter: the devices that match it now."`
	Version string    `help:"Only this version, and the sum of the others."`
}

func (c *historyAdoption) Run(ctx context.Context) error {
	params := url.Values{"q": {c.Query}, "points": {strconv.Itoa(c.Points)}, "version": {c.Version}}
	setTime(params, "from", c.From)
	setTime(params, "to", c.To)
	return ask(ctx, &c.clientFlags, "/history/adoption", params, func(v Adoption) string {
		heading := "TIME"
		for _, s := range v.Series {
			heading += " " + strings.ReplaceAll(orUnknown(s.Version), " ", "_")
		}
		return heading + " OTHERS"
	}, func(v Adoption) (rows [][]string) {
		for i, at := range v.Times {
			row := []string{at.Format(time.DateTime)}
			for _, s := range v.Series {
				row = append(row, strconv.FormatInt(s.Devices[i], 10))
			}
			others := int64(0)
			if i < len(v.Others) {
				others = v.Others[i]
			}
			rows = append(rows, append(row, strconv.FormatInt(others, 10)))
		}
		return rows
	})
}

func orUnknown(version string) string {
	if version == "" {
		return "unknown"
	}
	return version
}

type historyDevice struct {
	clientFlags
	ID    string `arg:"" help:"Device id; a MAC address in any form."`
	Limit int    `help:"Print at most this many states." default:"50"`
}

func (c *historyDevice) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodGet, devicePath(c.ID, "/states?limit="+strconv.Itoa(c.Limit)), nil)
	if err != nil {
		return err
	}
	var v struct{ Items []json.RawMessage }
	if err := json.Unmarshal(answer, &v); err != nil {
		return err
	}
	return listed(&c.clientFlags, v.Items, pastHeading, PastDevice.row)
}

type historyBegin struct{ clientFlags }

func (c *historyBegin) Run(ctx context.Context) error {
	return ask(ctx, &c.clientFlags, "/history", nil, func(History) string { return "STATES VERSIONS" },
		func(v History) [][]string {
			return [][]string{{fmt.Sprint(v.BeginsAt.Format(time.DateTime)), v.VersionsBeginAt.Format(time.DateTime)}}
		})
}
