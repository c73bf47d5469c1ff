package telemetry_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/fleet/telemetry"
)

// One operation is a heartbeat of one of 50,000 devices, from the broker to PostgreSQL: latest
// vitals and history. Such a fleet sends 50,000 per minute.
func BenchmarkHeartbeats(b *testing.B) {
	const devices = 50_000
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	r := telemetry.NewReports(telemetry.ReportsOptions{Store: postgres.New(pgtest.New(b), postgres.Options{}),
		Events: &fleet.Events{},
		Now:    func() time.Time { return now }, WriteEvery: time.Hour})
	ids := make([]fleet.DeviceID, devices)
	for i := range ids {
		ids[i] = fleet.DeviceID(fmt.Sprintf("a085e3%06x", i))
	}
	ctx, stop := context.WithCancel(context.Background())
	stop() // each Run writes the pending reports once
	n := 0
	for b.Loop() {
		r.Notified(ids[n%devices], "notifications/telemetry", heartbeat(n/devices*60+100))
		if n++; n%(devices/30) == 0 { // two seconds' worth
			now = now.Add(2 * time.Second)
			if err := r.Run(ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
	if c := r.Count(telemetry.ReportTelemetry); c.Accepted != int64(n) {
		b.Errorf("of %d heartbeats: %+v", n, c)
	}
}

// heartbeat returns the heartbeat of the included firmware.
func heartbeat(uptime int) json.RawMessage {
	return fmt.Appendf(nil, `{"uptime_s":%d,"version":"1.4.2","reset_reason":"power_on","boots":12,"crashes":0,"reconnects":3,"config_version":4,`+
		`"heap":{"free":143220,"min":98112,"largest":65536},"queue":{"waiting":0,"dropped":0},`+
		`"network":{"ip":"192.0.2.17","ssid":"workshop","rssi_dbm":-61,"channel":6},"slot":{"label":"ota_0","state":"valid"},"temperature_dc":415,"core_dump":false}`, uptime)
}
