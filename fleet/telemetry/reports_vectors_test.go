package telemetry

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"fleetd/fleet"
)

// One table tests both ends: the firmware's own tests use the same bytes.
func TestReportsOfTheIncludedFirmware(t *testing.T) {
	data, err := os.ReadFile("../../firmware/host/tests/vectors/notifications.json")
	if err != nil {
		t.Fatal(err)
	}
	var table struct{ Cases []struct{ Name, Wire string } }
	if err := json.Unmarshal(data, &table); err != nil {
		t.Fatal(err)
	}
	want := firmwareReports()
	for _, c := range table.Cases {
		t.Run(c.Name, func(t *testing.T) {
			if diff := cmp.Diff(want[c.Name], readReport(t, c.Wire)); diff != "" {
				t.Error(diff)
			}
		})
		delete(want, c.Name)
	}
	for name := range want {
		t.Errorf("the firmware does not send %q any more", name)
	}
}

// readReport parses a message as the broker delivers it.
func readReport(t *testing.T, wire string) any {
	t.Helper()
	var message struct {
		Payload struct {
			Method string
			Params json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(wire), &message); err != nil {
		t.Fatal(err)
	}
	var report any
	var ok bool
	switch params := message.Payload.Params; message.Payload.Method {
	case "notifications/telemetry":
		report, ok = parseTelemetry(params, reportedAt)
	case "notifications/job":
		report, ok = parseJob("d", params, reportedAt)
	case "notifications/config":
		var p struct{ Config json.RawMessage }
		if err := json.Unmarshal(params, &p); err != nil {
			t.Fatal(err)
		}
		report, ok = ParseConfig(p.Config, reportedAt)
	case "notifications/log":
		report, ok = readLogReport(params)
	}
	if !ok {
		t.Fatalf("not understood: %s", wire)
	}
	return report
}

func firmwareReports() map[string]any {
	at, jobAt := reportedAt, time.UnixMilli(1795262463000).UTC()
	job := func(id, kind string, state fleet.JobState) Job {
		return Job{ID: id, Device: "d", Kind: kind, State: state, UpdatedAt: jobAt}
	}
	accepted := job("01a1fc6b-6015-711c-9d5d-5b739ab112aa.2", "upgrade", fleet.JobAccepted)
	accepted.Deployment, accepted.StartedAt = uuid.MustParse("01a1fc6b-6015-711c-9d5d-5b739ab112aa"), jobAt
	progress := job("j", "upgrade", fleet.JobProgress)
	progress.Percent = 45
	done := job("j", "rollback", fleet.JobDone)
	done.Percent, done.FinishedAt = 100, &jobAt
	failed := job("j", "upgrade", fleet.JobFailed)
	failed.Code, failed.Reason, failed.FinishedAt = "corrupt", "the SHA-256 is not the stated one", &jobAt
	noClock := failed
	noClock.Code, noClock.Reason, noClock.UpdatedAt, noClock.FinishedAt = "io", `"\`, at, &at

	birth := Vitals{At: time.UnixMilli(1795262462000).UTC(), Version: "1.0.0", ResetReason: "power_on", Boots: 1,
		HeapFree: 150000, HeapMin: 120000,
		HeapLargest: 90000, IP: "192.0.2.27", SSID: "lab", RSSI: ptr(-52), Channel: 6, SlotLabel: "ota_0",
		SlotState: "valid", Temperature: ptr(41.5)}
	crashed := birth
	crashed.At, crashed.Uptime = time.UnixMilli(1795262520965).UTC(), 58*time.Second
	crashed.ResetReason, crashed.Boots, crashed.Crashes, crashed.SafeMode, crashed.CoreDump = "panic", 12, 3, true, true
	crashed.SSID, crashed.SlotState = `café "1"`, "pending_verify"
	stacked := birth
	stacked.Stacks = map[string]int64{"fleet": 2100, "fleet_work": 1480, "IDLE0": 612}
	bare := birth
	bare.At, bare.IP, bare.SSID, bare.RSSI, bare.Channel = at, "", "", nil, 0

	set := json.RawMessage(`{"allow_http":false,"heartbeat_s":30,"log_level":"warn","telemetry":true,"url_hosts":"a.example"}`)
	defaults := json.RawMessage(`{"allow_http":false,"heartbeat_s":60,"log_level":"info","telemetry":true,"url_hosts":""}`)

	log := LogReport{Next: 10, Dropped: 3}
	for n := uint32(3); n < 9; n++ {
		log.Lines = append(log.Lines, LogLine{Number: n, Uptime: time.Duration(2000+n) * time.Millisecond, Level: "warn",
			Tag:  "wifi",
			Text: "beacon lost " + string('0'+rune(n)) + ` "" café`})
	}
	log.Lines = append(log.Lines, LogLine{Number: 9, Uptime: 4 * time.Second, Level: "error"})

	return map[string]any{
		"telemetry: birth":                  birth,
		"telemetry: on trial after crashes": crashed,
		"telemetry: kept while offline": Vitals{At: crashed.At, Uptime: crashed.Uptime, Version: "1.0.0",
			ResetReason: "power_on", Boots: 1, HeapFree: 150000,
			HeapMin: 120000, HeapLargest: 90000},
		"telemetry: stacks":                     stacked,
		"telemetry: no clock, no network":       bare,
		"job: accepted":                         accepted,
		"job: progress":                         progress,
		"job: done":                             done,
		"job: failed":                           failed,
		"job: failed, no clock":                 noClock,
		"config: on trial":                      Config{Version: 4, OnTrial: true, Values: set, At: at},
		"config: confirmed":                     Config{Version: 4, Values: set, At: at},
		"config: taken back":                    Config{Reverted: 4, Values: defaults, At: at},
		"log: lines, after some that were lost": log,
	}
}
