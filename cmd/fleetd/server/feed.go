package server

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"fleetd/broker/feed"
)

// openFeed makes the MQTT broker for the sealed record and Home Assistant, if it has an address.
func (s *Server) openFeed(tlsConfig *tls.Config) (err error) {
	if s.cfg.EventsMQTTAddr == "" && s.cfg.EventsMQTTSAddr == "" {
		return nil
	}
	s.feed, err = feed.New(feed.Options{Addr: s.cfg.EventsMQTTAddr, TLSAddr: s.cfg.EventsMQTTSAddr, TLSConfig: tlsConfig,
		HomeAssistant: s.cfg.HomeAssistant, Version: s.cfg.Version, PublicURL: s.cfg.PublicURL,
		Authenticate: s.Operators.Authenticate, Follow: s.authority.Follow, Authority: s.authority, Record: s.Record,
		Devices:  s.Devices,
		Campaign: func(ctx context.Context, id uuid.UUID) error { _, err := s.Campaigns.Campaign(ctx, id); return err },
		Audit:    s.store,
		Call:     s.Calls.Start,
		Events:   s.Events, Log: s.log})
	if err != nil {
		return err
	}
	s.stages.add("events over MQTT", s.feed.Run)
	s.metrics.watchFeed(s.feed)
	return nil
}

// EventsMQTTAddr returns the listen address of the feed without TLS; nil without one.
func (s *Server) EventsMQTTAddr() net.Addr {
	if s.feed == nil {
		return nil
	}
	return s.feed.Addr()
}

// EventsMQTTSAddr returns the listen address of the feed with TLS; nil without one.
func (s *Server) EventsMQTTSAddr() net.Addr {
	if s.feed == nil {
		return nil
	}
	return s.feed.TLSAddr()
}

func (m *metrics) watchFeed(f *feed.Service) {
	m.gauge("fleetd_events_mqtt_connections", "Clients of the MQTT address for events.", nil,
		func() float64 { return float64(f.Stats().Connections) })
	for name, c := range map[string]struct {
		help string
		read func(feed.Stats) int64
	}{
		"messages": {"Messages written to clients of the MQTT address for events.",
			func(s feed.Stats) int64 { return s.Published }},
		"slow": {"Clients of the MQTT address for events that were disconnected because they did not keep up.",
			func(s feed.Stats) int64 { return s.Slow }},
		"too_long": {"Messages for clients of the MQTT address for events that were longer than the client accepts.",
			func(s feed.Stats) int64 { return s.TooLong }},
		"refused": {"Refused connections at the MQTT address for events.",
			func(s feed.Stats) int64 { return s.Refused }},
		"commands": {"Calls that Home Assistant asked for.", func(s feed.Stats) int64 { return s.Commands }},
	} {
		m.counter("fleetd_events_mqtt_"+name+"_total", c.help, prometheus.Labels{},
			func() float64 { return float64(c.read(f.Stats())) })
	}
}
