package main

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/web/device"

	"github.com/go-chi/chi/v5"
)

// serveHTTP opens the console, REST and the device endpoints.
func (s *server) serveHTTP(context.Context) error {
	answers, err := fleet.NewPollAnswers(fleet.PollAnswerOptions{Endpoint: s.cfg.MQTTEndpoint, Location: time.Local})
	if err != nil {
		return err
	}
	devices := device.New(device.Options{Enrolments: s.enrolments, Presences: s.presences, Snapshots: s.snapshots,
		Answers: answers, Log: s.log})
	r := chi.NewRouter()
	devices.Routes(r)
	srv := &http.Server{Handler: r}
	s.stages.run("http", func(ctx context.Context) error {
		context.AfterFunc(ctx, func() { srv.Close() })
		srv.Serve(s.httpListener)
		return nil
	})
	return nil
}
