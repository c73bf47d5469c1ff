package i18n

import (
	"strconv"
	"strings"
)

// Names that programs use for fields of a plan or a form, with the messages of their labels on
// pages. The name of a field in a table's row begins with its table.
var fieldLabels = map[string]string{
	"name": "device.name", "reason": "hold.reason", "board": "firmware.upload.board", "version": "devices.col.version",

	"release": "campaign.release", "query": "campaign.filter", "mode": "campaign.mode", "pull_now": "campaign.pull_now",
	"supersede": "campaign.supersede", "allow_downgrade": "campaign.downgrade", "continuous": "campaign.continuous",
	"max_devices": "campaign.max_devices", "max_in_flight": "campaign.in_flight", "max_per_minute": "campaign.per_minute",
	"max_attempts": "campaign.attempts", "jitter_ms": "campaign.jitter", "jitter_ns": "campaign.jitter",
	"start_at": "campaign.start_at", "end_at": "campaign.end_at", "end_behavior": "campaign.end_behavior",
	"waves": "campaign.waves", "abort_rules": "campaign.rules", "windows": "campaign.windows",
	"health_checks": "campaign.health", "forbid_removed": "campaign.forbid", "min_heap_percent": "campaign.heap",
	"max_reconnects": "campaign.reconnects", "approval_required": "campaign.approval",

	"waves.name": "campaign.wave.name", "waves.percent": "campaign.wave.size", "waves.count": "campaign.wave.size",
	"waves.devices": "campaign.wave.size", "waves.success_percent": "campaign.wave.success",
	"waves.min_sample": "campaign.wave.sample", "waves.soak_ms": "campaign.wave.soak", "waves.gate": "campaign.wave.gate",
	"abort_rules.percent": "campaign.rule.percent", "abort_rules.min_executed": "campaign.rule.min",
	"abort_rules.wave": "campaign.rule.wave", "abort_rules.measure": "campaign.rule.measure", "windows.duration_ms": "campaign.win.for",
	"health_checks.tool": "campaign.check.tool", "health_checks.arguments": "campaign.check.args",
	"health_checks.retries": "campaign.check.retries", "assert.path": "campaign.check.path",
}

// term returns the pages' name for the value of a parameter, such as a role or a field, or "" if
// programs and pages use the same name.
func term(l Lang, name, value string) string {
	switch name {
	case "role", "need":
		if l != English && Has("role."+value) { // within an English sentence, roles have the same names as in programs
			return Text(l, "role."+value)
		}
	case "field":
		return fieldTerm(l, "", value)
	}
	return ""
}

// fieldTerm returns the label of a field such as waves[0].percent, with its row. table is the table
// of the field, or "".
func fieldTerm(l Lang, table, field string) string {
	first, rest, _ := strings.Cut(field, ".")
	first, index, isRow := strings.Cut(strings.TrimSuffix(first, "]"), "[")
	row, err := strconv.Atoi(index)
	switch {
	case !isRow && rest == "":
		if table != "" {
			first = table + "." + first
		}
		if key, ok := fieldLabels[first]; ok {
			return "“" + Text(l, key) + "”"
		}
	case !isRow || err != nil:
	case rest == "" && Has("field.row."+first):
		return Text(l, "field.row."+first, "i", row+1)
	case rest != "" && Has("field.in."+first):
		if label := fieldTerm(l, first, rest); label != "" {
			return Text(l, "field.in."+first, "i", row+1, "label", label)
		}
	}
	return ""
}
