package ui_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// vitals returns the vitals of a healthy device.
func vitals() telemetry.Vitals {
	return telemetry.Vitals{At: now.Add(-20 * time.Second), Uptime: 76*time.Hour + 12*time.Minute, Version: "2.4.2",
		ResetReason: "software",
		Boots:       41, Reconnects: 3, ConfigVersion: 7, HeapFree: 148 << 10, HeapMin: 96 << 10, HeapLargest: 110 << 10,
		IP:   "192.168.4.27",
		SSID: "workshop-2F", RSSI: ptr(-63), Channel: 6, SlotLabel: "ota_1", SlotState: "valid", Temperature: ptr(41.5),
		Stacks: map[string]int64{"fleet": 2100, "fleet_work": 480, "IDLE0": 612}}
}

// vitalsPoints returns a device's last days, with silence, restarts and a leak.
func vitalsPoints(r ui.HealthRange) (all []telemetry.VitalsPoint) {
	up := 0
	for i := range int(r.Span / r.Step) {
		p := telemetry.VitalsPoint{At: now.Add(-r.Span).Truncate(r.Step).Add(time.Duration(i) * r.Step), Beats: 5,
			Restarted: i%61 == 40}
		if i%97 > 70 && i%97 < 79 {
			continue
		}
		if up++; p.Restarted {
			up = 0
		}
		p.Uptime = time.Duration(up) * r.Step
		p.HeapFree = int64(160<<10-up*700) + int64(9000*math.Sin(float64(i)/3))
		p.HeapMin, p.HeapLargest = int64(120<<10-up*700), p.HeapFree*2/3
		p.RSSI, p.Temperature = ptr(-58-i%13-i/12), ptr(38+6*math.Sin(float64(i)/24))
		p.Reconnects = int64(up / 9)
		all = append(all, p)
	}
	return all
}

func configValues(object string) telemetry.Config {
	return telemetry.Config{Version: 7, Values: json.RawMessage(object), At: now.Add(-40 * time.Second)}
}

const usualConfig = `{"heartbeat_s":60,"telemetry":true,"log_level":"info","url_hosts":"","allow_http":false}`

func deviceJobs() ui.DeviceJobs {
	deployment := uuid.NewSHA1(uuid.Nil, []byte("deployment"))
	return ui.DeviceJobs{Device: device(0).ID, Always: true, Campaigns: map[uuid.UUID]uuid.UUID{deployment: uuid.NewSHA1(
		uuid.Nil, []byte("campaign"))}, Jobs: []telemetry.Job{
		{ID: deployment.String() + ".2", Kind: "upgrade", State: fleet.JobProgress, Percent: 45, Deployment: deployment,
			StartedAt: now.Add(-70 * time.Second), UpdatedAt: now.Add(-3 * time.Second)},
		{ID: deployment.String() + ".1", Kind: "upgrade", State: fleet.JobFailed, Code: "rolled_back",
			Reason: "no message through the broker within five minutes", StartedAt: now.Add(-90 * time.Minute),
			UpdatedAt: now.Add(-80 * time.Minute), FinishedAt: ago(80 * time.Minute), Deployment: deployment},
		{ID: "4711", Kind: "rollback", State: fleet.JobDone, StartedAt: now.Add(-50 * time.Hour),
			UpdatedAt: now.Add(-50 * time.Hour), FinishedAt: ago(50 * time.Hour)},
		{ID: hostile[2], Kind: hostile[0], State: fleet.JobFailed, Code: hostile[3], Reason: hostile[1] + hostile[2],
			StartedAt: now.Add(-60 * time.Hour), UpdatedAt: now.Add(-60 * time.Hour)},
	}}
}

// healthView returns a page that samples change.
func healthView(r string) ui.HealthPage {
	v, shown := vitals(), ui.ParseHealthRange(r, 24*time.Hour)
	id := device(0).ID
	return ui.HealthPage{
		Head:   head("health"),
		Vitals: ui.DeviceVitals{Device: id, Vitals: &v, Reports: true, Online: true, Heartbeat: time.Minute},
		Trends: ui.HealthTrends{Device: id, Shown: true, Range: shown, To: now, Heartbeat: time.Minute,
			Points: vitalsPoints(shown)},
		Jobs: deviceJobs(),
	}
}

// configSample returns a page of the configuration, changed by a sample.
func configSample(change func(*ui.DeviceConfigView)) templ.Component {
	d, c := device(0), configValues(usualConfig)
	d.Notes = "Moved to the second floor in May.\nPower supply renewed."
	v := ui.NewConfigurationPage(d, head("configuration"))
	v.CanRetire = true
	v.Config = ui.DeviceConfigView{Device: d.ID, Config: &c, Fields: forms.ConfigFields(c.Values), Offers: true,
		CanAct: true}
	if change != nil {
		change(&v.Config)
	}
	v.Head.CanAct = v.Config.CanAct
	return v.Page()
}

func healthSample(change func(*ui.HealthPage)) templ.Component {
	v := healthView("24h")
	if change != nil {
		change(&v)
	}
	return v.Page()
}

func stockHealth(v *ui.HealthPage) {
	*v = ui.HealthPage{Head: v.Head, Vitals: ui.DeviceVitals{Device: v.Vitals.Device},
		Jobs: ui.DeviceJobs{Device: v.Vitals.Device}}
}

func safeMode(v *ui.HealthPage) {
	v.Vitals.Vitals.SafeMode, v.Vitals.Vitals.Crashes, v.Vitals.Vitals.CoreDump = true, 3, true
	v.Vitals.Vitals.ResetReason, v.Vitals.Vitals.Uptime = "panic", 95*time.Second
}

// unfriendly fills all text of a device with hostile text.
func unfriendly(v *ui.HealthPage) {
	reported := v.Vitals.Vitals
	reported.Version, reported.ResetReason, reported.SSID, reported.IP = hostile[0], hostile[3], hostile[1], hostile[4]
	reported.SlotLabel, reported.SlotState = hostile[3], hostile[2]
}

func unfriendlyConfig(v *ui.DeviceConfigView) {
	c := configValues(fmt.Sprintf(
		`{"heartbeat_s":%q,"log_level":"<i>","%s":true,"a\nb":"x\ny","deep":{"a":[1]},"big":12345678901234567890,"none":null,"":"empty"}`, hostile[0], strings.Repeat("k", 200)))
	c.OnTrial, c.Reverted = true, math.MaxInt64
	v.Config, v.Fields = &c, forms.ConfigFields(c.Values)
	v.Last = &ui.ConfigCall{Call: fleet.Call{Tool: fleet.ToolConfigSet, State: fleet.CallToolError,
		Error: &fleet.CallError{Code: fleet.CodeToolError, Message: hostile[0] + hostile[2]}}}
}

func refusedConfig(v *ui.DeviceConfigView) {
	v.Config.Reverted = 9
	v.Last = &ui.ConfigCall{Call: fleet.Call{Tool: fleet.ToolConfigSet, State: fleet.CallToolError,
		Error: &fleet.CallError{Code: fleet.CodeToolError, Message: "heartbeat_s: at least 10"}}}
}

func onTrial(v *ui.DeviceConfigView) {
	v.Config.OnTrial = true
	v.Last = &ui.ConfigCall{Call: fleet.Call{Tool: fleet.ToolConfigSet, State: fleet.CallSucceeded}}
}

var healthSamples = []sample{
	{"health", "/devices/a/health", healthSample(nil), false},
	{"health-1h", "/devices/a/health?range=1h", healthView("1h").Page(), false},
	{"health-7d", "/devices/a/health?range=7d", healthView("7d").Page(), false},
	{"health-30d", "/devices/a/health?range=30d", healthView("30d").Page(), false},
	{"health-stock", "/devices/a/health", healthSample(stockHealth), false},
	{"health-silent", "/devices/a/health", healthSample(func(v *ui.HealthPage) {
		stockHealth(v)
		v.Vitals.Reports, v.Trends.Shown, v.Jobs.Always = true, true, true
		v.Trends.Range, v.Trends.To = ui.ParseHealthRange("", 24*time.Hour), now
	}), false},
	{"health-safe-mode", "/devices/a/health", healthSample(safeMode), false},
	{"health-hostile", "/devices/a/health", healthSample(unfriendly), false},
	{"configuration", "/devices/a/configuration", configSample(nil), false},
	{"configuration-none", "/devices/a/configuration", configSample(func(v *ui.DeviceConfigView) {
		v.Config, v.Fields, v.Offers = nil, nil, false
	}), false},
	{"configuration-hostile", "/devices/a/configuration", configSample(unfriendlyConfig), false},
	{"configuration-refused", "/devices/a/configuration", configSample(refusedConfig), false},
	{"configuration-trial", "/devices/a/configuration", configSample(onTrial), false},
	{"configuration-stale", "/devices/a/configuration", configSample(func(v *ui.DeviceConfigView) {
		v.Running = ptr(int64(6))
	}), false},
	{"configuration-viewer", "/devices/a/configuration", configSample(func(v *ui.DeviceConfigView) { v.CanAct = false }),
		false},
	{"health-bare", "/devices/a/health", healthSample(func(v *ui.HealthPage) {
		v.Vitals.Vitals = &telemetry.Vitals{At: now.Add(-time.Hour), Version: "1"}
		v.Vitals.Muted = true
		v.Trends.Points = []telemetry.VitalsPoint{{At: now.Add(-time.Hour), HeapFree: 5 << 20}}
	}), false},
}

func init() { samples = append(samples, healthSamples...) }
