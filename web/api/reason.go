package api

import (
	"time"

	"fleetd/fleet"
	"fleetd/web/i18n"
)

// because returns the English text of a reason, times in UTC. A field that shows one
// is accompanied by two others: its code, and the code's parameters.
func because(r fleet.Reason) string { return i18n.Because(i18n.English, time.UTC, "reason.", r) }

// paramsOf is never null.
func paramsOf(r fleet.Reason) map[string]any {
	if r.Params == nil {
		return map[string]any{}
	}
	return r.Params
}
