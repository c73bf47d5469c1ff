package forms

import (
	"cmp"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/policy"
)

// A Policy is a rule of the policy as typed: the fields name, enabled, kind, role, effect
// (repeated), names, tools, audience, devices, arguments, cron, minutes, zone, decision, note,
// wait, rate, budget.
type Policy struct {
	Name, Names, Tools, Audience, Devices, Arguments string
	Kinds, Roles, Effects                            []string
	Cron, Minutes, Zone                              string
	Decision, Note, Wait, Rate, Budget               string
	Enabled                                          bool
}

// FillPolicy returns the form of a rule.
func FillPolicy(r policy.Rule) Policy {
	f := Policy{Name: r.Name, Names: strings.Join(r.Names, "\n"), Tools: strings.Join(r.Tools, "\n"),
		Audience: string(r.Audience), Devices: r.Devices, Kinds: texts(r.Kinds), Roles: texts(r.Roles),
		Effects: texts(r.Effects), Decision: string(r.Decision), Note: r.Note, Enabled: r.Enabled, Zone: "UTC",
		Wait: minutes(r.ApprovalTTL), Rate: positive(r.RatePerMinute), Budget: positive(r.DailyBudget)}
	if len(r.Arguments) > 0 {
		f.Arguments = string(r.Arguments)
	}
	if w := r.Window; w != nil {
		f.Cron, f.Minutes, f.Zone = w.Cron, minutes(w.Duration), w.TimeZone
	}
	return f
}

// PostedPolicy returns the form as posted.
func PostedPolicy(v url.Values) Policy {
	return Policy{Name: v.Get("name"), Names: v.Get("names"), Tools: v.Get("tools"), Audience: v.Get("audience"),
		Devices: v.Get("devices"), Arguments: v.Get("arguments"), Kinds: v["kind"], Roles: v["role"], Effects: v["effect"],
		Cron: v.Get("cron"), Minutes: v.Get("minutes"), Zone: v.Get("zone"), Decision: v.Get("decision"),
		Note: v.Get("note"), Wait: v.Get("wait"), Rate: v.Get("rate"), Budget: v.Get("budget"),
		Enabled: v.Get("enabled") != ""}
}

// Values returns the fields of the form as it is shown.
func (f Policy) Values() url.Values {
	v := url.Values{"name": {f.Name}, "names": {f.Names}, "tools": {f.Tools}, "audience": {f.Audience},
		"devices": {f.Devices}, "arguments": {f.Arguments}, "kind": f.Kinds, "role": f.Roles, "effect": f.Effects,
		"cron": {f.Cron}, "minutes": {f.Minutes}, "zone": {f.Zone},
		"decision": {cmp.Or(f.Decision, string(call.DecisionDeny))}, "note": {f.Note},
		"wait": {f.Wait}, "rate": {f.Rate}, "budget": {f.Budget}}
	check(v, "enabled", f.Enabled)
	return v
}

// Has reports whether a box of the form is checked.
func (Policy) Has(chosen []string, value string) bool { return slices.Contains(chosen, value) }

// Read reads the form.
func (f Policy) Read() (r policy.Rule, err error) {
	r = policy.Rule{Name: f.Name, Enabled: f.Enabled, Kinds: typed[fleet.PrincipalKind](f.Kinds),
		Roles: typed[fleet.Role](f.Roles), Effects: typed[fleet.ToolEffect](f.Effects), Names: splitLines(f.Names),
		Tools: splitList(f.Tools), Audience: fleet.Audience(f.Audience), Devices: f.Devices,
		Arguments: json.RawMessage(f.Arguments), Decision: call.Decision(f.Decision), Note: f.Note}
	for field, to := range map[string]*int{"rate": &r.RatePerMinute, "budget": &r.DailyBudget} {
		if *to, err = wholeNumber(map[string]string{"rate": f.Rate, "budget": f.Budget}[field], field); err != nil {
			return r, err
		}
	}
	wait, err := wholeNumber(f.Wait, "wait")
	if err != nil {
		return r, err
	}
	r.ApprovalTTL = time.Duration(wait) * time.Minute
	if f.Cron != "" {
		open, err := wholeNumber(f.Minutes, "minutes")
		if err != nil {
			return r, err
		}
		r.Window = &fleet.Window{Cron: f.Cron, Duration: time.Duration(open) * time.Minute, TimeZone: f.Zone}
	}
	return r, nil
}

func wholeNumber(text, field string) (int, error) {
	if text = strings.TrimSpace(text); text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fleet.Refuse(fleet.ErrInvalid, "invalid_form.number", "value", text).At(field)
	}
	return int(n), nil
}

// splitLines splits a list at line ends and commas, because names contain blanks.
func splitLines(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune("\r\n,，、", r) })
}

func texts[S ~string](list []S) []string {
	all := make([]string, len(list))
	for i, s := range list {
		all[i] = string(s)
	}
	return all
}

func typed[S ~string](list []string) []S {
	all := make([]S, len(list))
	for i, s := range list {
		all[i] = S(s)
	}
	return all
}

func positive(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func minutes(d time.Duration) string { return positive(int(d / time.Minute)) }
