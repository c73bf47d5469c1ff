package ui

import (
	"context"
	"net/url"
	"strings"

	"fleetd/fleet/enrolment"
	"fleetd/web/forms"
)

// PathRules is the list of enrolment rules: GET list, POST create. Below it, by the rule's id: GET
// shows one, POST "edit", "enable", "disable", "move" (to: its new position) and "delete".
const PathRules = "/enrolment/rules"

// RulePath is the page of one rule, or one of its acts.
func RulePath(id string, parts ...string) string {
	return strings.Join(append([]string{PathRules, url.PathEscape(id)}, parts...), "/")
}

// A RulesPage shows the rules by which devices join without an operator.
type RulesPage struct {
	Mode  string // enrolment mode
	Rules []enrolment.RuleRow
	Admin bool
	Form  forms.Rule // for the new rule
	// Problem is the reason why Form was rejected, in the page's language.
	Problem string
	// WouldMatch counts, by rule, the waiting devices that match it.
	WouldMatch map[string]int
}

// A RulePage shows one rule: GET RulePath(id).
type RulePage struct {
	Rule    enrolment.RuleRow
	Place   int // in the list, from 1
	Admin   bool
	Form    forms.Rule
	Problem string                // why Form was rejected, in the page's language
	Matches []enrolment.RuleMatch // with devices that wait now
}

// conditions returns the conditions of a rule as lines of text.
func conditions(ctx context.Context, r enrolment.RuleRow) (all []string) {
	if len(r.Boards) > 0 {
		all = append(all, t(ctx, "rules.if_board", "list", shorten(strings.Join(r.Boards, ", "), 80)))
	}
	if len(r.Networks) > 0 {
		list := make([]string, len(r.Networks))
		for i, p := range r.Networks {
			list[i] = p.String()
		}
		all = append(all, t(ctx, "rules.if_network", "list", shorten(strings.Join(list, ", "), 80)))
	}
	if n := len(r.Devices); n > 0 {
		all = append(all, t(ctx, "rules.if_listed", "n", n))
	}
	if r.From != nil {
		all = append(all, t(ctx, "rules.if_from", "at", *r.From))
	}
	if r.Until != nil {
		all = append(all, t(ctx, "rules.if_until", "at", *r.Until))
	}
	if r.MaxDevices > 0 {
		all = append(all, t(ctx, "rules.if_max", "n", r.MaxDevices))
	}
	if len(all) == 0 {
		all = append(all, t(ctx, "rules.if_any"))
	}
	if r.Transport != "" {
		all = append(all, t(ctx, "rules.if_transport", "transport", t(ctx, "transport."+string(r.Transport))))
	}
	return all
}

// refuseURL returns the form of a rule that refuses a network.
func refuseURL(u enrolment.UnlistedNetwork) string {
	return PathRules + "?" + url.Values{"action": {"refuse"}, "networks": {u.Network.String()},
		"name": {u.Network.String()}}.Encode() + "#add"
}
