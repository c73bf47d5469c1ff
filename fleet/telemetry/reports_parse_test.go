package telemetry

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"fleetd/fleet"
)

var reportedAt = time.Date(2026, 11, 21, 12, 2, 3, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

func TestParseTelemetry(t *testing.T) {
	tests := []struct {
		name, params string
		want         *Vitals // nil: no report
	}{
		{"all that the included firmware tells", `{"uptime_s":3600,"at":1795262462000,"version":"1.4.2","reset_reason":"panic","boots":12,"crashes":2,"reconnects":3,
			"safe_mode":true,"config_version":4,"heap":{"free":143220,"min":98112,"largest":65536},"queue":{"waiting":1,"dropped":7},
			"network":{"ip":"192.0.2.17","ssid":"workshop","rssi_dbm":-61,"channel":6},"slot":{"label":"ota_0","state":"pending_verify"},
			"temperature_dc":-15,"core_dump":true,"birth":true}`,
			&Vitals{At: time.UnixMilli(1795262462000).UTC(), Uptime: time.Hour, Version: "1.4.2", ResetReason: "panic",
				Boots: 12, Crashes: 2, Reconnects: 3,
				SafeMode: true, ConfigVersion: 4, HeapFree: 143220, HeapMin: 98112, HeapLargest: 65536, QueueWaiting: 1,
				QueueDropped: 7, IP: "192.0.2.17",
				SSID: "workshop", RSSI: ptr(-61), Channel: 6, SlotLabel: "ota_0", SlotState: "pending_verify",
				Temperature: ptr(-1.5), CoreDump: true}},
		{"the least", `{"uptime_s":0}`, &Vitals{At: reportedAt}},
		{"wrong types are missing", `{"uptime_s":7,"version":5,"boots":"12","safe_mode":1,"core_dump":"true","heap":[1],"queue":null,"network":"x",
			"slot":{"label":{},"state":7},"temperature_dc":"hot","crashes":null,"reconnects":true}`, &Vitals{At: reportedAt,
			Uptime: 7 * time.Second}},
		{"numbers beyond sense are missing", `{"uptime_s":7,"boots":-1,"crashes":99999999999999999999999,"reconnects":1e300,"heap":{"free":-5,"min":4294967296,"largest":1.9e3},
			"network":{"rssi_dbm":-9000,"channel":-1},"temperature_dc":99999}`, &Vitals{At: reportedAt, Uptime: 7 * time.Second,
			HeapLargest: 1900}},
		{"text is cleaned and cut", `{"uptime_s":7,"version":"1\u0000.2\u202e","reset_reason":"` + strings.Repeat("ä", 50) +
			`","network":{"ssid":"\ud800caf\u00e9\n"}}`,
			&Vitals{At: reportedAt, Uptime: 7 * time.Second, Version: "1.2", ResetReason: strings.Repeat("ä", 32),
				SSID: "café"}},
		{"a clock in the future does not count", `{"uptime_s":7,"at":1795262524000}`, &Vitals{At: reportedAt,
			Uptime: 7 * time.Second}},
		{"nor one that was never set", `{"uptime_s":7,"at":12}`, &Vitals{At: reportedAt, Uptime: 7 * time.Second}},
		{"the same name twice", `{"uptime_s":7,"uptime_s":8}`, &Vitals{At: reportedAt, Uptime: 8 * time.Second}},
		{"no uptime", `{"version":"1"}`, nil},
		{"an uptime of a text", `{"uptime_s":"7"}`, nil},
		{"an uptime that cannot be", `{"uptime_s":-1}`, nil},
		{"no object", `[1,2]`, nil},
		{"null", `null`, nil},
		{"nothing", ``, nil},
		{"no JSON", `{"uptime_s":7`, nil},
		{"NaN", `{"uptime_s":NaN}`, nil},
		{"deep", `{"uptime_s":7,"heap":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := parseTelemetry(json.RawMessage(tt.params), reportedAt)
			if ok != (tt.want != nil) {
				t.Fatalf("understood: %t, %+v", ok, got)
			}
			if ok {
				if diff := cmp.Diff(*tt.want, got); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestParseJob(t *testing.T) {
	deployment := uuid.MustParse("01a1fc6b-6015-711c-9d5d-5b739ab112aa")
	at := reportedAt
	tests := []struct {
		name, params string
		want         *Job
	}{
		{"accepted", `{"job":"j","kind":"upgrade","state":"accepted"}`, &Job{ID: "j", Kind: "upgrade",
			State: fleet.JobAccepted, StartedAt: at, UpdatedAt: at}},
		{"progress", `{"job":"01a1fc6b-6015-711c-9d5d-5b739ab112aa.2","kind":"upgrade","state":"progress","percent":45}`,
			&Job{ID: "01a1fc6b-6015-711c-9d5d-5b739ab112aa.2", Kind: "upgrade", State: fleet.JobProgress, Percent: 45,
				Deployment: deployment, UpdatedAt: at}},
		{"more than all", `{"job":"j","state":"progress","percent":4500}`, &Job{ID: "j", State: fleet.JobProgress,
			Percent: 100, UpdatedAt: at}},
		{"done", `{"job":"j","kind":"rollback","state":"done","code":"x"}`,
			&Job{ID: "j", Kind: "rollback", State: fleet.JobDone, Percent: 100, UpdatedAt: at, FinishedAt: &at}},
		{"failed", `{"job":"j","kind":"upgrade","state":"failed","code":"checksum","reason":"a\tb` + strings.Repeat("c",
			300) + `","percent":"x"}`,
			&Job{ID: "j", Kind: "upgrade", State: fleet.JobFailed, Code: "checksum", Reason: "ab" + strings.Repeat("c", 198),
				UpdatedAt: at, FinishedAt: &at}},
		{"no name", `{"state":"done"}`, nil},
		{"a name too long to be kept apart", `{"job":"` + strings.Repeat("j", 49) + `","state":"done"}`, nil},
		{"no state", `{"job":"j"}`, nil},
		{"an unknown state", `{"job":"j","state":"DONE"}`, nil},
		{"no object", `"j"`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := parseJob("d", json.RawMessage(tt.params), at)
			if ok != (tt.want != nil) {
				t.Fatalf("understood: %t, %+v", ok, got)
			}
			if ok {
				tt.want.Device = "d"
				if diff := cmp.Diff(*tt.want, got); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestParseUpgradeJob(t *testing.T) {
	id := uuid.MustParse("01a1fc6b-6015-711c-9d5d-5b739ab112aa")
	if d, n, ok := fleet.ParseUpgradeJob(fleet.UpgradeJobName(id, 12)); d != id || n != 12 || !ok {
		t.Errorf("%s, %d, %t", d, n, ok)
	}
	for _, job := range []string{"", "poll", id.String(), id.String() + ".", id.String() + ".0", id.String() + ".-1",
		id.String() + ".01", id.String() + ".1.1",
		strings.ToUpper(id.String()) + ".1", "{" + id.String() + "}.1", strings.ReplaceAll(id.String(), "-", "") + ".1",
		id.String() + ".99999999999999999999"} {
		if d, n, ok := fleet.ParseUpgradeJob(job); ok {
			t.Errorf("%q is %s, %d", job, d, n)
		}
	}
	if longest := fleet.UpgradeJobName(id, 99_999_999_999); len(longest) > maxJobID {
		t.Errorf("%d bytes", len(longest))
	}
}

func TestParseDeviceConfig(t *testing.T) {
	// the same name many times
	many := `{"version":1,"values":{` + strings.TrimSuffix(strings.Repeat(`"k":1,`, 40), ",") + `}}`
	tests := []struct {
		name, raw string
		want      *Config
	}{
		{"whole", `{"version":4,"on_trial":true,"reverted":3,"values":{"heartbeat_s":60,"log":"warn","quiet":false}}`,
			&Config{Version: 4, OnTrial: true, Reverted: 3, Values: json.RawMessage(
				`{"heartbeat_s":60,"log":"warn","quiet":false}`)}},
		{"never changed", `{"version":0,"values":{}}`, &Config{Values: json.RawMessage(`{}`)}},
		{"values of other types are left out",
			`{"version":1,"values":{"a":1.5,"b":null,"c":[1],"d":{"e":1},"f":99999999999999999999,"g":-7,"":1,"h\u0000":1,"` +
				strings.Repeat("k", 49) + `":1,"i":"x\u0000y"}}`,
			&Config{Version: 1, Values: json.RawMessage(`{"g":-7,"i":"xy"}`)}},
		{"one name many times", many, &Config{Version: 1, Values: json.RawMessage(`{"k":1}`)}},
		{"no version", `{"values":{}}`, nil},
		{"a negative version", `{"version":-1,"values":{}}`, nil},
		{"no values", `{"version":1}`, nil},
		{"values are a list", `{"version":1,"values":[]}`, nil},
		{"null", `null`, nil},
		{"nothing", ``, nil},
		{"too long", `{"version":1,"values":{"a":"` + strings.Repeat("x", maxConfigBytes) + `"}}`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := ParseConfig(json.RawMessage(tt.raw), reportedAt)
			if ok != (tt.want != nil) {
				t.Fatalf("understood: %t, %+v", ok, got)
			}
			if ok {
				tt.want.At = reportedAt
				if diff := cmp.Diff(*tt.want, got); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

// Whatever a device reports, the stored part is within bounds.
func FuzzReports(f *testing.F) {
	for _, s := range []string{`{"uptime_s":1,"at":1795262462000,"heap":{"free":1},"network":{"ssid":"a","rssi_dbm":-1}}`,
		`{"job":"j","state":"failed","reason":"r","percent":3}`,
		`{"version":1,"values":{"a":1,"b":"c","d":true}}`, `{"uptime_s":-0}`, `{"uptime_s":1e2}`, `[]`, ``,
		`{"job":"01a1fc6b-6015-711c-9d5d-5b739ab112aa.1","state":"done"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if v, ok := parseTelemetry(raw, reportedAt); ok {
			texts := []string{v.Version, v.ResetReason, v.IP, v.SSID, v.SlotLabel, v.SlotState}
			for _, s := range texts {
				wantClean(t, s, maxVitalText)
			}
			if v.At.After(reportedAt) || reportedAt.Sub(v.At) > reportMemory || v.Uptime < 0 || min(v.Boots, v.Crashes,
				v.Reconnects, v.HeapFree, v.HeapMin, v.HeapLargest,
				v.QueueWaiting, v.QueueDropped, v.ConfigVersion, int64(v.Channel)) < 0 || max(v.Boots, v.HeapFree,
				v.Reconnects) > maxVitalCount {
				t.Errorf("%+v", v)
			}
			if p := v.point(false); p.At.After(v.At) || v.At.Sub(p.At) >= VitalsStep {
				t.Errorf("%v lies in the step of %v", v.At, p.At)
			}
		}
		if j, ok := parseJob("d", raw, reportedAt); ok {
			wantClean(t, j.ID, maxJobID)
			wantClean(t, j.Code+j.Kind, 2*maxJobField)
			wantClean(t, j.Reason, maxJobReason)
			if j.Percent < 0 || j.Percent > 100 || j.State.Final() != (j.FinishedAt != nil) || j.ID == "" {
				t.Errorf("%+v", j)
			}
		}
		if c, ok := ParseConfig(raw, reportedAt); ok {
			again, ok := ParseConfig(json.RawMessage(`{"version":1,"values":`+string(c.Values)+`}`), reportedAt)
			if !ok || string(again.Values) != string(c.Values) {
				t.Errorf("%s, read again: %s", c.Values, again.Values)
			}
		}
	})
}

func wantClean(t *testing.T, s string, limit int) {
	t.Helper()
	if len(s) > limit || !utf8.ValidString(s) || fleet.CleanText(s, limit) != s {
		t.Errorf("%q", s)
	}
}
