// Package policy judges every call by an ordered table of rules: the first rule that applies
// allows the call, denies it, or makes it wait for an approval. If no rule applies, the call
// is allowed.
//
// The table is compiled to a [Set] whenever it changes. A [Service] implements [call.Policy]
// with the current set and counts calls for rates and budgets. It judges only tool calls;
// signing in and changing the table are not calls.
//
// [Service.Run] is its goroutine. Changes of the table are made one at a time. A judgement
// needs a lock only to count.
package policy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// A Rule is one rule of the policy. It applies if all of its conditions hold; an empty
// condition always holds.
type Rule struct {
	ID       uuid.UUID
	Position int // the first rule that applies decides
	Name     string
	Enabled  bool
	Fixed    bool // cannot be changed, moved, disabled or removed

	Kinds     []fleet.PrincipalKind
	Roles     []fleet.Role // roles of the caller on the device
	Names     []string     // patterns of the caller's name; a trailing * matches any ending
	Tools     []string     // patterns of tools
	Audience  fleet.Audience
	Effects   []fleet.ToolEffect // effects of the tool on the device's connection
	Devices   string             // a query
	Arguments json.RawMessage    // JSON schema of the arguments; nil for any
	Window    *fleet.Window      // when the rule applies; nil for always

	Decision    call.Decision
	Note        string        // explanation for people, shown with a denial and an approval
	ApprovalTTL time.Duration // of require_approval; 0 for the default
	// Maximum calls of one tool by one caller; 0 for no limit. A call over the limit is
	// denied, and no later rule is evaluated.
	RatePerMinute int
	DailyBudget   int // the day is UTC

	UpdatedBy string // "" for a built-in rule
	CreatedAt time.Time
	UpdatedAt time.Time
}

// Limits of a policy.
const (
	MaxRules       = 500
	maxPatterns    = 100
	maxPattern     = 200 // bytes
	maxSchema      = 8 << 10
	maxNote        = 500
	MaxRate        = 60_000
	MaxBudget      = 10_000_000
	MinApprovalTTL = time.Minute
)

// Effects are the effects of tools that a rule can name.
var Effects = []fleet.ToolEffect{fleet.EffectRestarts, fleet.EffectLeaves}

var (
	roles     = []fleet.Role{fleet.RoleViewer, fleet.RoleOperator, fleet.RoleAdmin}
	decisions = []call.Decision{call.DecisionAllow, call.DecisionDeny, call.DecisionRequireApproval}
	audiences = []fleet.Audience{"", fleet.AudienceModel, fleet.AudienceUser}
)

// Clean normalises a rule for storage and compilation.
func (r *Rule) Clean() (err error) {
	if r.Name, err = fleet.CleanLine("name", r.Name, fleet.MaxNameLength); err != nil {
		return err
	}
	if r.Name == "" {
		return fleet.Refuse(fleet.ErrInvalid, "name_missing").At("name")
	}
	if r.Note, err = fleet.CleanLine("note", r.Note, maxNote); err != nil {
		return err
	}
	if r.Kinds, err = choose("kinds", r.Kinds, fleet.PrincipalKinds); err != nil {
		return err
	}
	if r.Roles, err = choose("roles", r.Roles, roles); err != nil {
		return err
	}
	if r.Effects, err = choose("effects", r.Effects, Effects); err != nil {
		return err
	}
	if _, err = choose("audience", []fleet.Audience{r.Audience}, audiences); err != nil {
		return err
	}
	if _, err = choose("decision", []call.Decision{r.Decision}, decisions); err != nil {
		return err
	}
	if r.Names, err = cleanPatterns("names", r.Names); err != nil {
		return err
	}
	if r.Tools, err = cleanPatterns("tools", r.Tools); err != nil {
		return err
	}
	q, err := fleet.ParseQuery(r.Devices)
	if err != nil {
		return err
	}
	r.Devices = q.Text
	if r.Arguments, err = cleanSchema(r.Arguments); err != nil {
		return err
	}
	if err := r.cleanWindow(); err != nil {
		return err
	}
	return r.checkNumbers()
}

func (r *Rule) cleanWindow() error {
	if r.Window == nil {
		return nil
	}
	w := *r.Window
	w.TimeZone = cmp.Or(w.TimeZone, "UTC")
	if w.TimeZone == fleet.DeviceZone {
		return fleet.Refuse(fleet.ErrInvalid, "window_needs_zone").At("window.time_zone")
	}
	if err := w.CheckTimes("window"); err != nil {
		return err
	}
	if w.Duration < fleet.MinWindow || w.Duration > fleet.MaxWindow {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_window.span", "least_ms", fleet.MinWindow, "most_ms",
			fleet.MaxWindow).At("window.duration_ms")
	}
	r.Window = &w
	return nil
}

func (r *Rule) checkNumbers() error {
	switch {
	case r.RatePerMinute < 0 || r.RatePerMinute > MaxRate:
		return fleet.Refuse(fleet.ErrInvalid, "invalid_rate", "most", MaxRate).At("rate_per_minute")
	case r.DailyBudget < 0 || r.DailyBudget > MaxBudget:
		return fleet.Refuse(fleet.ErrInvalid, "invalid_budget", "most", MaxBudget).At("daily_budget")
	case r.Decision == call.DecisionDeny && r.RatePerMinute > 0:
		return fleet.Refuse(fleet.ErrInvalid, "limit_on_deny").At("rate_per_minute")
	case r.Decision == call.DecisionDeny && r.DailyBudget > 0:
		return fleet.Refuse(fleet.ErrInvalid, "limit_on_deny").At("daily_budget")
	case r.Decision != call.DecisionRequireApproval && r.ApprovalTTL != 0,
		r.ApprovalTTL != 0 && (r.ApprovalTTL < MinApprovalTTL || r.ApprovalTTL > call.MaxApprovalTTL):
		return fleet.Refuse(fleet.ErrInvalid, "invalid_approval_ttl", "least_ms", MinApprovalTTL, "most_ms",
			call.MaxApprovalTTL).At("approval_ttl_ms")
	}
	return nil
}

// choose returns the values in the order of all, without duplicates.
func choose[S ~string](field string, values, all []S) ([]S, error) {
	for _, v := range values {
		if !slices.Contains(all, v) {
			names := make([]string, 0, len(all))
			for _, name := range all {
				if name != "" {
					names = append(names, string(name))
				}
			}
			return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_choice", "value", string(v),
				"choices", strings.Join(names, ", ")).At(field)
		}
	}
	var chosen []S
	for _, v := range all {
		if slices.Contains(values, v) {
			chosen = append(chosen, v)
		}
	}
	return chosen, nil
}

func cleanPatterns(field string, patterns []string) ([]string, error) {
	var clean []string
	for _, p := range patterns {
		p = strings.TrimSpace(p)
		if p == "" {
			continue
		}
		if len(p) > maxPattern || fleet.CleanText(p, maxPattern) != p || strings.Contains(strings.TrimSuffix(p, "*"), "*") {
			return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_name_pattern", "value", p).At(field)
		}
		clean = append(clean, p)
	}
	slices.Sort(clean)
	if clean = slices.Compact(clean); len(clean) > maxPatterns {
		return nil, fleet.Refuse(fleet.ErrInvalid, "too_many_patterns", "limit", maxPatterns).At(field)
	}
	return clean, nil
}

// cleanSchema returns the schema with sorted members, nil for a schema that every object
// satisfies.
func cleanSchema(raw json.RawMessage) (json.RawMessage, error) {
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var members map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if len(raw) > maxSchema {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_schema.long", "limit", maxSchema).At("arguments")
	}
	if d.Decode(&members) != nil || d.More() || members == nil || call.CompileSchema(raw) == nil {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_schema.rejected").At("arguments")
	}
	if len(members) == 0 {
		return nil, nil
	}
	return json.Marshal(members)
}

// Detail returns the rule's fields for an audit entry.
func (r Rule) Detail() map[string]any {
	d := map[string]any{"name": r.Name, "position": r.Position, "enabled": r.Enabled, "decision": string(r.Decision)}
	add := func(name string, value any, given bool) {
		if given {
			d[name] = value
		}
	}
	add("kinds", r.Kinds, len(r.Kinds) > 0)
	add("roles", r.Roles, len(r.Roles) > 0)
	add("names", r.Names, len(r.Names) > 0)
	add("tools", r.Tools, len(r.Tools) > 0)
	add("audience", r.Audience, r.Audience != "")
	add("effects", r.Effects, len(r.Effects) > 0)
	add("devices", r.Devices, r.Devices != "")
	add("arguments", r.Arguments, len(r.Arguments) > 0)
	if w := r.Window; w != nil {
		d["window"] = map[string]any{"cron": w.Cron, "duration_ms": w.Duration.Milliseconds(), "time_zone": w.TimeZone}
	}
	add("note", r.Note, r.Note != "")
	add("approval_ttl_ms", r.ApprovalTTL.Milliseconds(), r.ApprovalTTL > 0)
	add("rate_per_minute", r.RatePerMinute, r.RatePerMinute > 0)
	add("daily_budget", r.DailyBudget, r.DailyBudget > 0)
	return d
}
