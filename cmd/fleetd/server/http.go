package server

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/changes"
	"fleetd/fleet/compare"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/policy"
	"fleetd/mcp/gateway"
	"fleetd/web"
	"fleetd/web/api"
	"fleetd/web/console"
	"fleetd/web/device"
	"fleetd/web/door"
	"fleetd/web/i18n"
	"fleetd/web/intake"
	"fleetd/web/ui"
)

// openHTTP makes the HTTP server: pages, REST, MCP and the device endpoints.
func (s *Server) openHTTP(ctx context.Context) (*web.Server, error) {
	answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: s.cfg.MQTTEndpoint, Location: s.zone,
		PublicURL: s.cfg.PublicURL, Keepalive: s.cfg.MQTTKeepalive})
	if err != nil {
		return nil, err
	}
	polls := enrolment.NewBootPolls(enrolment.BootPollsOptions{Enrolments: s.Enrolments, Presences: s.Presences,
		Offers: s.engine, Voice: voicePolls{s.accounts}, Answers: answers, Log: s.log})
	o := device.Options{Enrolments: s.Enrolments, BootPolls: polls, Snapshots: s.Snapshots,
		CoreDumps: s.coreDumps, Downloads: s.downloads, ReadingEdge: door.ReadingEdge, VisionTokens: s.vision,
		VoiceCodes: s.accounts, Log: s.log}
	if s.edge != nil {
		o.WebSocket = s.edge.ServeWebSocket
	}
	explainer := voiceExplainer{server: s}
	if s.cfg.VisionURL != "" {
		explainer.other = device.NewVisionUpstream(s.cfg.VisionURL, s.cfg.VisionToken, s.outbound)
	}
	o.Explainer = explainer
	devices := device.New(o)
	s.metrics.countPolls(devices.Stats)
	pages, err := console.New(console.Options{
		Devices: s.Devices, Calls: s.Calls, FanOuts: s.FanOuts, Enrolments: s.Enrolments, Rules: s.Rules,
		Presences: s.Presences, DatabaseAway: s.database.Away, Schedules: s.Schedules, History: s.History, Trends: s.Trends,
		Places: s.Places, Compare: compare.New(s.store), Changes: changes.New(s.store, s.History, s.Devices, time.Now),
		Operators: s.Operators, Policies: s.Policies, Tester: s.tester(), Filters: s.Filters,
		ToolPins:        s.ToolPins,
		ToolQuarantines: s.ToolQuarantines, Catalogue: s.Catalogue,
		Serials: s.Serials,
		Keys:    s.Keys, MarkProofs: s.cfg.SerialProof == "mark", Styleguide: s.cfg.Styleguide,
		Snapshots: s.Snapshots, Firmware: s.Firmware, Campaigns: s.Campaigns,
		Approvals: s.Approvals, Webhooks: s.Webhooks, LogStreams: s.LogStreams,
		Redaction: s.Redaction, Alerts: s.Alerts, Upstreams: s.Upstreams,
		Endpoints: s.Endpoints, Plugins: s.Plugins, PluginsDir: s.cfg.PluginsDir, Program: s.programServer,
		Pictures: s.store, Conversations: s.store, Talking: s.open, Stats: s.store,
		Samples: s.store, Audit: s.store, Record: s.Record, Publisher: s.Publisher, Reports: s.Reports,
		CoreDumps: s.coreDumps, Logs: s.logs, Events: s.Events,
		Sessions: s.store.Sessions(), Authority: s.authority, Attempts: s.attempts, Heavy: &s.heavy,
		PublicURL: s.cfg.PublicURL, NetworkURL: s.cfg.networkURL(), MQTTEndpoint: s.cfg.MQTTEndpoint,
		EnrolmentMode: s.cfg.enrolmentMode(),
		APIDocument:   func() ([]byte, error) { return api.Document(s.cfg.Version) },
		Version:       s.cfg.Version, System: s.systemFacts(ctx),
		Report: s.reporter.report, Cluster: s.cluster, InCluster: s.node != nil, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	stopping, stop := context.WithCancel(context.WithoutCancel(ctx))
	closeStreams := func() {
		pages.CloseStreams()
		stop()
	}
	return web.New(web.Options{Console: pages.Routes, CloseStreams: closeStreams, API: s.rest(stopping.Done()),
		MCP:          s.gateway,
		DeviceRoutes: devices.Routes, EndpointRoutes: s.endpoints.Routes,
		ConnContext: device.WithConn, ConnState: boundHTTPConnections(&s.cfg, s.metrics).ConnState,
		TrustedProxies: s.cfg.trustedProxies, Log: s.log}), nil
}

// boundHTTPConnections returns the connection limit of the HTTP listener.
func boundHTTPConnections(cfg *Config, m *metrics) *intake.Bound {
	b := intake.New(intake.Options{Max: cfg.MaxHTTPConnections, MaxPerAddress: cfg.MaxHTTPPerAddress,
		Shared: func(a netip.Addr) bool {
			return slices.ContainsFunc(cfg.trustedProxies, func(p netip.Prefix) bool { return p.Contains(a) })
		}})
	m.gauge("fleetd_http_connections_refused", "HTTP connections closed since the start because of a bound.", nil,
		func() float64 { return float64(b.Refused()) })
	return b
}

// openLingerer makes what lets devices close their connections first.
func openLingerer(m *metrics) *device.Lingerer {
	l := device.NewLingerer(device.LingerOptions{})
	m.gauge("fleetd_http_lingering", "Connections that devices have yet to close.", nil,
		func() float64 { return float64(l.Waiting()) })
	return l
}

// systemFacts returns the facts about this process for the settings page.
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

func (s *Server) rest(stopping <-chan struct{}) http.Handler {
	return api.New(api.Options{Devices: s.Devices, Calls: s.Calls, FanOuts: s.FanOuts, Enrolment: s.Enrolments,
		Rules: s.Rules, Serials: s.Serials, Keys: s.Keys, Presence: s.Presences, Schedules: s.Schedules, History: s.History,
		Trends: s.Trends, Places: s.Places, Compare: compare.New(s.store),
		Changes:   changes.New(s.store, s.History, s.Devices, time.Now),
		Operators: s.Operators, Policies: s.Policies, Tester: s.tester(), Filters: s.Filters, ToolPins: s.ToolPins,
		ToolQuarantines: s.ToolQuarantines, Catalogue: s.Catalogue,
		Snapshots: s.Snapshots,
		Firmware:  s.Firmware, Campaigns: s.Campaigns, Approvals: s.Approvals, Webhooks: s.Webhooks, LogStreams: s.LogStreams,
		Redaction: s.Redaction,
		Upstreams: s.Upstreams, Endpoints: s.Endpoints, Plugins: s.Plugins, Alerts: s.Alerts,
		CoreDumps: s.coreDumps, Pictures: s.store, Conversations: s.store, Stats: s.store,
		Samples: s.store, Reports: s.Reports, Audit: s.store, Record: s.Record, Publisher: s.Publisher,
		Idempotency: s.store, Heavy: &s.heavy, Authority: s.authority, MQTTEndpoint: s.cfg.MQTTEndpoint,
		Events: s.Events, Report: s.reporter.report, Cluster: s.cluster, Version: s.cfg.Version, Log: s.log,
		Stopping: stopping})
}

// tester returns the service that tests calls against the policy without making
// them.
func (s *Server) tester() *policy.Tester {
	return &policy.Tester{Policy: s.Policies, Calls: s.Calls, Devices: s.Devices, Operators: s.Operators}
}

// openGateway makes the MCP server.
func (s *Server) openGateway() (err error) {
	s.gateway, err = gateway.New(gateway.Options{Heavy: &s.heavy,
		Devices: s.Devices, Calls: s.Calls, FanOuts: s.FanOuts, Approvals: s.Approvals,
		Snapshots: s.Snapshots, Pictures: s.store, Operators: s.Operators, Filters: s.Filters, Pins: s.ToolPins,
		Quarantines: s.ToolQuarantines,
		Campaigns:   s.Campaigns,
		Firmware:    s.Firmware, Reports: s.Reports, CoreDumps: s.coreDumps, Events: s.Events,
		PublicURL: s.cfg.PublicURL, Authority: s.authority, Programs: programs{s.host},
		Version: s.cfg.Version, Log: s.log,
		Texts: gateway.Texts{Error: i18n.ErrorDetail, CallError: i18n.CallErrorDetail,
			Reason: func(r fleet.Reason) string { return i18n.Because(i18n.English, time.UTC, "reason.", r) }}})
	return err
}

func (s *Server) publicHost() string {
	u, _ := url.Parse(s.cfg.PublicURL) // check has parsed it
	return u.Host
}
