// Package server is fleetd's server: [Start] opens the database, puts the parts together
// and listens. It keeps no state in the package, so several servers can run in one
// process.
//
// It is the only package that imports all others, and contains no rules of the fleet: it
// reads the configuration, connects the parts to each other (adapters.go), and starts and
// stops them in order (stages.go). Each part has one goroutine; [Server.Close] stops the
// latest first and waits a bounded time for each.
//
// The commands that work directly on a server's database are here, too: they open it as
// Start does.
package server

import (
	"cmp"
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/broker"
	"fleetd/broker/agent"
	link "fleetd/broker/cluster"
	"fleetd/broker/edge"
	"fleetd/broker/feed"
	"fleetd/broker/voice"
	"fleetd/broker/voicelink"
	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/attempts"
	"fleetd/fleet/authority"
	"fleetd/fleet/blobs"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/catalogue"
	"fleetd/fleet/cluster"
	"fleetd/fleet/endpoint"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/heavy"
	"fleetd/fleet/history"
	"fleetd/fleet/lease"
	"fleetd/fleet/logstream"
	"fleetd/fleet/operator"
	"fleetd/fleet/outbound"
	"fleetd/fleet/picture"
	"fleetd/fleet/place"
	"fleetd/fleet/plugin"
	"fleetd/fleet/policy"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/embedded"
	"fleetd/fleet/postgres/jobs"
	"fleetd/fleet/publish"
	"fleetd/fleet/record"
	"fleetd/fleet/redaction"
	"fleetd/fleet/rollout"
	"fleetd/fleet/schedule"
	"fleetd/fleet/telemetry"
	"fleetd/fleet/trend"
	"fleetd/fleet/upstream"
	"fleetd/fleet/webhook"
	"fleetd/internal/bounded"
	"fleetd/internal/collector"
	"fleetd/mcp/gateway"
	"fleetd/mcp/host"
)

// A Server is the set of fleetd's running parts. Its exported fields are the services of
// the domain, for programs that embed the server: they check and audit as REST does.
// Start sets them; do not change them afterwards.
type Server struct {
	Devices   *fleet.Devices
	Calls     *call.Service
	FanOuts   *call.FanOuts
	History   *history.Service
	Trends    *trend.Service
	Places    *place.Service
	Schedules *schedule.Service
	Presences *fleet.Presences
	Snapshots *picture.Service
	Operators *operator.Service
	Filters   *fleet.Filters
	ToolPins  *policy.ToolPins
	// ToolQuarantines are those of plug-ins and endpoints.
	ToolQuarantines *policy.ToolQuarantines
	Catalogue       *catalogue.Service
	Enrolments      *enrolment.Service
	Rules           *enrolment.Rules
	Serials         *enrolment.Serials
	Keys            *enrolment.SigningKeys
	Reports         *telemetry.Reports
	Firmware        *firmware.Service
	Campaigns       *campaign.Service
	Approvals       *call.Approvals
	Webhooks        *webhook.Service
	LogStreams      *logstream.Service
	Redaction       *redaction.Service
	Policies        *policy.Service
	Upstreams       *upstream.Service
	Plugins         *plugin.Service
	Endpoints       *endpoint.Service
	Alerts          *alert.Service
	Events          *fleet.Events
	Record          *record.Service
	Publisher       *publish.Publisher

	cfg     Config
	log     *slog.Logger
	stages  *stages
	metrics *metrics
	admin   *adminServer

	httpListener, adminListener net.Listener

	lease     *lease.Keeper
	led       time.Time // when this process got the lease
	pool      *pgxpool.Pool
	store     *postgres.Store
	database  *postgres.Watch
	blobs     *blobs.Store
	files     *blobs.Sweeper // nil: files stay for ever
	targets   *fleet.Targets
	authority *authority.Service
	attempts  *attempts.Limiter
	broker    *broker.Broker
	edge      *edge.Edge // nil in a core
	node      *node      // of a cluster; nil in a single process
	link      *link.Core // nil in a single process
	// attachedAll is closed when the edges have announced the connections of the previous term.
	attachedAll chan struct{}
	silentEdges []string      // that may hold some; set before attachedAll is closed
	term        int           // of the lease
	terms       []lease.Term  // the latest terms; this process has the first one
	alone       cluster.Table // of a single process: itself
	cluster     *cluster.Service
	started     time.Time
	host        *host.Host
	endpoints   *host.Endpoints
	open        *fleet.OpenConversations
	reconnects  alert.Reconnects
	gateway     *gateway.Gateway
	agents      *agent.Service
	feed        *feed.Service // nil without an address for it
	outbound    *outbound.Guard
	heavy       heavy.Limits
	downloads   *firmware.Downloads

	voice     atomic.Pointer[voice.Relay] // started with the first voice server; nil before, and in a core
	talks     *voicelink.Core             // conversations at the edges; nil in a single process
	talksKey  []byte
	engine    *rollout.Engine
	coreDumps *telemetry.CoreDumps
	logs      *telemetry.Logs

	voiceWanted   chan struct{} // signals that the voice servers changed
	reporter      *systemReporter
	zone          *time.Location // for devices without their own
	accounts      *voice.Accounts
	vision        *picture.VisionTokens
	cameras       cameras
	virtual       *virtualFleet // nil without DemoVirtual
	firstPassword string        // of the operator created at the first start; "" later
	modelToken    string        // of the demo; "" without one
}

// Start starts a server and returns when all its parts run. [Server.Close] stops the
// server; the end of ctx only interrupts Start. After an error nothing keeps running. If
// the error is a [UsageError], or concerns a file or an address that the configuration
// names, nothing was changed on disk.
//
// If another process serves the database, Start returns an error, or waits for the end of that
// process ([Config.Standby]). While it waits, only the admin address is open.
//
// The database and the parts that store records run first. All other parts are
// constructed, so each has access to the others, and only then start, in the order in
// which they are written here. They stop in the opposite order, so each part stops before
// the parts that it needs.
func Start(ctx context.Context, cfg Config) (_ *Server, err error) {
	tone, err := cfg.toneServer()
	if err != nil {
		return nil, err
	}
	if err := cfg.check(); err != nil {
		return nil, UsageError{err}
	}
	if cfg.Role == RoleEdge {
		return nil, UsageError{errors.New("--role edge: use StartEdge")}
	}
	log, started := cfg.logger(), time.Now().UTC()
	s := &Server{cfg: cfg, log: log, started: started, stages: newStages(log), metrics: newMetrics(),
		Events:   &fleet.Events{},
		cameras:  cameras{bounded.New[string, bool](maxCameraBuilds)},
		outbound: outbound.New(outbound.Options{Allow: cfg.AllowOutbound})}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()

	if tone != nil {
		s.stages.run("voice server of the demo", tone.Run)
	}

	// The files that the configuration names, before anything is created on disk.
	imageKeys, err := imageKeys(cfg.ImageKeys)
	if err != nil {
		return nil, err
	}
	manifestKeys, err := manifestKeys(cfg.ManifestKeys)
	if err != nil {
		return nil, err
	}
	if s.zone, err = time.LoadLocation(cfg.TimeZone); err != nil {
		return nil, fmt.Errorf("unknown --time-zone %q; use a name such as Europe/Berlin or Asia/Shanghai",
			cfg.TimeZone)
	}
	var cert *certificate // nil without TLS
	if cfg.TLSCert != "" {
		if cert, err = openCertificate(cfg.TLSCert, cfg.TLSKey, log); err != nil {
			return nil, err
		}
	}
	clientCAs, err := openClientCAs(cfg.ClientCA, log)
	if err != nil {
		return nil, err
	}
	if _, err := readSecret(cfg.DataDir); err != nil {
		return nil, err
	}
	if !cfg.Standby { // otherwise a process that serves the database may have them
		if err := s.listen(ctx); err != nil {
			return nil, err
		}
	}
	if cfg.Role == RoleCore {
		if s.node, err = openNode(ctx, &s.cfg, s.stages, log); err != nil {
			return nil, err
		}
		if err := s.node.openMembers(cfg.Version); err != nil {
			return nil, err
		}
		s.metrics.watchNode(s.node)
		s.stages.run("certificate", func(ctx context.Context) error {
			return s.node.watchCertificate(ctx, log)
		})
	}
	if s.adminListener, err = listenOn(ctx, cfg.AdminAddr, "--admin-addr"); err != nil {
		return nil, err
	}
	s.admin = &adminServer{hosts: cfg.AdminHosts, reg: s.metrics.registry,
		probe: func(ctx context.Context) error {
			if err := s.pool.Ping(ctx); err != nil {
				return fmt.Errorf("database: %w", err)
			}
			return nil
		}}
	s.metrics.gauge("fleetd_standby", "1 while this process stands by for the one that serves the database.", nil,
		s.admin.standingBy)
	s.stages.run("admin listener", func(ctx context.Context) error { return s.admin.run(ctx, s.adminListener) })

	// Data that outlives the process: PostgreSQL, blobs, the secret.
	databaseURL := cfg.DatabaseURL
	if databaseURL == "" {
		pg, err := embedded.Start(ctx, embedded.Options{DataDir: cfg.DataDir, Logger: log})
		if err != nil {
			return nil, err
		}
		s.stages.run("embedded PostgreSQL", func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return pg.Stop(context.WithoutCancel(ctx))
			case <-pg.Done():
				return pg.Err()
			}
		})
		databaseURL = pg.URL()
	}
	if s.pool, err = s.holdDatabase(ctx, databaseURL); err != nil {
		return nil, err
	}
	s.stages.onStop("database connections", s.pool.Close)
	s.store = postgres.New(s.pool, postgres.Options{Logger: log})
	s.stages.run("call records", s.store.Run)
	s.database = postgres.NewWatch(s.pool, log)
	s.stages.run("watch over the database", s.database.Run)
	blobURL := cmp.Or(cfg.BlobURL, "file://"+filepath.ToSlash(filepath.Join(cfg.DataDir, "blobs")))
	if s.blobs, err = blobs.Open(ctx, blobURL); err != nil {
		return nil, err
	}
	s.stages.onStop("blob store", func() { _ = s.blobs.Close() })
	secret, err := s.openSecret(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.readTerms(ctx); err != nil {
		return nil, err
	}
	if err := s.closeOldCalls(ctx); err != nil {
		return nil, err
	}
	if err := s.openRecord(ctx, secret.key); err != nil {
		return nil, err
	}
	sealer, err := enrolment.NewSealer(secret.key)
	if err != nil {
		return nil, err
	}
	s.Webhooks = webhook.New(webhook.Options{Store: s.store, Sealer: sealer, PublicURL: s.cfg.PublicURL,
		Text: chatTexts{s.cfg.PublicURL}.text, Guard: s.outbound, Log: log})
	s.stages.onStop("webhooks", s.Webhooks.Close)
	if err := s.Webhooks.SealStored(ctx); err != nil {
		return nil, err
	}
	s.openLogStreams(sealer)
	if err := s.openRedaction(ctx, sealer, secret.key); err != nil {
		return nil, err
	}
	s.History = history.New(s.store, time.Now)
	s.Schedules = schedule.New(schedule.Options{Store: s.store, FanOuts: func() schedule.FanOuts { return s.FanOuts },
		Authority: rightsNow{s}, Redaction: s.Redaction, Held: s.lease.Held, Log: log})
	sweep, err := s.openSweep(ctx, log)
	if err != nil {
		return nil, err
	}
	work, err := jobs.New(s.pool, s.store, jobs.Options{Retention: cfg.retention(), Sweep: sweep, Webhooks: s.Webhooks,
		Schedules: s.Schedules, Logger: log})
	if err != nil {
		return nil, err
	}
	s.stages.run("jobs", work.Run)

	// Services that need no connection to devices.
	s.Serials = enrolment.NewSerials(s.store, sealer, log)
	if err := s.Serials.Load(ctx); err != nil {
		return nil, err
	}
	if s.Keys, err = openKeys(ctx, s.store, secret.key, log); err != nil {
		return nil, err
	}
	if err := s.recordSecret(ctx, secret); err != nil { // after the keys: it opened what is sealed
		return nil, err
	}
	s.Operators = operator.New(s.store)
	s.Operators.EndIdle(cfg.SessionIdle)
	s.authority = authority.New(authority.Options{Store: s.store, Changes: s.Operators.Changes})
	s.Filters = fleet.NewFilters(s.store)
	s.Trends = trend.New(s.store, s.Filters, time.Now)
	s.targets = fleet.NewTargets(s.store, s.store)
	s.Presences = fleet.NewPresences(fleet.PresenceOptions{Store: s.store, Log: log, Events: s.Events,
		Node: s.cfg.NodeName, Tap: s.evidence, Attached: s.attached})
	if s.node == nil { // before a page can show devices of the last run as online
		if err := s.Presences.Recover(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.openAttempts(ctx, secret.key); err != nil {
		return nil, err
	}
	s.Rules = enrolment.NewRules(s.store, nil)
	if err := s.Rules.Load(ctx); err != nil {
		return nil, err
	}
	s.Enrolments, err = enrolment.New(enrolment.Options{Store: s.store, Mode: cfg.enrolmentMode(), Keys: s.Keys,
		Serials: s.Serials, MarkProofs: cfg.SerialProof == "mark", ByCode: cfg.claimedByHand, Rules: s.Rules, Log: log,
		PublicName: s.publicHost(), Events: s.Events, Connected: s.Presences.IsConnected, Connection: s.connection,
		Ping: s.ping, Device: s.targets.Device, Conflicts: s.store, Attempts: s.attempts, Kick: s.kick,
		MaxWaiting: cfg.MaxWaiting, MaxWaitingPerNetwork: cfg.MaxWaitingNet,
		NetworkBits4: cfg.WaitingBits4, NetworkBits6: cfg.WaitingBits6})
	if err != nil {
		return nil, err
	}
	if err := s.Enrolments.Load(ctx); err != nil {
		return nil, err
	}
	s.Devices = fleet.NewDevices(fleet.DevicesOptions{Store: s.store, Targets: s.targets, Presence: s.Presences,
		Events: s.Events, Kick: s.kick, Retiring: s.retiring, Transport: s.Enrolments.ChooseTransport,
		Log: log, Approve: s.Enrolments.Approve,
		Busy: campaign.PartsOf(s.store)})
	s.stages.add("call targets", func(ctx context.Context) error { return s.targets.Run(ctx, s.Events) })
	s.stages.add("presence", s.Presences.Run)
	s.stages.add("serial numbers", s.Serials.Run)
	s.stages.add("signing keys", s.Keys.Run)
	s.stages.add("enrolment", s.Enrolments.Run)
	s.Reports = telemetry.NewReports(telemetry.ReportsOptions{Store: crashWatch{s.store, s}, Events: s.Events,
		OnLog: s.logged, OnUpgradeJob: s.upgradeReported, Log: log})
	s.stages.add("reports of devices", s.Reports.Run)

	if err := s.openUpstreams(ctx, sealer); err != nil {
		return nil, err
	}

	s.vision = picture.NewVisionTokens(picture.VisionTokensOptions{Secret: secret.key, PublicURL: s.cfg.PublicURL,
		Connection: s.connection})

	// Connections of devices.
	tlsConfig := followCertificate(cert, clientCAs, s.stages, s.metrics)
	latest, err := s.store.LatestEpoch(ctx)
	if err != nil {
		return nil, err
	}
	s.broker, err = broker.New(broker.Options{AuthenticateCertificate: s.certified(clientCAs), Devices: brokerDevices{s},
		LatestEpoch: latest, Version: cfg.Version, Logger: log, VisionURL: s.visionURL})
	if err != nil {
		return nil, err
	}
	s.stages.add("broker", s.broker.Run)
	s.stages.add("garbage collector", func(ctx context.Context) error {
		return collector.Run(ctx, collector.Load{Messages: func() int64 { return s.broker.Stats().Messages },
			Connects: func() int64 { return s.broker.Stats().Connects }})
	})
	if s.node != nil {
		if err := s.openLink(secret.key); err != nil {
			return nil, err
		}
	} else {
		s.edge, err = edge.New(edge.Options{Addr: cfg.MQTTAddr, TLSAddr: cfg.MQTTSAddr, TLSConfig: tlsConfig,
			ProxyFrom: cfg.proxyProtocol, Core: s.broker, Voice: edgeVoice{&s.voice}, Agents: edgeAgents{s}, Node: cfg.NodeName,
			Logger: log})
		if err != nil {
			return nil, err
		}
		s.stages.add("edge", s.edge.Run)
		s.cfg.boundMQTT(s.edge.Addr())
	}

	if err := s.openPlugins(ctx, sealer, secret.key); err != nil {
		return nil, err
	}

	// Calls to devices.
	s.open = fleet.NewOpenConversations(fleet.OpenConversationsOptions{Events: s.Events,
		Free: func(id fleet.DeviceID) { s.engine.ConversationEnded(id) }})
	var interruptions *call.Interruptions // nil: nothing waits
	if cfg.ConversationWait > 0 {
		interruptions = &call.Interruptions{Open: s.open, Bound: cfg.ConversationWait}
	}
	s.Snapshots = picture.New(picture.Options{Links: s.store, Store: s.store, Blobs: s.blobs,
		PublicURL: s.cfg.PublicURL, Presences: s.Presences, Events: s.Events, Log: log,
		Running: func(id fleet.DeviceID) (fleet.RunningCall, bool) { return s.Calls.Running(id) }})
	s.stages.add("one-time links", s.Snapshots.Run)
	s.Policies = policy.New(s.store, log)
	if err := s.Policies.Load(ctx); err != nil {
		return nil, err
	}
	s.stages.add("policy", s.Policies.Run)
	s.ToolPins = policy.NewToolPins(s.store, s.targets, log)
	if err := s.ToolPins.Load(ctx); err != nil {
		return nil, err
	}
	s.stages.add("tool pins", s.ToolPins.Run)
	s.Catalogue = catalogue.New(catalogue.Options{Store: s.store, Changed: s.definitionsReleased, Log: log})
	if err := s.Catalogue.Load(ctx); err != nil {
		return nil, err
	}
	s.store.OnDefinitions(func(ctx context.Context) {
		if err := s.Catalogue.Reload(ctx); err != nil {
			log.Warn("catalogue of tools not reloaded", "err", err) // it is soon
		}
	})
	s.stages.add("catalogue of tools", s.Catalogue.Run)
	s.ToolQuarantines = policy.NewToolQuarantines(policy.ToolQuarantinesOptions{Store: s.store, Pins: s.ToolPins,
		Definitions: s.Catalogue, Changed: s.toolsReleased, Log: log})
	if err := s.ToolQuarantines.Load(ctx); err != nil {
		return nil, err
	}
	s.stages.add("quarantines of tools", s.ToolQuarantines.Run)
	s.Calls = call.New(call.Options{Store: s.store, Settled: s.settled, Targets: s.targets, Policy: s.Policies,
		Pins: s.ToolPins, Quarantines: s.ToolQuarantines, Redaction: s.Redaction,
		Approvals: s.store, Link: links{s}, Encoder: links{s},
		Watcher: s.Presences, URLs: s.Snapshots, Events: s.Events,
		Interruptions: interruptions, Authority: s.authority, Held: s.lease.Held, Log: log, Observe: s.observed,
		OrderAnswered: func(ctx context.Context, order fleet.Call, answer fleet.Answer) {
			s.engine.OrderAnswered(ctx, order, answer)
		},
		Running: func(id fleet.DeviceID) (elf, version string) {
			running := s.Enrolments.Running(id)
			return running.ELFSHA256, running.Version
		}})
	// These two stop after the calls: they wait for the calls that they make.
	s.coreDumps = telemetry.NewCoreDumps(telemetry.CoreDumpsOptions{Links: s.store, Store: s.store, Blobs: s.blobs,
		Calls: s.Calls, Devices: s.store, Inventories: s.store, Vitals: s.Reports, Presences: s.Presences,
		Events: s.Events, Collect: cfg.CollectDumps, Keep: cfg.Retention, Log: log})
	s.stages.add("core dumps", s.coreDumps.Run)
	s.logs = telemetry.NewLogs(telemetry.LogsOptions{Calls: s.Calls, Events: s.Events, Log: log})
	s.stages.add("logs of devices", s.logs.Run)
	s.stages.onStop("calls", s.Calls.Shutdown)
	s.FanOuts = call.NewFanOuts(call.FanOutsOptions{Store: s.store, Devices: s.Devices, Calls: s.Calls,
		Approvals: s.store, Presence: s.Presences, Events: s.Events, Log: log})
	s.stages.add("fan-outs", s.FanOuts.Run)
	s.stages.add("schedules", s.Schedules.Run)
	s.Approvals = call.NewApprovals(call.ApprovalsOptions{Store: s.store, Calls: s.Calls, FanOuts: s.FanOuts,
		Events: s.Events, Log: log, Observe: s.metrics.observeApproval})
	s.metrics.gauge("fleetd_approvals_waiting", "Calls and fan-outs that wait for a person's decision.", nil,
		func() float64 { return float64(s.Approvals.Waiting()) })
	s.stages.add("approvals", s.Approvals.Run)

	if err := s.openEndpoints(ctx); err != nil {
		return nil, err
	}
	if err := s.startVoice(ctx); err != nil {
		return nil, err
	}

	// Firmware for devices.
	s.Firmware = firmware.New(firmware.Options{Store: s.store, Blobs: s.blobs, Devices: s.store, Layouts: s.store,
		Unavailable: campaign.Unavailable(s.store), RolledBack: s.store.RolledBackBuilds, Events: s.Events, Keys: imageKeys,
		ManifestKeys: manifestKeys, RequireSigned: cfg.RequireSigned, RequireManifest: cfg.RequireManifest, Floors: s.store,
		Revoked: func(sha256 []string) { s.downloads.RevokeImages(sha256) }, Log: log})
	s.downloads = firmware.NewDownloads(firmware.DownloadsOptions{Links: s.store, Blobs: s.blobs, Addresses: s.blobs,
		MaxConcurrent: cfg.MaxDownloads, BytesPerSecond: cfg.DownloadRate, Log: log, Check: s.Firmware.CheckStored,
		Observe: func(t firmware.Transfer) { s.engine.Observe(rollout.OfTransfer(t)) }})
	s.engine = rollout.New(rollout.Options{Leader: s.lease, Store: s.store, Inventories: s.store, Quarantines: s.store,
		Calls: s.Calls, Link: s.broker, Presence: s.Presences, Downloads: s.downloads, Conversations: interruptions,
		Register: register{s.Enrolments, s.Reports}, Limits: s.Firmware.Limits, Authority: s.authority, Rollback: s.rollBack,
		PublicURL: s.cfg.PublicURL, Events: s.Events, Log: log, Zone: s.zone, Timers: cfg.timers, Tick: cfg.engineTick})
	s.Campaigns = campaign.New(campaign.Options{Store: s.store, Firmware: s.store, Devices: s.store, Inventories: s.store,
		Quarantines: s.store, Requeue: s.store.Requeue, RolledBack: s.store.RolledBackBuilds, Signed: len(imageKeys) > 0,
		RequireApproval: cfg.RequireApproval, Linked: s.store.Linked, Authority: s.authority, Events: s.Events,
		Wake: s.engine.Wake, Zone: s.zone, Log: log, Limits: s.Firmware.Limits, Redacts: s.Redaction.Redacts})
	s.stages.add("campaigns", s.engine.Run)

	s.openCluster()
	if err := s.watchAlerts(ctx, cert); err != nil {
		return nil, err
	}

	// People, programs and boot polls.
	if err := s.firstOperator(ctx); err != nil {
		return nil, err
	}
	s.watchParts()
	if err := s.openGateway(); err != nil {
		return nil, err
	}
	s.openAgents()
	if err := s.openFeed(tlsConfig); err != nil {
		return nil, err
	}
	s.reporter = &systemReporter{server: s, cert: cert, started: started}
	console, err := s.openHTTP(ctx)
	if err != nil {
		return nil, err
	}
	var serve func(context.Context) error
	if s.node != nil {
		serve = s.serveEdges(console)
	} else {
		lingerer := openLingerer(s.metrics)
		serve = func(ctx context.Context) error {
			context.AfterFunc(ctx, lingerer.Stop)
			return console.Run(ctx, lingerer.Listener(s.httpListener))
		}
	}
	s.stages.add("http", func(ctx context.Context) error {
		context.AfterFunc(ctx, s.gateway.Close)
		return serve(ctx)
	})
	if err := s.Calls.Resume(ctx); err != nil {
		return nil, err
	}
	s.stages.start()
	s.admin.ready.Store(true)
	if cfg.Standby {
		log.Info("serves the database", "took", time.Since(s.led).Round(time.Millisecond))
	}
	if err := s.startDemo(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Serve returns when ctx ends, or with the error of a part that ended earlier. It closes
// the server first, unless another process has taken over the database: then the database
// belongs to that process, and the end of this process closes its connections.
func (s *Server) Serve(ctx context.Context) error {
	err := s.stages.wait(ctx)
	if taken, ok := errors.AsType[*lease.TakenError](err); ok {
		return taken
	}
	s.log.Info("stopping")
	s.Close()
	if errors.Is(err, errHandedOver) {
		s.awaitStandby(ctx)
	}
	return err
}

// Close stops all parts, the last one first, and returns within closeTimeout.
// A part that does not stop in time is logged.
func (s *Server) Close() {
	if s.admin != nil {
		s.admin.ready.Store(false)
	}
	s.stages.stop()
}

// HTTPAddr returns the listen address of the console, REST and the device endpoints.
func (s *Server) HTTPAddr() net.Addr { return s.httpListener.Addr() }

// MQTTAddr returns the listen address of the broker without TLS. A core has none.
func (s *Server) MQTTAddr() net.Addr { return s.edge.Addr() }

// MQTTSAddr returns the listen address of the broker with TLS; nil without TLS.
func (s *Server) MQTTSAddr() net.Addr { return s.edge.TLSAddr() }

// AdminAddr returns the listen address of metrics and profiles.
func (s *Server) AdminAddr() net.Addr { return s.adminListener.Addr() }

// URL returns the HTTP address for clients on this machine.
func (s *Server) URL() string {
	addr := s.HTTPAddr().(*net.TCPAddr)
	if addr.IP.IsUnspecified() {
		return "http://" + net.JoinHostPort("127.0.0.1", portOf(addr))
	}
	return "http://" + addr.String()
}

// listen tries the addresses of the broker and opens the HTTP address.
func (s *Server) listen(ctx context.Context) (err error) {
	err = tryAddrs(ctx, map[string]string{"--events-mqtt-addr": s.cfg.EventsMQTTAddr,
		"--events-mqtts-addr": s.cfg.EventsMQTTSAddr})
	if err != nil {
		return err
	}
	if s.cfg.Role == RoleCore {
		if s.httpListener, err = listenOn(ctx, s.cfg.InternalAddr, "--internal-addr"); err != nil {
			return err
		}
		s.stages.onStop("http listener", func() { _ = s.httpListener.Close() })
		return nil
	}
	err = tryAddrs(ctx, map[string]string{"--mqtt-addr": s.cfg.MQTTAddr, "--mqtts-addr": s.cfg.MQTTSAddr})
	if err == nil {
		s.httpListener, err = listenOn(ctx, s.cfg.HTTPAddr, "--http-addr")
	}
	if err != nil {
		return err
	}
	s.stages.onStop("http listener", func() { _ = s.httpListener.Close() })
	s.cfg.boundHTTP(s.httpListener.Addr())
	return nil
}

// listenLater calls listen for a process that stood by. The process that served the database on
// this machine may need a moment to close its addresses, so listenLater tries again.
func (s *Server) listenLater(ctx context.Context) error {
	const limit, pause = 2 * time.Second, 50 * time.Millisecond
	for begun := time.Now(); ; {
		err := s.listen(ctx)
		if _, used := errors.AsType[*addressInUseError](err); !used || time.Since(begun) >= limit {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// An addressInUseError means that another process listens on an address.
type addressInUseError struct{ addr, flag string }

func (e *addressInUseError) Error() string {
	return fmt.Sprintf("the address %s is in use by another program: stop it, or choose another with %s", e.addr, e.flag)
}

func listenOn(ctx context.Context, addr, flag string) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, &addressInUseError{addr, flag}
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listening on %s is not permitted: choose a port above 1023 with %s", addr, flag)
	case err != nil:
		return nil, fmt.Errorf("cannot listen on %s (%s): %w", addr, flag, err)
	}
	return ln, nil
}

// tryAddrs returns an error if an address cannot be used. The broker opens its own later.
func tryAddrs(ctx context.Context, byFlag map[string]string) error {
	for flag, addr := range byFlag {
		if addr == "" {
			continue
		}
		ln, err := listenOn(ctx, addr, flag)
		if err != nil {
			return err
		}
		_ = ln.Close()
	}
	return nil
}

// openSecret reads the secret key again, which another process may have created or replaced since
// this one began to stand by, and creates it for a new database.
func (s *Server) openSecret(ctx context.Context) (secretKey, error) {
	secret, err := readSecret(s.cfg.DataDir)
	if err == nil {
		err = checkSecret(ctx, s.store, secret)
	}
	if err == nil {
		err = secret.create()
	}
	return secret, err
}

// recordSecret records which secret key the database is used with, unless that is on record.
func (s *Server) recordSecret(ctx context.Context, secret secretKey) error {
	fingerprint, err := s.store.InitSecretFingerprint(ctx, enrolment.Fingerprint(secret.key))
	if err != nil {
		return err
	}
	return secret.check(fingerprint, true)
}

// closeOldCalls ends the calls, and the requests with an Idempotency-Key, that a process left open
// when it died.
func (s *Server) closeOldCalls(ctx context.Context) error {
	lost := fleet.NewCallError(fleet.CodeStopped + ".answer")
	if s.node != nil { // a core that stops in order leaves none open
		lost = fleet.NewCallError(fleet.CodeCoreLost)
	}
	canceled, unknown, err := s.store.RecoverCalls(ctx, lost)
	if err != nil {
		return err
	}
	if canceled+unknown > 0 {
		s.log.Info("calls left open by the last run were closed", "canceled", canceled, "unknown", unknown)
	}
	_, err = s.store.InterruptIdempotent(ctx)
	return err
}

// openAttempts makes the limiter of guesses, with the counts of the process before.
func (s *Server) openAttempts(ctx context.Context, secret []byte) error {
	key, err := hkdf.Key(sha256.New, secret, nil, "fleetd failed tries v1", sha256.Size)
	if err != nil {
		return fmt.Errorf("secret key: %w", err)
	}
	s.attempts = attempts.New(attempts.Options{Store: s.store, Key: key})
	return s.attempts.Load(ctx)
}

// firstOperator creates the operator admin if no operator exists.
func (s *Server) firstOperator(ctx context.Context) error {
	operators, err := s.store.Operators(ctx)
	if err != nil || len(operators) > 0 {
		return err
	}
	password := cmp.Or(s.cfg.AdminPassword, newPassword())
	by := fleet.Principal{Kind: fleet.KindSystem, Name: "fleetd", Role: fleet.RoleAdmin}
	if _, err := s.Operators.Create(ctx, by, operator.Request{Name: "admin", Password: password,
		Access: operator.Access{Role: fleet.RoleAdmin}}); err != nil {
		return fmt.Errorf("--admin-password: %w", err)
	}
	s.firstPassword = password
	return nil
}
