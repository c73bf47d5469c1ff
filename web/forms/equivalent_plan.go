package forms

import (
	"cmp"
	"reflect"
	"time"

	"fleetd/fleet/campaign"
)

// PlanEquivalent returns the equivalent of a campaign's form. It has only what differs from
// [campaign.DefaultPlan].
func PlanEquivalent(p campaign.Plan, start bool) Equivalent {
	body := planBody(p)
	for name, value := range planBody(campaign.DefaultPlan()) {
		if reflect.DeepEqual(body[name], value) {
			delete(body, name)
		}
	}
	body["name"], body["release_id"] = p.Name, p.Release.String()
	if len(p.Devices) > 0 {
		body["devices"] = p.Devices
	} else {
		body["q"] = p.Query
	}
	e := Equivalent{Operation: "create-campaign", Method: "POST", Path: "/campaigns", Body: body,
		Stdin: text(body), Args: []string{"campaign", "create", "--plan=/dev/stdin"}}
	if start {
		e.Args = append(e.Args, "--start")
	}
	return e
}

// planBody returns the members of a plan in REST, apart from its name, release and audience.
func planBody(p campaign.Plan) map[string]any {
	return map[string]any{
		"mode": string(p.Mode), "pull_now": p.PullNow, "waves": each(p.Waves, waveBody), "supersede": p.Supersede,
		"allow_downgrade": p.AllowDowngrade, "continuous": p.Continuous, "max_devices": p.MaxDevices,
		"max_in_flight": p.MaxInFlight, "max_per_minute": p.MaxPerMinute, "abort_rules": each(p.AbortRules, ruleBody),
		"windows": each(p.Windows, windowBody), "jitter_ms": p.Jitter.Milliseconds(), "start_at": momentBody(p.StartAt),
		"end_at": momentBody(p.EndAt), "end_behavior": string(p.EndBehavior),
		"health_checks": each(p.HealthChecks, checkBody), "forbid_removed": append([]string{}, p.ForbidRemoved...),
		"min_heap_percent": p.MinHeapPercent, "max_reconnects": p.MaxReconnects,
		"approval_required": p.ApprovalRequired, "max_attempts": p.MaxAttempts,
	}
}

func waveBody(w campaign.WavePlan) map[string]any {
	body := map[string]any{"name": w.Name, "success_percent": w.SuccessPercent, "min_sample": w.MinSample,
		"soak_ms": w.Soak.Milliseconds(), "gate": string(w.Gate)}
	switch {
	case len(w.Devices) > 0:
		body["devices"] = w.Devices
	case w.Count > 0:
		body["count"] = w.Count
	default:
		body["percent"] = w.Percent
	}
	return body
}

func ruleBody(r campaign.AbortRule) map[string]any {
	return map[string]any{"class": r.Class, "min_executed": r.MinExecuted, "percent": r.Percent,
		"measure": string(cmp.Or(r.Measure, campaign.MeasureBound)), "scope": string(r.Scope), "wave": r.Wave,
		"action": string(r.Action)}
}

func windowBody(w campaign.Window) map[string]any {
	return map[string]any{"cron": w.Cron, "duration_ms": w.Duration.Milliseconds(), "time_zone": w.TimeZone}
}

func checkBody(c campaign.HealthCheck) map[string]any {
	body := map[string]any{"tool": c.Tool, "retries": c.Retries}
	if len(c.Arguments) > 0 {
		body["arguments"] = c.Arguments
	}
	if len(c.Assert) > 0 {
		body["assert"] = each(c.Assert, func(a campaign.Assertion) map[string]any {
			assertion := map[string]any{"path": a.Path, "op": string(a.Op)}
			if len(a.Value) > 0 {
				assertion["value"] = a.Value
			}
			return assertion
		})
	}
	return body
}

func momentBody(t *time.Time) any {
	if t == nil {
		return nil
	}
	return t.UTC().Format(time.RFC3339)
}

func each[T any](list []T, body func(T) map[string]any) []map[string]any {
	all := make([]map[string]any, len(list))
	for i, v := range list {
		all[i] = body(v)
	}
	return all
}
