package main

import (
	"context"
	"net/http"

	"fleetd/fleet/enrolment"
	"fleetd/web"
	"fleetd/web/api"
	"fleetd/web/device"
	"fleetd/web/ui"
)

// serveHTTP opens the console, REST and the device endpoints.
func (s *server) serveHTTP(ctx context.Context) error {
	answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: s.cfg.MQTTEndpoint, Location: s.zone})
	if err != nil {
		return err
	}
	polls := enrolment.NewBootPolls(enrolment.BootPollsOptions{Enrolments: s.enrolments, Presences: s.presences,
		Offers: s.engine.Load(), Answers: answers, Log: s.log})
	devices := device.New(device.Options{Enrolments: s.enrolments, BootPolls: polls, Snapshots: s.snapshots,
		CoreDumps: s.coreDumps.Load(), Downloads: s.downloads, Log: s.log})
	s.metrics.countPolls(devices.Stats)
	console, err := web.New(web.Options{
		Devices: s.devices, Calls: s.calls, FanOuts: s.fanOuts, Enrolments: s.enrolments, Rules: s.rules,
		Presences: s.presences,
		Operators: s.operators, Serials: s.serials, Keys: s.keys, MarkProofs: s.cfg.SerialProof == "mark",
		Snapshots: s.snapshots, Firmware: s.firmware, Campaigns: s.campaigns, Pictures: s.store, Stats: s.store,
		Samples: s.store, Reports: s.reports, CoreDumps: s.coreDumps.Load(), Logs: s.logs.Load(), Events: s.events,
		Sessions: s.store.Sessions(), API: s.rest(), DeviceRoutes: devices.Routes, ConnContext: device.WithConn,
		PublicURL: s.cfg.PublicURL, TrustedProxies: s.cfg.trustedProxies,
		EnrolmentMode: s.cfg.enrolmentMode(), Version: buildVersion(), System: s.systemFacts(ctx), Log: s.log,
	})
	if err != nil {
		return err
	}
	lingerer := device.NewLingerer(device.LingerOptions{})
	s.metrics.gauge("fleetd_http_lingering", "Connections that devices have yet to close.", nil,
		func() float64 { return float64(lingerer.Waiting()) })
	s.stages.run("http", func(ctx context.Context) error {
		context.AfterFunc(ctx, lingerer.Stop)
		return console.Run(ctx, lingerer.Listener(s.httpListener))
	})
	return nil
}

// systemFacts are what the settings page says about this process.
func (s *server) systemFacts(ctx context.Context) []ui.SystemFact {
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

func (s *server) rest() http.Handler {
	return api.New(api.Options{Devices: s.devices, Calls: s.calls, FanOuts: s.fanOuts, Enrolment: s.enrolments,
		Rules: s.rules, Serials: s.serials, Keys: s.keys, Presence: s.presences,
		Operators: s.operators, Snapshots: s.snapshots, Firmware: s.firmware, Campaigns: s.campaigns,
		CoreDumps: s.coreDumps.Load(), SnapshotStore: s.store, Stats: s.store, Samples: s.store, Reports: s.reports,
		Audit:       s.store,
		Idempotency: s.store, Events: s.events, Version: buildVersion(), Log: s.log})
}
