package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

// ToolCommand is about the catalogue: all tools that devices have listed.
type ToolCommand struct {
	List    toolList    `cmd:"" help:"List the tools of the fleet, with their calls of the last 7 days."`
	Show    toolShow    `cmd:"" help:"Show the definitions of a tool, where they are offered, and its calls by firmware version."`
	Diff    toolDiff    `cmd:"" help:"Compare two definitions of a tool."`
	Release toolRelease `cmd:"" help:"Release definitions of tools, so language models may call them."`
	Waits   toolWaits   `cmd:"" help:"Show or set which definitions wait for a person before language models may call them."`
}

type toolList struct {
	clientFlags
	Name        string `arg:"" optional:"" help:"Part of the name."`
	Board       string `help:"Only tools that devices with this board offer."`
	Version     string `help:"Only tools that devices with this firmware version offer."`
	Audience    string `help:"Only tools for models, or for people." enum:"model,user,all" default:"all"`
	Quarantined bool   `help:"Only tools with a definition that waits for a person."`
	Limit       int    `help:"Maximum number of tools." default:"200"`
}

func (c *toolList) Run(ctx context.Context) error {
	q := url.Values{"audience": {c.Audience}}
	for name, value := range map[string]string{"name": c.Name, "board": c.Board, "version": c.Version} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if c.Quarantined {
		q.Set("quarantined", "true")
	}
	items, err := c.all(ctx, "/tools", q, c.Limit)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, "TOOL AUDIENCE BOARDS VERSIONS DEVICES CALLS ERRORS P50 P99 WAITING",
		func(e CatalogueEntry) []string {
			row := []string{e.Name, string(e.Audience), strconv.FormatInt(e.Boards, 10), strconv.FormatInt(e.Versions, 10),
				strconv.FormatInt(e.Devices, 10)}
			return append(append(row, usageCells(e.Usage)...), strconv.FormatInt(e.Waiting, 10))
		})
}

// usageCells returns calls, error rate, p50 and p99.
func usageCells(u *Usage) []string {
	if u == nil {
		return []string{"", "", "", ""}
	}
	ms := func(v *int64) string {
		if v == nil {
			return ""
		}
		return (time.Duration(*v) * time.Millisecond).String()
	}
	return []string{strconv.FormatInt(u.Calls, 10), fmt.Sprintf("%.1f %%", 100*u.ErrorRate), ms(u.P50Ms), ms(u.P99Ms)}
}

type toolShow struct {
	clientFlags
	Name string `arg:"" help:"Name of the tool."`
	Days int    `help:"Days to count calls over." default:"7"`
}

func (c *toolShow) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodGet, "/tools/"+url.PathEscape(c.Name)+"?days="+strconv.Itoa(c.Days), nil)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var t CatalogueTool
	if err := json.Unmarshal(answer, &t); err != nil {
		return err
	}
	var rows [][]string
	for _, d := range t.Definitions {
		var places []string
		for _, p := range d.Places {
			if p.Devices > 0 {
				places = append(places, p.Board+" "+p.Version)
			}
		}
		state := string(d.Waiting)
		if state != "" {
			state = "waits (" + state + ")"
		}
		rows = append(rows, []string{d.Digest, string(d.Audience), d.FirstSeen.Format(time.DateTime),
			d.LastSeen.Format(time.DateTime), strconv.FormatInt(d.Devices, 10), strings.Join(places, ", "), state})
	}
	if err := terminal.Table("DIGEST AUDIENCE FIRST_SEEN LAST_SEEN DEVICES OFFERED_BY STATE", rows); err != nil {
		return err
	}
	rows = nil
	for _, v := range t.Versions {
		suggested := ""
		if v.Usage.SuggestedTimeoutMs != nil {
			suggested = (time.Duration(*v.Usage.SuggestedTimeoutMs) * time.Millisecond).String()
		}
		rows = append(rows, append(append([]string{v.Version}, usageCells(&v.Usage)...), suggested))
	}
	fmt.Println()
	return terminal.Table("VERSION CALLS ERRORS P50 P99 SUGGESTED_TIMEOUT", rows)
}

type toolDiff struct {
	clientFlags
	Name string `arg:"" help:"Name of the tool."`
	From string `help:"Digest of a definition. Default: the one before the newest."`
	To   string `help:"Digest of a definition. Default: the newest."`
}

func (c *toolDiff) Run(ctx context.Context) error {
	q := url.Values{}
	if c.From != "" {
		q.Set("from", c.From)
	}
	if c.To != "" {
		q.Set("to", c.To)
	}
	answer, err := c.do(ctx, http.MethodGet, "/tools/"+url.PathEscape(c.Name)+"/diff?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var d DefinitionDiff
	if err := json.Unmarshal(answer, &d); err != nil {
		return err
	}
	var rows [][]string
	add := func(change, what, before, after string) { rows = append(rows, []string{change, what, before, after}) }
	if d.DescriptionChanged {
		add("changed", "(description)", d.From.Description, d.To.Description)
	}
	if d.AudienceChanged {
		add("changed", "(audience)", string(d.From.Audience), string(d.To.Audience))
	}
	for _, p := range d.Properties {
		add(string(p.Change), p.Path, schemaText(p.Before, p.RequiredBefore), schemaText(p.After, p.RequiredAfter))
	}
	if d.OtherChanged {
		add("changed", "(schema)", "", "")
	}
	if len(rows) == 0 {
		fmt.Println("The definitions are the same.")
		return nil
	}
	return terminal.Table("CHANGE ARGUMENT BEFORE AFTER", rows)
}

func schemaText(schema any, required bool) string {
	if schema == nil {
		return ""
	}
	text, err := json.Marshal(schema)
	if err != nil {
		return ""
	}
	if required {
		return string(text) + " required"
	}
	return string(text)
}

type toolRelease struct {
	clientFlags
	Name   string `arg:"" optional:"" help:"Name of the tool."`
	Digest string `arg:"" optional:"" help:"Digest of the definition, as shown: what you have checked."`
	All    bool   `help:"Release all definitions that wait now, of all tools."`
}

func (c *toolRelease) Run(ctx context.Context) error {
	type key struct {
		Tool   string `json:"tool"`
		Digest string `json:"digest"`
	}
	var keys []key
	switch {
	case c.All == (c.Name != ""):
		return terminal.UsageError{Err: errors.New("name a tool and a digest, or give --all")}
	case c.Name != "" && c.Digest == "":
		return terminal.UsageError{Err: errors.New("give the digest of the definition that you have checked; fleetd tool show prints it")}
	case c.Name != "":
		answer, err := c.do(ctx, http.MethodPost, "/tools/"+url.PathEscape(c.Name)+"/release", map[string]string{"digest": c.Digest})
		if err != nil {
			return err
		}
		return c.released(answer)
	}
	items, err := c.all(ctx, "/tools", url.Values{"quarantined": {"true"}}, 1000)
	if err != nil {
		return err
	}
	for _, item := range items {
		var e CatalogueEntry
		if err := json.Unmarshal(item, &e); err != nil {
			return err
		}
		answer, err := c.do(ctx, http.MethodGet, "/tools/"+url.PathEscape(e.Name), nil)
		if err != nil {
			return err
		}
		var t CatalogueTool
		if err := json.Unmarshal(answer, &t); err != nil {
			return err
		}
		for _, d := range t.Definitions {
			if d.Waiting != "" {
				keys = append(keys, key{t.Name, d.Digest})
			}
		}
	}
	if len(keys) == 0 {
		return c.released([]byte(`{"released":0}`))
	}
	for begin := 0; begin < len(keys); begin += 500 { // the most that one request may release
		body := map[string]any{"definitions": keys[begin:min(begin+500, len(keys))]}
		answer, err := c.do(ctx, http.MethodPost, "/tools/release", body)
		if err != nil {
			return err
		}
		if err := c.released(answer); err != nil {
			return err
		}
	}
	return nil
}

func (c *toolRelease) released(answer []byte) error {
	if !c.human() {
		return terminal.JSON(answer)
	}
	var r Released
	if err := json.Unmarshal(answer, &r); err != nil {
		return err
	}
	fmt.Printf("%d released\n", r.Released)
	return nil
}

type toolWaits struct {
	clientFlags
	Waits string `arg:"" optional:"" help:"off, new or new_and_changed."`
}

func (c *toolWaits) Run(ctx context.Context) error {
	method, body := http.MethodGet, any(nil)
	if c.Waits != "" {
		method, body = http.MethodPut, map[string]string{"waits": c.Waits}
	}
	answer, err := c.do(ctx, method, "/tool-waits", body)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var w ToolWaits
	if err := json.Unmarshal(answer, &w); err != nil {
		return err
	}
	fmt.Println(w.Waits)
	return nil
}
