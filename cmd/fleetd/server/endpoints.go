package server

import (
	"context"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/endpoint"
	"fleetd/mcp/host"
	"fleetd/web/i18n"
)

// openEndpoints makes what accepts endpoints, and what manages them. Calls must be open.
func (s *Server) openEndpoints(ctx context.Context) error {
	s.endpoints = host.NewEndpoints(host.EndpointsOptions{Host: s.host, Calls: s.Calls, Texts: voiceTexts(i18n.English),
		Authenticate: func(kind endpoint.TokenKind, secret string) (endpoint.Endpoint, error) {
			return s.Endpoints.Authenticate(kind, secret)
		}, Log: s.log})
	s.Endpoints = endpoint.New(endpoint.Options{Store: s.store, Runner: s.endpoints, Log: s.log})
	if err := s.Endpoints.Load(ctx); err != nil {
		return err
	}
	stored, err := s.store.Programs(ctx, fleet.DeviceEndpoint)
	if err != nil {
		return err
	}
	for _, id := range stored { // deleted while their connections ended
		if s.Endpoints.Defines(id) {
			continue
		}
		if err := s.store.RetireProgram(ctx, id, time.Now().UTC()); err != nil {
			return err
		}
	}
	s.stages.add("connections of endpoints", s.endpoints.Run)
	s.stages.add("definitions of endpoints", s.Endpoints.Run)
	return nil
}
