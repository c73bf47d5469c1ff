// Package server is fleetd's server: [Start] opens the database, puts the parts
// together and listens; several servers can run in one process. The commands
// that work straight on the server's database are here, too: they open it as
// Start does.
package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"fleetd/broker"
	"fleetd/fleet"
	"fleetd/fleet/blobs"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/embedded"
	"fleetd/fleet/postgres/jobs"
	"fleetd/fleet/rollout"
	"fleetd/fleet/telemetry"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A Server is fleetd's parts, put together: started in the order of the
// methods below, stopped in the opposite order.
type Server struct {
	cfg     *Config
	log     *slog.Logger
	stages  *stages
	metrics *metrics
	admin   *adminServer

	httpListener, adminListener net.Listener

	pool       *pgxpool.Pool
	store      *postgres.Store
	blobs      *blobs.Store
	events     *fleet.Events
	targets    *fleet.Targets
	devices    *fleet.Devices
	operators  *fleet.Operators
	presences  *fleet.Presences
	enrolments *enrolment.Service
	rules      *enrolment.Rules
	serials    *enrolment.Serials
	keys       *enrolment.SigningKeys
	snapshots  *fleet.Snapshots
	reports    *telemetry.Reports
	broker     *broker.Broker
	calls      *fleet.Calls
	fanOuts    *fleet.FanOuts
	firmware   *firmware.Service
	campaigns  *campaign.Service
	downloads  *firmware.Downloads
	engine     atomic.Pointer[rollout.Engine] // set while the broker runs already

	coreDumps atomic.Pointer[telemetry.CoreDumps] // as is the next
	logs      atomic.Pointer[telemetry.Logs]

	zone          *time.Location // of devices that have none of their own
	virtual       *virtualFleet  // nil without --demo-virtual
	firstPassword string         // of the operator made at the first start; "" later
}

// Start brings all parts up. On an error nothing is left running, and
// if the error is a [UsageError], nothing was changed on disk.
func Start(ctx context.Context, cfg Config) (_ *Server, err error) {
	if err := cfg.check(); err != nil {
		return nil, UsageError{err}
	}
	log := cfg.logger()
	s := &Server{cfg: &cfg, log: log, stages: newStages(log), metrics: newMetrics(), events: &fleet.Events{}}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	steps := []func(context.Context) error{
		s.listen, s.openStore, s.openDomain, s.openReports, s.openBroker, s.openCalls, s.openFirmware, s.firstOperator,
		s.serveHTTP,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	s.admin.ready.Store(true)
	if err := s.runDemo(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Close stops all parts, the latest first.
func (s *Server) Close() {
	if s.admin != nil {
		s.admin.ready.Store(false)
	}
	s.stages.stop()
}

// listen takes the addresses before anything touches the disk.
func (s *Server) listen(ctx context.Context) (err error) {
	if s.httpListener, err = listenOn(ctx, s.cfg.HTTPAddr, "--http-addr"); err != nil {
		return err
	}
	s.stages.onStop("http listener", func() { _ = s.httpListener.Close() })
	if s.adminListener, err = listenOn(ctx, s.cfg.AdminAddr, "--admin-addr"); err != nil {
		return err
	}
	s.admin = &adminServer{reg: s.metrics.registry, probe: func(ctx context.Context) error { return s.pool.Ping(ctx) }}
	s.stages.run("admin listener", func(ctx context.Context) error { return s.admin.run(ctx, s.adminListener) })
	for flag, addr := range map[string]string{"--mqtt-addr": s.cfg.MQTTAddr, "--mqtts-addr": s.cfg.MQTTSAddr} {
		if addr == "" {
			continue
		}
		ln, err := listenOn(ctx, addr, flag) // the broker opens its own, later
		if err != nil {
			return err
		}
		_ = ln.Close()
	}
	return nil
}

func listenOn(ctx context.Context, addr, flag string) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("the address %s is in use by another program: stop it, or choose another with %s", addr, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listening on %s is not permitted: choose a port above 1023 with %s", addr, flag)
	case err != nil:
		return nil, fmt.Errorf("cannot listen on %s (%s): %w", addr, flag, err)
	}
	return ln, nil
}

// openStore starts the embedded PostgreSQL if no other is named, and opens
// what outlives the process.
func (s *Server) openStore(ctx context.Context) error {
	url := s.cfg.DatabaseURL
	if url == "" {
		pg, err := embedded.Start(ctx, embedded.Options{DataDir: s.cfg.DataDir, Logger: s.log})
		if err != nil {
			return err
		}
		url = pg.URL()
		s.stages.run("embedded PostgreSQL", func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return pg.Stop(context.WithoutCancel(ctx))
			case <-pg.Done():
				return pg.Err()
			}
		})
	}
	pool, err := openMigrated(ctx, url)
	if err != nil {
		return err
	}
	s.pool = pool
	s.stages.onStop("database connections", pool.Close)
	s.store = postgres.New(pool, postgres.Options{Logger: s.log})
	s.stages.run("call records", s.store.Run)
	blobURL := cmp.Or(s.cfg.BlobURL, "file://"+filepath.ToSlash(filepath.Join(s.cfg.DataDir, "blobs")))
	if s.blobs, err = blobs.Open(blobURL); err != nil {
		return err
	}
	s.stages.onStop("blob store", func() { _ = s.blobs.Close() })
	if err := s.recover(ctx); err != nil {
		return err
	}
	return s.openJobs()
}

// openJobs starts the hourly work in the database: partitions and retention.
func (s *Server) openJobs() error {
	keep := s.cfg.Retention
	work, err := jobs.New(s.pool, s.store, jobs.Options{Retention: postgres.Retention{Calls: keep, Audit: keep,
		Snapshots: keep, Vitals: s.cfg.vitalsKept()}, Logger: s.log})
	if err != nil {
		return err
	}
	s.stages.run("jobs", work.Run)
	return nil
}

// recover closes what a process that died left open.
func (s *Server) recover(ctx context.Context) error {
	// This process has made no call yet: all that are open are of the last one,
	// also those whose ids lie ahead since the clock was set back.
	canceled, unknown, err := s.store.RecoverCalls(ctx, uuid.Max)
	if err != nil {
		return err
	}
	if canceled+unknown > 0 {
		s.log.Info("calls left open by the last run were closed", "canceled", canceled, "unknown", unknown)
	}
	return nil
}

// openDomain starts the services that know devices without a connection.
func (s *Server) openDomain(ctx context.Context) error {
	key, err := secretKey(s.cfg.DataDir)
	if err != nil {
		return err
	}
	sealer, err := enrolment.NewSealer(key)
	if err != nil {
		return err
	}
	s.serials = enrolment.NewSerials(s.store, sealer, s.log)
	if err := s.serials.Load(ctx); err != nil {
		return err
	}
	if s.keys, err = openKeys(ctx, s.store, key, s.log); err != nil {
		return err
	}
	s.operators = fleet.NewOperators(s.store)
	s.targets = fleet.NewTargets(s.store, s.store)
	s.presences = fleet.NewPresences(fleet.PresenceOptions{Store: s.store, Log: s.log, Events: s.events,
		Node: s.cfg.NodeName,
		Tap:  s.evidence})
	if err := s.presences.Recover(ctx); err != nil { // before the first page shows devices of the last run as online
		return err
	}
	s.rules = enrolment.NewRules(s.store, nil)
	if err := s.rules.Load(ctx); err != nil {
		return err
	}
	s.enrolments, err = enrolment.New(enrolment.Options{Store: s.store, Mode: s.cfg.enrolmentMode(),
		Keys:    s.keys,
		Serials: s.serials, MarkProofs: s.cfg.SerialProof == "mark",
		ByCode: s.cfg.claimedByHand, Rules: s.rules, Log: s.log, PublicName: s.publicHost(), Events: s.events,
		Connected: s.presences.IsConnected, Connection: s.connection, Conflicts: s.store, Kick: s.kick,
		MaxWaiting: s.cfg.MaxWaiting, MaxWaitingPerNetwork: s.cfg.MaxWaitingNet, NetworkBits4: s.cfg.WaitingBits4,
		NetworkBits6: s.cfg.WaitingBits6})
	if err != nil {
		return err
	}
	if err := s.enrolments.Load(ctx); err != nil {
		return err
	}
	s.devices = fleet.NewDevices(fleet.DevicesOptions{Store: s.store, Targets: s.targets, Presence: s.presences,
		Events: s.events,
		Kick:   s.kick, Retiring: s.retiring, Log: s.log, Approve: s.enrolments.Approve,
		Busy: campaign.PartsOf(s.store)})
	s.stages.run("call targets", func(ctx context.Context) error { return s.targets.Run(ctx, s.events) })
	s.stages.run("presence", s.presences.Run)
	s.stages.run("serial numbers", s.serials.Run)
	s.stages.run("signing keys", s.keys.Run)
	s.stages.run("enrolment", s.enrolments.Run)
	return nil
}

// kick ends a device's connection. The broker comes up after those who ask.
func (s *Server) kick(id fleet.DeviceID, reason string) {
	s.targets.Forget(id)
	if s.broker != nil {
		s.broker.Kick(id, reason)
	}
}

// connection is the one that the device has now.
func (s *Server) connection(id fleet.DeviceID) (fleet.Connection, bool) {
	if s.broker == nil {
		return fleet.Connection{}, false
	}
	return s.broker.Connection(id)
}

// evidence passes what is observed of devices to the campaigns. The engine
// comes up after the broker, whose first connections it finds in the records.
func (s *Server) evidence(id fleet.DeviceID, e fleet.Evidence) {
	if engine := s.engine.Load(); engine != nil {
		engine.Evidence(id, e)
	}
}

func (s *Server) retiring(id fleet.DeviceID) {
	s.enrolments.Retired(id)
	if engine := s.engine.Load(); engine != nil {
		engine.Retired(id)
	}
}

func (s *Server) publicHost() string {
	u, _ := url.Parse(s.cfg.PublicURL) // config.check has parsed it
	return u.Host
}

func (s *Server) openBroker(ctx context.Context) error {
	tlsConfig, err := s.tlsConfig()
	if err != nil {
		return err
	}
	s.broker, err = broker.New(broker.Options{Addr: s.cfg.MQTTAddr, TLSAddr: s.cfg.MQTTSAddr, TLSConfig: tlsConfig,
		ProxyFrom: s.cfg.proxyProtocol, Devices: brokerDevices{s}, Node: s.cfg.NodeName, Version: s.cfg.Version,
		Logger: s.log})
	if err != nil {
		return err
	}
	s.stages.run("broker", s.broker.Run)
	return nil
}

func (s *Server) tlsConfig() (*tls.Config, error) {
	if s.cfg.TLSCert == "" {
		return nil, nil
	}
	cert, err := openCertificate(s.cfg.TLSCert, s.cfg.TLSKey, s.log)
	if err != nil {
		return nil, err
	}
	s.stages.run("certificate", cert.run)
	s.metrics.gauge("fleetd_tls_certificate_expiry_timestamp_seconds",
		"When the certificate in use expires, in seconds since 1970.",
		nil, func() float64 { return float64(cert.expiry().Unix()) })
	s.metrics.gauge("fleetd_tls_certificate_files_bad",
		"1 while the certificate's files are not used since they do not work.",
		nil, cert.filesBad)
	return &tls.Config{GetCertificate: cert.get, MinVersion: tls.VersionTLS12}, nil
}

func (s *Server) openCalls(context.Context) error {
	s.snapshots = fleet.NewSnapshots(fleet.SnapshotsOptions{Links: s.store, Store: s.store, Blobs: s.blobs,
		PublicURL: s.cfg.PublicURL, Presences: s.presences, Events: s.events, Log: s.log})
	s.stages.run("one-time links", s.snapshots.Run)
	s.calls = fleet.NewCalls(fleet.CallsOptions{Store: s.store, Targets: s.targets, Link: s.broker, Watcher: s.presences,
		URLs: s.snapshots, Events: s.events, Log: s.log, Observe: s.observed})
	s.openCrashes() // stops after the calls: it waits for those that it makes
	s.stages.onStop("calls", s.calls.Shutdown)
	s.stages.run("stray calls", s.calls.Run)
	s.fanOuts = fleet.NewFanOuts(fleet.FanOutsOptions{Store: s.store, Devices: s.devices, Calls: s.calls,
		Presence: s.presences, Events: s.events, Log: s.log})
	s.stages.run("fan-outs", s.fanOuts.Run)
	s.watchParts()
	return nil
}

// firstOperator makes the operator admin if there is nobody who could sign in.
func (s *Server) firstOperator(ctx context.Context) error {
	operators, err := s.store.Operators(ctx)
	if err != nil || len(operators) > 0 {
		return err
	}
	password := cmp.Or(s.cfg.AdminPassword, newPassword())
	by := fleet.Actor{Kind: fleet.ActorSystem, Name: "fleetd", Role: fleet.RoleAdmin}
	if _, err := s.operators.Create(ctx, by, "admin", fleet.RoleAdmin, password); err != nil {
		return fmt.Errorf("--admin-password: %w", err)
	}
	s.firstPassword = password
	return nil
}

// Wait returns when ctx ends, or with the error of a part that died.
func (s *Server) Wait(ctx context.Context) error {
	defer s.log.Info("stopping")
	return s.stages.wait(ctx)
}
