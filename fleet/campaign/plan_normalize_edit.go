package campaign

import (
	"encoding/json"
	"fleetd/fleet"
	"maps"
	"slices"
	"time"
)

// editableWhileRunning are the fields, by their JSON names, that do not touch
// what is installed where.
var editableWhileRunning = []string{"max_in_flight", "max_per_minute", "abort_rules", "windows", "jitter_ns", "end_at",
	"end_behavior"}

// RunningEdit refuses a change to a running campaign's plan that reaches
// further than pace, windows, abort rules, jitter and end.
func RunningEdit(before, after Plan) error {
	old, new := planFields(before), planFields(after)
	names := make(map[string]bool)
	for name := range old {
		names[name] = true
	}
	for name := range new {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if slices.Contains(editableWhileRunning, name) || string(old[name]) == string(new[name]) {
			continue
		}
		return fleet.Refuse(fleet.ErrConflict, "campaign_running.field", "field", name).At(name)
	}
	return nil
}

func planFields(p Plan) map[string]json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(canonicalPlan(p), &fields) != nil {
		return nil
	}
	return fields
}

// Loosens reports whether a change that [RunningEdit] allows lets a campaign
// run faster, longer, at more times or through more failures than before: that
// needs a new approval, tightening does not.
func Loosens(before, after Plan) bool {
	return after.MaxInFlight > before.MaxInFlight ||
		raisesLimit(before.MaxPerMinute, after.MaxPerMinute) ||
		after.Jitter < before.Jitter ||
		endsLater(before.EndAt, after.EndAt) ||
		slices.Index(endBehaviors, after.EndBehavior) < slices.Index(endBehaviors, before.EndBehavior) ||
		loosensRules(before.AbortRules, after.AbortRules) ||
		loosensWindows(before.Windows, after.Windows)
}

// raisesLimit compares limits of which 0 is none.
func raisesLimit(before, after int) bool {
	return before != 0 && (after == 0 || after > before)
}

// endsLater takes a change from or to the default end as later: it depends on
// a start that plans do not know.
func endsLater(before, after *time.Time) bool {
	if before == nil || after == nil {
		return before != after
	}
	return after.After(*before)
}

// loosensRules wants for every rule one that fires no later and does no less.
func loosensRules(before, after []AbortRule) bool {
	return slices.ContainsFunc(before, func(old AbortRule) bool {
		return !slices.ContainsFunc(after, old.coveredBy)
	})
}

func (r AbortRule) coveredBy(other AbortRule) bool {
	return (other.Class == r.Class || other.Class == ClassAny) && other.Scope == r.Scope &&
		(other.Wave == r.Wave || other.Wave == 0) &&
		other.MinExecuted <= r.MinExecuted && other.Percent <= r.Percent && severity(other.Action) >= severity(r.Action)
}

// loosensWindows wants every window inside one that was there.
func loosensWindows(before, after []Window) bool {
	if len(before) == 0 {
		return false
	}
	return len(after) == 0 || slices.ContainsFunc(after, func(w Window) bool {
		return !slices.ContainsFunc(before, func(old Window) bool {
			return w.Cron == old.Cron && w.TimeZone == old.TimeZone && w.Duration <= old.Duration
		})
	})
}
