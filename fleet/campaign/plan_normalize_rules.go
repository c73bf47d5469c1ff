package campaign

import (
	"fmt"
	"slices"
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
		return planError("too_many_rules", "abort_rules", "the plan has %d abort rules, at most %d are taken",
			len(p.AbortRules), maxAbortRules)
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
		return planError("invalid_class", field+".class", "%.40q is no outcome that a rule can count; write one of %v",
			r.Class, AbortClasses)
	}
	if !slices.Contains([]AbortScope{ScopeWave, ScopeCampaign, ScopeBoard}, r.Scope) {
		return planError("invalid_scope", field+".scope", "%.40q is not a scope; write wave, campaign or board",
			string(r.Scope))
	}
	if severity(r.Action) < 0 {
		return planError("invalid_action", field+".action",
			"%.40q is not an action; write pause, abort or abort_and_rollback", string(r.Action))
	}
	if err := checkPercent(field+".percent", r.Percent); err != nil {
		return err
	}
	if err := (allowed{field + ".min_executed", 1, maxPlanDevices, 1}).check(&r.MinExecuted); err != nil {
		return err
	}
	if r.Wave != 0 && r.Scope != ScopeWave {
		return planError("invalid_wave", field+".wave", "%s names a wave, but its scope is %s", field, r.Scope)
	}
	return allowed{field + ".wave", 0, waves, 0}.check(&r.Wave)
}
