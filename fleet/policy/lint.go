package policy

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// Codes of warnings. The first five mean that a rule can never decide; they are used only if
// that is certain.
const (
	WarnShadowed      = "shadowed"       // by, by_id: an earlier rule applies to every call to which this one applies
	WarnNeverOpens    = "never_opens"    // the rule's window does not open within 400 days
	WarnWrongRole     = "wrong_role"     // kind: callers of the kinds that it names have other roles
	WarnWrongEffect   = "wrong_effect"   // none of the tools that it names has the effect
	WarnWrongAudience = "wrong_audience" // its tools are all for people, but it is about tools for models
	WarnUnknownTool   = "tool_not_seen"  // no device offers or has offered a tool that it names
	// WarnLockedOut means that the rule denies operators and admins every call. The table can
	// still be changed.
	WarnLockedOut = "operators_locked_out"
	// WarnClaims, with fields, means that the devices' own reports decide whether the rule
	// applies.
	WarnClaims = "rests_on_claims"
)

// A Warning is a problem of a rule.
type Warning struct {
	Rule   uuid.UUID
	Reason fleet.Reason
}

// Warnings finds rules that probably do not do what their author intended.
func (s *Service) Warnings(ctx context.Context) ([]Warning, error) {
	tools, err := s.ToolNames(ctx)
	if err != nil {
		return nil, err
	}
	rules := s.Table().Rules
	return append(Lint(rules, tools, s.now()), restOnClaims(rules)...), nil
}

// restOnClaims finds the rules whose matches devices can control by what they report about
// themselves.
func restOnClaims(rules []Rule) (all []Warning) {
	for _, r := range rules {
		q, err := fleet.ParseQuery(r.Devices)
		if fields := q.Claims(); err == nil && r.Enabled && len(fields) > 0 {
			all = append(all, Warning{r.ID, fleet.Because(WarnClaims, "fields", strings.Join(fields, ", "))})
		}
	}
	return all
}

// namesTTL is the maximum age of the list of tools, which is computed from all inventories.
const namesTTL = 30 * time.Second

// A nameList is the cached result of [Store.ToolNames].
type nameList struct {
	names []string
	at    time.Time
}

// ToolNames returns the sorted names of all tools that any device offers or has offered.
func (s *Service) ToolNames(ctx context.Context) ([]string, error) {
	if known := s.names.Load(); known != nil && s.now().Sub(known.at) < namesTTL {
		return known.names, nil
	}
	names, err := s.store.ToolNames(ctx)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	s.names.Store(&nameList{names, s.now()})
	return names, nil
}

// Lint checks rules in their order and skips disabled ones. tools are the names of all tools
// that any device has.
func Lint(rules []Rule, tools []string, now time.Time) []Warning {
	var all []Warning
	var before []Rule
	locked := false
	for _, r := range rules {
		if !r.Enabled {
			continue
		}
		never := r.never(now)
		if i := slices.IndexFunc(before, func(earlier Rule) bool { return earlier.covers(&r) }); i >= 0 {
			never = fleet.Because(WarnShadowed, "by", before[i].Name, "by_id", before[i].ID.String())
		}
		if never.Code != "" {
			all = append(all, Warning{r.ID, never})
			continue // it never decides, so it shadows no rule
		}
		if len(tools) > 0 && len(r.Tools) > 0 &&
			!slices.ContainsFunc(tools, func(t string) bool { return fleet.MatchTool(r.Tools, t) }) {
			all = append(all, Warning{r.ID, fleet.Because(WarnUnknownTool)})
		}
		if !locked && locksOut(before, &r) {
			locked = true
			all = append(all, Warning{r.ID, fleet.Because(WarnLockedOut)})
		}
		before = append(before, r)
	}
	return all
}

// never returns why the rule can never apply, whatever the other rules are.
func (r *Rule) never(now time.Time) fleet.Reason {
	if r.Window != nil {
		if _, opens := fleet.NextWindow([]fleet.Window{*r.Window}, time.UTC, now, 0); !opens {
			return fleet.Because(WarnNeverOpens)
		}
	}
	// Campaigns call with the role operator.
	if len(r.Roles) > 0 && !slices.Contains(r.Roles, fleet.RoleOperator) && len(r.Kinds) == 1 &&
		r.Kinds[0] == fleet.KindCampaign {
		return fleet.Because(WarnWrongRole, "kind", fleet.KindCampaign)
	}
	if len(r.Tools) == 0 || slices.ContainsFunc(r.Tools, isOpen) {
		return fleet.Reason{}
	}
	is := func(what func(fleet.Tool) bool) bool {
		return !slices.ContainsFunc(r.Tools, func(name string) bool { return !what(fleet.Tool{Name: name}) })
	}
	switch {
	case len(r.Effects) > 0 && is(func(t fleet.Tool) bool { return !slices.Contains(r.Effects, fleet.EffectOf(t.Name)) }):
		return fleet.Because(WarnWrongEffect)
	case r.Audience == fleet.AudienceModel && is(fleet.Tool.UserOnly):
		return fleet.Because(WarnWrongAudience)
	}
	return fleet.Reason{}
}

func isOpen(pattern string) bool { return strings.HasSuffix(pattern, "*") }

// locksOut reports whether the rule denies people every call, given that no earlier rule
// allows them any.
func locksOut(before []Rule, r *Rule) bool {
	everyone := Rule{Kinds: []fleet.PrincipalKind{fleet.KindOperator}, Roles: []fleet.Role{fleet.RoleOperator,
		fleet.RoleAdmin}}
	return r.Decision == call.DecisionDeny && r.covers(&everyone) && !slices.ContainsFunc(before, func(b Rule) bool {
		return b.Decision != call.DecisionDeny && (len(b.Kinds) == 0 || slices.Contains(b.Kinds, fleet.KindOperator)) &&
			(len(b.Roles) == 0 || slices.Contains(b.Roles, fleet.RoleOperator) || slices.Contains(b.Roles, fleet.RoleAdmin))
	})
}

// covers reports whether r certainly applies to every call to which other applies. False
// means that this is not known.
func (r *Rule) covers(other *Rule) bool {
	return holds(r.Kinds, other.Kinds, fleet.PrincipalKinds) && holds(r.Roles, other.Roles, roles) &&
		coversPatterns(r.Names, other.Names) && coversPatterns(r.Tools, other.Tools) &&
		r.coversAudience(other) && r.coversEffects(other) && coversQuery(r.Devices, other.Devices) &&
		(len(r.Arguments) == 0 || bytes.Equal(r.Arguments, other.Arguments)) &&
		(r.Window == nil || other.Window != nil && *r.Window == *other.Window)
}

// holds reports whether r contains everything in other. An empty list means all.
func holds[S comparable](r, other, all []S) bool {
	if len(r) == 0 {
		return true
	}
	if len(other) == 0 {
		other = all
	}
	return !slices.ContainsFunc(other, func(v S) bool { return !slices.Contains(r, v) })
}

func coversPatterns(r, other []string) bool {
	if len(r) == 0 {
		return true
	}
	return len(other) > 0 && !slices.ContainsFunc(other, func(p string) bool {
		prefix := strings.TrimSuffix(p, "*")
		return !slices.ContainsFunc(r, func(wide string) bool {
			start, open := strings.CutSuffix(wide, "*")
			return wide == p || open && strings.HasPrefix(prefix, start)
		})
	})
}

func (r *Rule) coversAudience(other *Rule) bool {
	if r.Audience == "" || r.Audience == other.Audience {
		return true
	}
	return r.Audience == fleet.AudienceUser && other.Audience == "" && len(other.Tools) > 0 &&
		!slices.ContainsFunc(other.Tools, func(p string) bool { return isOpen(p) || !fleet.Tool{Name: p}.UserOnly() })
}

func (r *Rule) coversEffects(other *Rule) bool {
	if len(r.Effects) == 0 || len(other.Effects) > 0 && holds(r.Effects, other.Effects, Effects) {
		return true
	}
	return len(other.Tools) > 0 && !slices.ContainsFunc(other.Tools, func(p string) bool {
		return isOpen(p) || !slices.Contains(r.Effects, fleet.EffectOf(p))
	})
}

// coversQuery compares terms: a query with all terms of another query, and more, is narrower.
// A query without the field retired excludes retired devices.
func coversQuery(r, other string) bool {
	if r == "" || r == other {
		return true
	}
	wide, err := fleet.ParseQuery(r)
	if err != nil {
		return false
	}
	narrow, err := fleet.ParseQuery(other)
	if err != nil || narrow.Asks("retired") != wide.Asks("retired") {
		return false
	}
	return !slices.ContainsFunc(wide.Terms, func(t fleet.Term) bool {
		return !slices.ContainsFunc(narrow.Terms, func(o fleet.Term) bool { return o.Text == t.Text })
	})
}
