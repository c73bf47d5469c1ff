package api

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
)

// Three heartbeats, a job and a configuration, as the included firmware sends them.
func (w *world) report(id fleet.DeviceID, now time.Time) {
	for i, ago := range []time.Duration{2 * time.Hour, time.Hour, 0} {
		w.reports.Notified(id, "notifications/telemetry",
			fmt.Appendf(nil, `{"uptime_s":%d,"at":%d,"version":"1.4.2","reset_reason":"power_on","boots":9,
			"crashes":1,"reconnects":3,"config_version":4,"heap":{"free":%d,"min":90000,"largest":60000},"queue":{"waiting":2,"dropped":1},
			"network":{"ip":"192.0.2.7","ssid":"work\u0007shop","rssi_dbm":%d,"channel":6},"slot":{"label":"ota_1","state":"valid"},"temperature_dc":415,"core_dump":true,"stacks":{"fleet":2100,"fleet_work":480}}`,
				7200+i*3600, now.Add(-ago).UnixMilli(), 100_000-i, -60-i))
	}
	w.reports.Notified(id, "notifications/job", json.RawMessage(`{"job":"night","kind":"upgrade","state":"accepted"}`))
	w.reports.Notified(id, "notifications/job",
		json.RawMessage(`{"job":"night","kind":"upgrade","state":"failed","code":"checksum","reason":"not what was announced"}`))
	w.reports.Notified(id, "notifications/config",
		json.RawMessage(`{"config":{"version":4,"on_trial":true,"reverted":3,"values":{"heartbeat_s":60,"log":"warn","quiet":false}}}`))
}

func TestReports(t *testing.T) {
	w := newWorld(t)
	now := time.Now()
	lines := w.listen(t, "?kind=vitals,job,config&device=a0:85:e3:11:22:33", w.tokens[fleet.RoleViewer])
	w.report(unit, now)
	events := eventsByKind(t, lines, 3)
	if events["vitals"].DeviceID != unit || events["job"].JobID != "night" || events["config"].DeviceID != unit {
		t.Errorf("events: %+v", events)
	}

	v := decode[vitalsView](t, w.get(t, "/devices/a0:85:e3:11:22:33/vitals"), http.StatusOK)
	if v.UptimeMS != 14_400_000 || v.Version != "1.4.2" || v.Boots != 9 || v.Heap.Free != 99_998 || v.Queue.Waiting != 2 ||
		*v.Network.RSSIDBM != -62 ||
		v.Network.SSID != "workshop" || v.Slot != (slotView{"ota_1", "valid"}) || *v.TemperatureC != 41.5 || !v.CoreDump ||
		len(v.Stacks) != 2 || v.Stacks["fleet_work"] != 480 ||
		v.SafeMode ||
		v.At.UnixMilli() != now.UnixMilli() {
		t.Errorf("vitals: %+v", v)
	}
	fleettest.Eventually(t, "the history has its points", func() bool {
		points := decode[list[vitalsPointView]](t, w.get(t, "/devices/a085e3112233/vitals/history"), http.StatusOK).Items
		return len(points) == 3 && points[2].HeapFree == 99_998 && *points[0].RSSIDBM == -60 && points[1].Beats == 1
	})
	day := "/devices/a085e3112233/vitals/history?step_ms=86400000&since=" + now.Add(-4*time.Hour).UTC().Format(
		time.RFC3339)
	if points := decode[list[vitalsPointView]](t, w.get(t, day), http.StatusOK).Items; len(points) == 0 ||
		len(points) > 2 || points[0].HeapFree < 99_998 {
		t.Errorf("in steps of a day: %+v", points)
	}

	for q, want := range map[string]int{"core_dump": 1, "safe_mode": 0, "-core_dump": 2} {
		if devices := decode[list[deviceView]](t, w.get(t, "/devices?q="+q), http.StatusOK).Items; len(devices) != want {
			t.Errorf("%d devices are %s, want %d", len(devices), q, want)
		}
	}
	jobs := decode[list[jobView]](t, w.get(t, "/devices/a085e3112233/jobs"), http.StatusOK).Items
	if len(jobs) != 1 || jobs[0].State != fleet.JobFailed || jobs[0].Code != "checksum" || jobs[0].FinishedAt == nil ||
		jobs[0].Deployment != nil {
		t.Errorf("jobs: %+v", jobs)
	}
	c := decode[configView](t, w.get(t, "/devices/a085e3112233/config"), http.StatusOK)
	if c.Version != 4 || !c.OnTrial || c.Reverted != 3 ||
		string(c.Values) != `{"heartbeat_s":60,"log":"warn","quiet":false}` {
		t.Errorf("configuration: %+v %s", c, c.Values)
	}
}

// eventsByKind reads events until it has one of each of n kinds.
func eventsByKind(t *testing.T, lines *bufio.Scanner, n int) map[string]eventView {
	t.Helper()
	events := map[string]eventView{}
	for len(events) < n {
		kind, e := next(t, lines)
		events[kind] = e
	}
	return events
}

// A device with stock firmware has no reports, which differs from a device that does not exist.
func TestNoReports(t *testing.T) {
	w := newWorld(t)
	for path, code := range map[string]string{"/vitals": "no_vitals", "/vitals/history": "no_vitals",
		"/config": "no_config"} {
		r := w.get(t, "/devices/"+string(unit)+path)
		if p := r.problem(t); r.status != http.StatusNotFound || p.Code != code || !strings.Contains(p.Detail,
			"stock firmware") {
			t.Errorf("%s answered %d %s", path, r.status, r.body)
		}
		r = w.get(t, "/devices/a085e3aaaaaa"+path)
		if p := r.problem(t); r.status != http.StatusNotFound || p.Code != "unknown_device" {
			t.Errorf("%s of no device answered %d %s", path, r.status, r.body)
		}
	}
	if jobs := decode[list[jobView]](t, w.get(t, "/devices/"+string(unit)+"/jobs"), http.StatusOK).Items; len(jobs) != 0 {
		t.Errorf("jobs: %+v", jobs)
	}
	if r := w.get(t, "/devices/a085e3aaaaaa/jobs"); r.status != http.StatusNotFound ||
		r.problem(t).Code != "unknown_device" {
		t.Errorf("jobs of no device: %d %s", r.status, r.body)
	}
	for _, query := range []string{"?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "?since=2020-01-01T00:00:00Z",
		"?step_ms=-1", "?since=yesterday"} {
		if r := w.get(t, "/devices/"+string(unit)+"/vitals/history"+query); r.status != http.StatusUnprocessableEntity {
			t.Errorf("%s answered %d %s", query, r.status, r.body)
		}
	}
}

// Summaries of core dumps, jobs and configurations count as results of tools: a model that may not
// call these tools does not see them, on no page, in no timeline, as no event.
func TestModelsSeeNoReportsOfOtherTools(t *testing.T) {
	w := newWorld(t)
	device := "/devices/" + string(unit)
	tokens := map[string]string{"program": w.tokens[fleet.RoleViewer]}
	for name, tools := range map[string][]string{"none": {"self.nothing"}, "all": {"*"},
		"dumps": {fleet.ToolCoreDumpInfo}, "configs": {"self.config.*"}} {
		tokens[name] = w.model(t, operator.TokenRequest{Name: name, Role: fleet.RoleOperator, Tools: tools})
	}
	streams := map[string]*bufio.Scanner{}
	for name, token := range tokens {
		streams[name] = w.listen(t, "?kind=core_dump,job,config,device", token)
	}
	w.report(unit, time.Now())
	dump := w.coreDump(t, unit, "task wifi at 0x42")
	w.events.Publish(fleet.Event{Kind: fleet.EventCoreDump, Device: unit, Subject: dump})
	fleettest.Eventually(t, "the configuration is known", func() bool {
		return w.get(t, device+"/config").status == http.StatusOK
	})

	for name, want := range map[string]struct{ dump, config, job bool }{"program": {true, true, true}, "none": {},
		"all": {dump: true, config: true}, "dumps": {dump: true}, "configs": {config: true}} {
		get := func(path string) reply {
			return w.as(t, "", "GET", path, "", "Authorization", "Bearer "+tokens[name])
		}
		sees := func(what, path, text string, want bool) {
			t.Helper()
			if r := get(path); strings.Contains(string(r.body), text) != want {
				t.Errorf("%s: %s sees %s: %v, want %v: %d %s", path, name, what, !want, want, r.status, r.body)
			}
		}
		sees("the core dump", device+"/core-dumps", dump, want.dump)
		sees("the core dump", "/core-dumps/"+dump, `"device_id"`, want.dump)
		sees("the core dump", device+"/timeline", `"ref":"`+dump, want.dump)
		sees("the configuration", device+"/config", "heartbeat_s", want.config)
		sees("the configuration", device+"/timeline", `"configured"`, want.config)
		sees("the job", device+"/jobs", "not what was announced", want.job)
		seen := map[string]bool{}
		w.events.Publish(fleet.Event{Kind: fleet.EventDevice, Device: unit}) // visible to all
		for lines := streams[name]; lines.Scan() && !strings.Contains(lines.Text(), `"kind":"device"`); {
			for _, kind := range []string{"core_dump", "job", "config"} {
				seen[kind] = seen[kind] || strings.Contains(lines.Text(), `"kind":"`+kind+`"`)
			}
		}
		if seen["core_dump"] != want.dump || seen["job"] != want.job || seen["config"] != want.config {
			t.Errorf("events that %s sees: %v", name, seen)
		}
	}
}
