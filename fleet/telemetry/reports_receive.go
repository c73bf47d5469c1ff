package telemetry

import (
	"encoding/json"
	"fleetd/fleet"
	"time"
)

// maxReport bounds the params of a report; the broker has bounded them before,
// by the size of any message.
const maxReport = 16 << 10

// Notified takes what a device says unasked. It never blocks. What is too much,
// unknown or no report is counted and dropped.
func (r *Reports) Notified(id fleet.DeviceID, method string, params json.RawMessage) {
	kind, known := reportMethods[method]
	if !known {
		r.counts[ReportOther].malformed.Add(1)
		return
	}
	count, now := &r.counts[kind], r.opts.Now().UTC()
	switch {
	case len(params) > maxReport:
		count.malformed.Add(1)
	case !r.may(id, kind, now):
		count.tooMany.Add(1)
	case kind == ReportLog:
		count.taken.Add(1)
		if r.opts.OnLog != nil {
			r.opts.OnLog(id, params)
		}
	default:
		r.take(id, kind, params, now)
	}
}

func (r *Reports) may(id fleet.DeviceID, kind ReportKind, now time.Time) (ok bool) {
	r.reporters.with(id, now, func(d *reporter) { ok = d.may(kind, now) })
	return ok
}

func (r *Reports) take(id fleet.DeviceID, kind ReportKind, params json.RawMessage, now time.Time) {
	var understood, kept bool
	switch kind {
	case ReportTelemetry:
		understood, kept = r.takeTelemetry(id, params, now)
	case ReportJob:
		understood, kept = r.takeJob(id, params, now)
	case ReportConfig:
		f, _ := readFields(params)
		understood, kept = r.takeConfig(id, f["config"], now)
	}
	switch count := &r.counts[kind]; {
	case !understood:
		count.malformed.Add(1)
		r.opts.Log.Debug("report not understood", "device", id, "kind", kind.String(), "bytes", len(params))
	case !kept:
		count.noRoom.Add(1)
	default:
		count.taken.Add(1)
	}
}

func (r *Reports) takeTelemetry(id fleet.DeviceID, params json.RawMessage, now time.Time) (understood, kept bool) {
	v, ok := parseTelemetry(params, now)
	if !ok {
		return false, false
	}
	var restarted bool
	r.reporters.with(id, now, func(d *reporter) { restarted = d.restarted(v) })
	p := v.point(restarted)
	kept = r.vitals.Put(id, v)
	return true, r.points.Put(pointKey{id, p.At.Unix()}, p) && kept
}

func (r *Reports) takeJob(id fleet.DeviceID, params json.RawMessage, now time.Time) (understood, kept bool) {
	j, ok := parseJob(id, params, now)
	if !ok {
		return false, false
	}
	if deployment, attempt, ok := fleet.ParseUpgradeJob(j.ID); ok && r.opts.OnUpgradeJob != nil {
		r.opts.OnUpgradeJob(id, deployment, attempt, j)
	}
	return true, r.jobs.Put(jobKey{id, j.ID}, j)
}

// Called reads the outcome of a call. Devices tell their configuration unasked
// only when it changes: an answer that shows it counts as a report.
func (r *Reports) Called(c *fleet.Call) {
	if c.State == fleet.CallSucceeded && (c.Tool == fleet.ToolConfigGet || c.Tool == fleet.ToolConfigSet) {
		r.takeConfig(c.Device, json.RawMessage(fleet.ResultText(c.Result)), r.opts.Now().UTC())
	}
}

func (r *Reports) takeConfig(id fleet.DeviceID, raw json.RawMessage, now time.Time) (understood, kept bool) {
	c, ok := ParseConfig(raw, now)
	if !ok {
		return false, false
	}
	return true, r.configs.Put(id, c)
}
