package ui

import (
	"context"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/policy"
	"fleetd/web/forms"
	"fleetd/web/i18n"
)

// PathPolicies is the table of rules that judge calls: GET list, with the fields of a trial
// (caller, on, tool, arguments) also its result, POST create. Below it, by the rule's id: GET shows
// one, POST "edit", "enable", "disable", "move" (to: its new position) and "delete". Each post
// contains the version of the table that was shown.
const PathPolicies = "/settings/policies"

// PolicyPath is the page of one rule, or one of its acts.
func PolicyPath(id uuid.UUID, parts ...string) string {
	return strings.Join(append([]string{PathPolicies, id.String()}, parts...), "/")
}

// A PoliciesPage shows the rules in their order, and runs trials of calls.
type PoliciesPage struct {
	Table    *policy.Table
	Warnings []policy.Warning
	Admin    bool
	Form     forms.Policy // for the new rule
	Problem  string       // why Form was rejected, in the page's language
	Zones    []string     // offered for windows
	Trial    PolicyTrial
}

// A PolicyPage shows one rule: GET [PolicyPath].
type PolicyPage struct {
	Rule     policy.Rule
	Version  int64
	Warnings []policy.Warning
	Admin    bool
	Form     forms.Policy
	Problem  string
	Zones    []string
}

// A PolicyTrial is a trial of a call, with its predicted outcome.
type PolicyTrial struct {
	Caller, On, Tool, Arguments string // as typed
	Operators, Tokens           []PolicyCaller
	Tools                       []string
	Problem                     string // in the page's language
	Result                      *policy.TrialResult
}

// A PolicyCaller is a possible caller of a trial.
type PolicyCaller struct{ Value, Name string }

// maxTrialRows bounds the devices of a trial that are listed.
const maxTrialRows = 20

// kindCallers are callers that consist of a kind and a role.
var kindCallers = []string{"operator:viewer", "operator:operator", "operator:admin", "program:operator", "model:operator",
	"voice:operator"}

func warningsOf(all []policy.Warning, id uuid.UUID) (of []fleet.Reason) {
	for _, w := range all {
		if w.Rule == id {
			of = append(of, w.Reason)
		}
	}
	return of
}

// saying returns a rule as a sentence that is true for the calls that it mentions. It announces
// further conditions, which [narrowed] lists.
func saying(ctx context.Context, r policy.Rule) string {
	rule := decision(ctx, r)
	if len(furtherConditions(ctx, r)) > 0 {
		return t(ctx, "policy.conditional", "rule", rule)
	}
	return rule
}

// decision returns a rule's decision and the callers that it applies to.
func decision(ctx context.Context, r policy.Rule) string {
	what := t(ctx, "policy.what.any")
	switch {
	case len(r.Tools) > 0:
		what = shorten(joined(ctx, "policy.join_last", r.Tools), 200)
	case r.Audience != "":
		what = t(ctx, "policy.what."+string(r.Audience))
	case len(r.Effects) == 1:
		what = t(ctx, "policy.what."+string(r.Effects[0]))
	case len(r.Effects) > 1:
		what = t(ctx, "policy.what.away")
	}
	if len(r.Kinds)+len(r.Roles) == 0 {
		return t(ctx, "policy.all."+string(r.Decision), "what", what)
	}
	who := t(ctx, "policy.callers")
	if len(r.Kinds) > 0 {
		who = joined(ctx, "policy.join_last", named(ctx, "policy.kind.", r.Kinds))
	}
	if len(r.Roles) > 0 {
		roles := joined(ctx, "policy.join_or", named(ctx, "role.", r.Roles))
		who = t(ctx, "policy.with_role", "who", who, "roles", roles)
	}
	return capital(t(ctx, "policy.some."+string(r.Decision), "who", who, "what", what))
}

// named returns the texts of codes.
func named[T ~string](ctx context.Context, prefix string, codes []T) []string {
	all := make([]string, len(codes))
	for i, code := range codes {
		all[i] = t(ctx, prefix+string(code))
	}
	return all
}

func capital(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(r)) + s[n:]
}

// joined formats a list for the language: a, b and c, or with another word before the last item.
func joined(ctx context.Context, lastKey string, list []string) string {
	last := len(list) - 1
	if last < 1 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:last], t(ctx, "policy.join")) + t(ctx, lastKey) + list[last]
}

// furtherConditions returns the conditions of a rule that its sentence does not contain, one per
// line.
func furtherConditions(ctx context.Context, r policy.Rule) (all []string) {
	add := func(given bool, key string, args ...any) {
		if given {
			all = append(all, t(ctx, key, args...))
		}
	}
	add(len(r.Names) > 0, "policy.if_name", "list", shorten(joined(ctx, "policy.join_or", r.Names), 120))
	add(r.Audience != "" && len(r.Tools) > 0, "policy.if_audience."+string(r.Audience))
	if len(r.Tools) > 0 || r.Audience != "" {
		for _, e := range r.Effects {
			add(true, "policy.if_effect."+string(e))
		}
	}
	add(r.Devices != "", "policy.if_devices", "q", shorten(r.Devices, 200))
	add(len(r.Arguments) > 0, "policy.if_arguments", "schema", shorten(string(r.Arguments), 200))
	if r.Window != nil {
		add(true, "policy.if_window", "window", windowText(ctx, *r.Window))
	}
	return all
}

// narrowed returns the lines below a rule's sentence: its conditions, and its limits.
func narrowed(ctx context.Context, r policy.Rule) []string {
	all := furtherConditions(ctx, r)
	if r.RatePerMinute > 0 {
		all = append(all, t(ctx, "policy.rate", "n", r.RatePerMinute))
	}
	if r.DailyBudget > 0 {
		all = append(all, t(ctx, "policy.budget", "n", r.DailyBudget))
	}
	if r.ApprovalTTL > 0 {
		all = append(all, t(ctx, "policy.wait", "d", r.ApprovalTTL))
	}
	return all
}

func kindLabel(ctx context.Context, caller string) string {
	kind, role, _ := strings.Cut(caller, ":")
	return t(ctx, "policy.caller", "kind", capital(t(ctx, "policy.kind."+kind)), "role", t(ctx, "role."+role))
}

func outcomeTone(o policy.Outcome) tone {
	switch o {
	case policy.OutcomeSent:
		return toneGood
	case policy.OutcomeWaits:
		return toneBusy
	case policy.OutcomeRefused:
		return toneBad
	}
	return toneNone
}

type outcomeCount struct {
	outcome policy.Outcome
	n       int
}

func (v PolicyTrial) counts() (all []outcomeCount) {
	for _, o := range []policy.Outcome{policy.OutcomeSent, policy.OutcomeWaits, policy.OutcomeRefused,
		policy.OutcomeOffline} {
		n := 0
		for _, d := range v.Result.Devices {
			if policy.OutcomeOf(d) == o {
				n++
			}
		}
		if n > 0 {
			all = append(all, outcomeCount{o, n})
		}
	}
	return all
}

// warning returns a warning about a rule, with its foreign parts marked.
func warning(ctx context.Context, r fleet.Reason) string {
	p := page(ctx)
	return i18n.BecauseMarked(p.Lang, p.Zone, "policy.warn.", r)
}
