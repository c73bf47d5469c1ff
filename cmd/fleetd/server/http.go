package server

import (
	"context"
	"net/http"
	"net/url"

	"fleetd/fleet/enrolment"
	"fleetd/web"
	"fleetd/web/api"
	"fleetd/web/device"
	"fleetd/web/ui"
)

// console makes the HTTP server: pages, REST and the device endpoints.
func (s *Server) console(ctx context.Context) (*web.Server, error) {
	answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: s.cfg.MQTTEndpoint, Location: s.zone})
	if err != nil {
		return nil, err
	}
	devices := device.New(device.Options{Enrolments: s.enrolments, Presences: s.presences, Snapshots: s.snapshots,
		CoreDumps: s.coreDumps.Load(), Firmware: s.engine.Load(), Downloads: s.downloads, Answers: answers, Log: s.log})
	s.metrics.countPolls(devices.Stats)
	return web.New(web.Options{
		Devices: s.devices, Calls: s.calls, FanOuts: s.fanOuts, Enrolments: s.enrolments, Rules: s.rules,
		Presences: s.presences,
		Operators: s.operators, Serials: s.serials, Keys: s.keys, MarkProofs: s.cfg.SerialProof == "mark",
		Snapshots: s.snapshots, Firmware: s.firmware, Campaigns: s.campaigns, Pictures: s.store, Stats: s.store,
		Samples: s.store, Reports: s.reports, CoreDumps: s.coreDumps.Load(), Logs: s.logs.Load(), Events: s.events,
		Sessions: s.store.Sessions(), API: s.rest(), DeviceRoutes: devices.Routes, ConnContext: device.WithConn,
		PublicURL: s.cfg.PublicURL, TrustedProxies: s.cfg.trustedProxies,
		EnrolmentMode: s.cfg.enrolmentMode(), Version: s.cfg.Version, System: s.systemFacts(ctx), Log: s.log,
	})
}

// systemFacts are what the settings page says about this process.
func (s *Server) systemFacts(ctx context.Context) []ui.SystemFact {
	var release string
	if err := s.pool.QueryRow(ctx, `SHOW server_version`).Scan(&release); err != nil {
		s.log.Warn("database release unknown", "err", err)
	}
	kind := "PostgreSQL " + release
	if s.cfg.DatabaseURL == "" {
		kind += " (embedded)"
	}
	return []ui.SystemFact{{Key: "node", Value: s.cfg.NodeName}, {Key: "mqtt", Value: s.cfg.MQTTEndpoint},
		{Key: "database", Value: kind}, {Key: "data_dir", Value: s.cfg.DataDir}}
}

func (s *Server) rest() http.Handler {
	return api.New(api.Options{Devices: s.devices, Calls: s.calls, FanOuts: s.fanOuts, Enrolment: s.enrolments,
		Rules: s.rules, Serials: s.serials, Keys: s.keys, Presence: s.presences,
		Operators: s.operators, Snapshots: s.snapshots, Firmware: s.firmware, Campaigns: s.campaigns,
		CoreDumps: s.coreDumps.Load(), SnapshotStore: s.store, Stats: s.store, Samples: s.store, Reports: s.reports,
		Audit:       s.store,
		Idempotency: s.store, Events: s.events, Version: s.cfg.Version, Log: s.log})
}

func (s *Server) publicHost() string {
	u, _ := url.Parse(s.cfg.PublicURL) // check has parsed it
	return u.Host
}
