package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

type AlertsCommand struct {
	List        alertsList        `cmd:"" default:"withargs" help:"List alerts (the default)."`
	Acknowledge alertsAcknowledge `cmd:"" help:"Acknowledge an alert."`
	Thresholds  alertsThresholds  `cmd:"" help:"Show or change alert thresholds."`
}

const alertHeading = "ID STATE SEVERITY SINCE DEVICES WHAT ACKNOWLEDGED-BY NOTE"

func (a Alert) row() []string {
	return []string{a.ID, a.State, a.Severity, a.BeganAt.Format(time.DateTime), strconv.FormatInt(a.Devices, 10),
		a.Message, orEmpty(a.AcknowledgedBy), a.Note}
}

type alertsList struct {
	clientFlags
	State string `help:"List only open alerts (including acknowledged ones), only ended ones, or all." enum:"open,ended,all" default:"open"`
	Limit int    `help:"Print at most this many." default:"1000"`
}

func (c *alertsList) Run(ctx context.Context) error {
	items, err := c.all(ctx, "/alerts", url.Values{"state": {c.State}}, c.Limit)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, alertHeading, Alert.row)
}

type alertsAcknowledge struct {
	clientFlags
	ID   string `arg:"" help:"Id of the alert."`
	Note string `help:"Note on what is being done about the alert."`
}

func (c *alertsAcknowledge) Run(ctx context.Context) error {
	return shown(&c.clientFlags, alertHeading, Alert.row)(c.do(ctx, http.MethodPost,
		"/alerts/"+url.PathEscape(c.ID)+"/acknowledge", AcknowledgeInputBody{Note: &c.Note}))
}

type alertsThresholds struct {
	clientFlags
	Kind    string        `arg:"" optional:"" help:"Condition to change."`
	Off     bool          `help:"Turn the condition off." xor:"switch"`
	On      bool          `help:"Turn the condition on." xor:"switch"`
	Percent int64         `help:"Percentage." default:"-1" placeholder:"N"`
	Span    time.Duration `help:"Length of time (15m, 24h)." default:"-1s" placeholder:"TIME"`
	Count   int64         `help:"Number of devices, or of restarts of one device." default:"-1" placeholder:"N"`
}

func (c *alertsThresholds) Run(ctx context.Context) error {
	if c.Kind == "" {
		return c.printThresholds(c.do(ctx, http.MethodGet, "/alerts/thresholds", nil))
	}
	change := map[string]any{"kind": c.Kind}
	if c.On || c.Off {
		change["enabled"] = c.On
	}
	if c.Percent >= 0 {
		change["percent"] = c.Percent
	}
	if c.Span >= 0 {
		change["span_ms"] = c.Span.Milliseconds()
	}
	if c.Count >= 0 {
		change["count"] = c.Count
	}
	if len(change) == 1 {
		return fmt.Errorf("nothing to change: give --on, --off, --percent, --span or --count")
	}
	return c.printThresholds(c.do(ctx, http.MethodPatch, "/alerts/thresholds", map[string]any{"conditions": []any{change}}))
}

func (c *alertsThresholds) printThresholds(answer json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var all Thresholds
	if err := json.Unmarshal(answer, &all); err != nil {
		return err
	}
	number := func(n *int64) string {
		if n == nil {
			return ""
		}
		return strconv.FormatInt(*n, 10)
	}
	rows := make([][]string, len(all.Conditions))
	for i, t := range all.Conditions {
		span := ""
		if t.SpanMs != nil {
			span = (time.Duration(*t.SpanMs) * time.Millisecond).String()
		}
		rows[i] = []string{t.Kind, strconv.FormatBool(t.Enabled), number(t.Percent), span, number(t.Count)}
	}
	return terminal.Table("CONDITION ON PERCENT TIME COUNT", rows)
}
