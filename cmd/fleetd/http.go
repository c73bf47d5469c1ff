package main

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/web"
	"fleetd/web/api"
	"fleetd/web/device"
)

// serveHTTP opens the console, REST and the device endpoints.
func (s *server) serveHTTP(context.Context) error {
	answers, err := fleet.NewPollAnswers(fleet.PollAnswerOptions{Endpoint: s.cfg.MQTTEndpoint, Location: time.Local})
	if err != nil {
		return err
	}
	devices := device.New(device.Options{Enrolments: s.enrolments, Presences: s.presences, Snapshots: s.snapshots,
		Answers: answers, Log: s.log})
	console, err := web.New(web.Options{
		Devices: s.devices, Calls: s.calls, FanOuts: s.fanOuts, Enrolments: s.enrolments, Presences: s.presences,
		Operators: s.operators, Snapshots: s.snapshots, Pictures: s.store, Stats: s.store, Samples: s.store, Events: s.events,
		Sessions: s.store.Sessions(), API: s.rest(), DeviceRoutes: devices.Routes, PublicURL: s.cfg.PublicURL,
		EnrolmentMode: s.cfg.enrolmentMode(), Version: buildVersion(), Log: s.log,
	})
	if err != nil {
		return err
	}
	s.stages.run("http", func(ctx context.Context) error { return console.Run(ctx, s.httpListener) })
	return nil
}

func (s *server) rest() http.Handler {
	return api.New(api.Options{Devices: s.devices, Calls: s.calls, FanOuts: s.fanOuts, Enrolment: s.enrolments, Presence: s.presences,
		Operators: s.operators, Snapshots: s.snapshots, SnapshotStore: s.store, Stats: s.store, Samples: s.store, Audit: s.store,
		Idempotency: s.store, Events: s.events, Version: buildVersion(), Log: s.log})
}
