package api

import (
	"time"

	"fleetd/fleet"
	"fleetd/web/i18n"
)

// because returns the English text of a reason, with times in UTC. Two other fields accompany a
// field with this text: the code, and the code's parameters.
func because(r fleet.Reason) string { return i18n.Because(i18n.English, time.UTC, "reason.", r) }

// paramsOf returns the parameters, never nil.
func paramsOf(r fleet.Reason) map[string]any {
	if r.Params == nil {
		return map[string]any{}
	}
	return r.Params
}
