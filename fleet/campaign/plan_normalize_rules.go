package campaign

import (
	"fmt"
	"slices"

	"fleetd/fleet"
)

const maxAbortRules = 20

// AbortClasses lists what an [AbortRule] can count.
var AbortClasses = []string{ClassAny, string(DeploymentFailed), string(DeploymentTimedOut),
	string(DeploymentRolledBack),
	string(DeploymentWrongBuild), string(DeploymentUnhealthy), string(DeploymentRejected)}

// normalizeRules gives a plan without rules the default ones; an empty list
// means none.
func (p *Plan) normalizeRules() error {
	if p.AbortRules == nil {
		p.AbortRules = DefaultAbortRules()
	}
	if len(p.AbortRules) > maxAbortRules {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_rules.abort", "n", len(p.AbortRules),
			"max", maxAbortRules).At("abort_rules")
	}
	for i := range p.AbortRules {
		if err := p.AbortRules[i].normalize(fmt.Sprintf("abort_rules[%d]", i), len(p.Waves)); err != nil {
			return err
		}
	}
	return nil
}

func (r *AbortRule) normalize(field string, waves int) error {
	r.Class, r.Scope, r.Action = orElse(r.Class, ClassAny), AbortScope(orElse(string(r.Scope), string(ScopeCampaign))),
		AbortAction(orElse(string(r.Action), string(AbortPause)))
	if !slices.Contains(AbortClasses, r.Class) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_class", "value", fleet.CleanText(string(r.Class), 40),
			"choices", AbortClasses).At(field + ".class")
	}
	if !slices.Contains([]AbortScope{ScopeWave, ScopeCampaign, ScopeBoard}, r.Scope) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_scope",
			"value", fleet.CleanText(string(r.Scope), 40)).At(field + ".scope")
	}
	if severity(r.Action) < 0 {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_action",
			"value", fleet.CleanText(string(r.Action), 40)).At(field + ".action")
	}
	if err := checkPercent(field+".percent", r.Percent); err != nil {
		return err
	}
	if err := (allowed{field + ".min_executed", 1, maxPlanDevices, 1}).check(&r.MinExecuted); err != nil {
		return err
	}
	if r.Wave != 0 && r.Scope != ScopeWave {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_wave.scope", "field", field, "scope", r.Scope).At(field + ".wave")
	}
	return allowed{field + ".wave", 0, waves, 0}.check(&r.Wave)
}
