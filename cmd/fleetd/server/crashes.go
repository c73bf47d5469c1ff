package server

import (
	"context"
	"encoding/json"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

// openCrashes starts what fetches core dumps and logs. Devices report before
// that: what they said of themselves is told again with the next heartbeat.
func (s *Server) openCrashes() {
	dumps := telemetry.NewCoreDumps(telemetry.CoreDumpsOptions{Links: s.store, Store: s.store, Blobs: s.blobs,
		Calls:   s.calls,
		Devices: s.store, Inventories: s.store, Vitals: s.reports, Presences: s.presences, Events: s.events,
		Collect: s.cfg.CollectDumps, Keep: s.cfg.Retention, Log: s.log})
	logs := telemetry.NewLogs(telemetry.LogsOptions{Calls: s.calls, Events: s.events, Log: s.log})
	s.coreDumps.Store(dumps)
	s.logs.Store(logs)
	s.stages.run("core dumps", dumps.Run)
	s.stages.run("logs of devices", logs.Run)
}

// crashWatch shows vitals to those who look for crashes, as they are stored.
type crashWatch struct {
	telemetry.ReportStore
	server *Server
}

func (w crashWatch) SaveVitals(ctx context.Context, latest map[fleet.DeviceID]telemetry.Vitals) error {
	if err := w.ReportStore.SaveVitals(ctx, latest); err != nil {
		return err
	}
	if dumps := w.server.coreDumps.Load(); dumps != nil {
		dumps.Told(latest)
	}
	return nil
}

func (s *Server) logged(id fleet.DeviceID, params json.RawMessage) {
	if logs := s.logs.Load(); logs != nil {
		logs.OnLog(id, params)
	}
}
