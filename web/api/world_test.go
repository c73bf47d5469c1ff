package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/authority"
	"fleetd/fleet/blobs"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/catalogue"
	"fleetd/fleet/changes"
	"fleetd/fleet/cluster"
	"fleetd/fleet/compare"
	"fleetd/fleet/endpoint"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/history"
	"fleetd/fleet/logstream"
	"fleetd/fleet/mail"
	"fleetd/fleet/operator"
	"fleetd/fleet/picture"
	"fleetd/fleet/place"
	"fleetd/fleet/plugin"
	"fleetd/fleet/policy"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/jobs"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/fleet/record"
	"fleetd/fleet/redaction"
	"fleetd/fleet/schedule"
	"fleetd/fleet/system"
	"fleetd/fleet/telemetry"
	"fleetd/fleet/trend"
	"fleetd/fleet/upstream"
	"fleetd/fleet/webhook"
)

const (
	unit    = fleet.DeviceID("a085e3112233")
	other   = fleet.DeviceID("a085e3112244")
	waiting = fleet.DeviceID("a085e3112255")
)

var tools = []fleet.Tool{
	{Name: "self.get_device_status", InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
		Audience: fleet.AudienceModel},
	{Name: "self.audio_speaker.set_volume", Audience: fleet.AudienceModel,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"volume":{"type":"integer","minimum":0,"maximum":100}},"required":["volume"]}`)},
	{Name: fleet.ToolReboot, InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
		Audience: fleet.AudienceUser},
	{Name: fleet.ToolSnapshot, Audience: fleet.AudienceUser,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"url":{"type":"string"}},"required":["url"]}`)},
}

// world is the API over the real domain and a real PostgreSQL; only the devices are scripted.
type world struct {
	cluster    cluster.Status
	handedOver bool
	*httptest.Server
	api       *api
	db        *pgxpool.Pool
	store     *postgres.Store
	jobs      *jobs.Jobs // not run
	link      *fleettest.Link
	events    *fleet.Events
	open      *fleet.OpenConversations
	presence  *fleet.Presences
	enrolment *enrolment.Service
	rules     *enrolment.Rules
	devices   *fleet.Devices
	operators *operator.Service
	held      *policy.ToolQuarantines
	catalogue *catalogue.Service
	filters   *fleet.Filters
	serials   *enrolment.Serials
	keys      *enrolment.SigningKeys
	snapshots *picture.Service
	coreDumps *telemetry.CoreDumps
	reports   *telemetry.Reports
	firmware  *firmware.Service
	campaigns *campaign.Service
	schedules *schedule.Service // not run
	log       *syncBuffer
	tokens    map[fleet.Role]string
	policies  *policy.Service
	alerts    *alert.Service // its loop does not run

	endpoints  *endpoint.Service
	plugins    *plugin.Service
	pluginsDir string
	runner     pluginRunner

	upstreams    *upstream.Service
	record       *record.Service
	logStreams   *logstream.Service
	redaction    *redaction.Service
	sequencer    *record.Sequencer
	upstreamLink upstreamLink
}

// upstreamLink is a fake relay that a test controls.
type upstreamLink struct {
	mu      sync.Mutex
	health  upstream.Health
	outcome upstream.Check
	checked []upstream.Choice
}

func (l *upstreamLink) UpstreamHealth(uuid.UUID, time.Time) upstream.Health {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.health
}

func (l *upstreamLink) CheckUpstream(_ context.Context, c upstream.Choice) upstream.Check {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checked = append(l.checked, c)
	return l.outcome
}

// encoder encodes calls for previews; the broker encodes them for devices.
type encoder struct{}

func (encoder) EncodeCall(_ fleet.DeviceID, inv fleet.Invocation) (call.WireCall, error) {
	request := fmt.Sprintf(`{"id":41,"name":%q,"arguments":%s}`, inv.Tool, inv.Arguments)
	return call.WireCall{ID: 41, NextID: true, Connected: true, Request: []byte(request),
		Message: []byte(`{"payload":` + request + `}`)}, nil
}

var root = fleet.Principal{Kind: fleet.KindSystem, Name: "command line", Role: fleet.RoleAdmin}

func newWorld(t testing.TB) *world {
	t.Helper()
	if t, ok := t.(*testing.T); ok {
		t.Parallel() // each test creates its own world, which takes most of its time
	}
	return newWorldAlone(t)
}

// newWorldAlone creates a world while no parallel test runs.
func newWorldAlone(t testing.TB) *world {
	t.Helper()
	db := pgtest.New(t)
	w := &world{db: db, store: postgres.New(db, postgres.Options{}), link: &fleettest.Link{}, events: &fleet.Events{},
		log: &syncBuffer{}, tokens: map[fleet.Role]string{}}
	w.open = fleet.NewOpenConversations(fleet.OpenConversationsOptions{Events: w.events})
	log := slog.New(slog.NewTextHandler(w.log, nil))
	w.domain(t, log)
	w.Server = httptest.NewServer(mounted(w.api))
	t.Cleanup(w.Close)
	w.settle(t)
	return w
}

// mounted returns the API at the path where package web mounts it.
func mounted(a *api) http.Handler {
	r := chi.NewMux()
	r.Mount(prefix, a.handler())
	return r
}

func (w *world) domain(t testing.TB, log *slog.Logger) {
	t.Helper()
	dir, err := blobs.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w.presence = fleet.NewPresences(fleet.PresenceOptions{Store: w.store, Log: log, Events: w.events, Node: "test",
		WriteEvery: 10 * time.Millisecond})
	if err := w.presence.Recover(t.Context()); err != nil { // else responses do not wait for connecting devices
		t.Fatal(err)
	}
	w.openKeys(t, log)
	w.rules = enrolment.NewRules(w.store, nil)
	targets := fleet.NewTargets(w.store, w.store)
	w.enrolment, err = enrolment.New(enrolment.Options{Store: w.store, Mode: fleet.EnrolByCode, Rules: w.rules,
		Keys: w.keys, Serials: w.serials, Log: log, Events: w.events, WriteEvery: 10 * time.Millisecond,
		Device: targets.Device, Conflicts: w.store})
	if err != nil {
		t.Fatal(err)
	}
	w.devices = fleet.NewDevices(fleet.DevicesOptions{Store: w.store, Targets: targets, Presence: w.presence,
		Events: w.events,
		Kick:   func(fleet.DeviceID, fleet.Cause) {}, Retiring: w.enrolment.Retired, Approve: w.enrolment.Approve,
		Busy: campaign.PartsOf(w.store)})
	w.operators = operator.New(w.store)
	w.filters = fleet.NewFilters(w.store)
	w.snapshots = picture.New(picture.Options{Links: w.store, Store: w.store, Blobs: dir,
		PublicURL: "http://h", Events: w.events})
	w.policies = policy.New(w.store, log)
	if err := w.policies.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	pins := policy.NewToolPins(w.store, targets, log)
	w.catalogue = catalogue.New(catalogue.Options{Store: w.store, Log: log})
	if err := w.catalogue.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.store.OnDefinitions(func(ctx context.Context) { _ = w.catalogue.Reload(ctx) })
	w.held = policy.NewToolQuarantines(policy.ToolQuarantinesOptions{Store: w.store, Pins: pins, Definitions: w.catalogue})
	if err := pins.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	rights := authority.New(authority.Options{Store: w.store, Changes: w.operators.Changes})
	calls := call.New(call.Options{Store: w.store, Targets: targets, Policy: w.policies, Approvals: w.store,
		Pins:          pins,
		Quarantines:   w.held,
		Link:          w.link,
		Interruptions: &call.Interruptions{Open: w.open},
		Watcher:       w.presence, Encoder: encoder{}, URLs: w.snapshots, Events: w.events, Log: log,
		Authority: rights})
	t.Cleanup(calls.Shutdown)
	w.openFirmware(dir, log)
	w.coreDumps = telemetry.NewCoreDumps(telemetry.CoreDumpsOptions{Links: w.store, Store: w.store, Blobs: dir,
		Calls:       calls,
		Devices:     w.store,
		Inventories: w.store, Events: w.events, Log: log})
	w.reports = telemetry.NewReports(telemetry.ReportsOptions{Store: w.store, Events: w.events, Log: log,
		WriteEvery: 10 * time.Millisecond})
	fanOuts := call.NewFanOuts(call.FanOutsOptions{Store: w.store, Devices: w.store, Calls: calls, Approvals: w.store,
		Presence: w.presence, Events: w.events, Log: log})
	approvals := call.NewApprovals(call.ApprovalsOptions{Store: w.store, Calls: calls, FanOuts: fanOuts,
		Events: w.events, Log: log, Sweep: 50 * time.Millisecond})
	w.schedules = schedule.New(schedule.Options{Store: w.store, FanOuts: func() schedule.FanOuts { return fanOuts },
		Authority: rights, Log: log})
	sealer, err := enrolment.NewSealer(make([]byte, enrolment.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	hooks := webhook.New(webhook.Options{Text: func(lang string, j webhook.Job) webhook.Text {
		return webhook.Text{Title: string(j.Event), Body: lang, Open: "open"}
	}, Store: w.store, Sealer: sealer, PublicURL: "http://fleet.test", Log: log})
	t.Cleanup(hooks.Close)
	work, err := jobs.New(w.db, w.store, jobs.Options{Webhooks: hooks, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	w.jobs = work
	w.alerts = alert.New(alert.Options{Store: w.store, Facts: w.store, Events: w.events, Log: log,
		CheckAddress: func(text string) error { _, err := mail.Address(text); return err }})
	w.run(t, approvals.Run, w.reports.Run, w.presence.Run, w.enrolment.Run, fanOuts.Run, w.store.Run,
		func(ctx context.Context) error { return targets.Run(ctx, w.events) })
	w.upstreams = upstream.New(upstream.Options{Store: w.store, Sealer: sealer, Targets: targets,
		Link: &w.upstreamLink, Fixed: &upstream.Choice{Server: upstream.Server{Name: "flag.test",
			URL: "ws://flag.test/xiaozhi/v1/", Auth: upstream.AuthSecret}, Key: "of-the-flag"}, Log: log})
	if err := w.upstreams.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.endpoints = endpoint.New(endpoint.Options{Store: w.store, Runner: noConnections{}, Log: log})
	if err := w.endpoints.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.pluginsDir = t.TempDir()
	w.plugins = plugin.New(plugin.Options{Directory: w.pluginsDir, Store: w.store, Sealer: sealer, Runner: &w.runner,
		Events: w.events, Log: log})
	if err := w.plugins.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.record, w.sequencer = newRecord(t, w.store, log)
	w.redaction, err = redaction.New(redaction.Options{Store: w.store, Sealer: sealer, Secret: make([]byte, 32)})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.redaction.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.logStreams = logstream.New(logstream.Options{Store: w.store, Log: w.record, Sealer: sealer, Logger: log})
	past := history.New(w.store, time.Now)
	w.api = newAPI(Options{Record: w.record, Schedules: w.schedules, History: past,
		Trends: trend.New(w.store, w.filters, time.Now), Places: place.New(w.store, w.alerts),
		Compare: compare.New(w.store), Changes: changes.New(w.store, past, w.devices, time.Now),
		Devices: w.devices, Calls: calls, FanOuts: fanOuts, Enrolment: w.enrolment, Rules: w.rules,
		Serials: w.serials, Keys: w.keys, Presence: w.presence,
		Operators: w.operators, Filters: w.filters, ToolPins: pins, ToolQuarantines: w.held,
		Catalogue: w.catalogue, Policies: w.policies,
		Tester:    &policy.Tester{Policy: w.policies, Calls: calls, Devices: w.devices, Operators: w.operators},
		Snapshots: w.snapshots, Firmware: w.firmware, Campaigns: w.campaigns, CoreDumps: w.coreDumps,
		Approvals: approvals, Webhooks: hooks, LogStreams: w.logStreams, Redaction: w.redaction,
		Upstreams: w.upstreams, Endpoints: w.endpoints,
		Plugins: w.plugins, Alerts: w.alerts,
		Pictures: w.store, Conversations: w.store, Stats: w.store, Samples: w.store, Reports: w.reports, Audit: w.store,
		Cluster: cluster.NewService(cluster.Options{Store: w.store, Status: func() cluster.Status { return w.cluster },
			Drain: w.drainNode, HandOver: func() { w.handedOver = true }}),
		Report: func(ctx context.Context) (r system.Report, err error) {
			r.Version, r.StartedAt = "1.2.3", time.Now().UTC()
			r.Database, err = w.store.DatabaseReport(ctx)
			return r, err
		},
		Idempotency: w.store, Events: w.events, Version: "1.2.3", Heartbeat: 50 * time.Millisecond, Log: log,
		Authority: rights})
}

func (w *world) openKeys(t testing.TB, log *slog.Logger) {
	sealer, err := enrolment.NewSealer(make([]byte, enrolment.KeySize))
	if err == nil {
		w.serials = enrolment.NewSerials(w.store, sealer, log)
		w.keys, err = enrolment.NewSigningKeys(w.store, make([]byte, enrolment.KeySize), log)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) openFirmware(dir *blobs.Store, log *slog.Logger) {
	w.firmware = firmware.New(firmware.Options{Store: w.store, Blobs: dir, Devices: w.store,
		Unavailable: campaign.Unavailable(w.store), RolledBack: w.store.RolledBackBuilds,
		Layouts: w.store, Events: w.events, Log: log})
	w.campaigns = campaign.New(campaign.Options{Store: w.store, Firmware: w.store, Devices: w.store,
		Inventories: w.store, RolledBack: w.store.RolledBackBuilds,
		Quarantines: w.store, Requeue: w.store.Requeue, Linked: w.store.Linked, Events: w.events, Wake: func() {},
		Zone: time.UTC, Log: log})
}

func (w *world) run(t testing.TB, services ...func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range services {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { cancel(); running.Wait() })
}

// settle fills the world: a token per role, two devices that joined and listed their tools, one
// that waits, and a connection of the first.
func (w *world) settle(t testing.TB) {
	t.Helper()
	for _, role := range []fleet.Role{fleet.RoleViewer, fleet.RoleOperator, fleet.RoleAdmin} {
		_, secret, err := w.operators.NewToken(t.Context(), root, operator.TokenRequest{Name: string(role) + "-script",
			Role: role})
		if err != nil {
			t.Fatal(err)
		}
		w.tokens[role] = secret
	}
	for _, id := range []fleet.DeviceID{unit, other, waiting} {
		w.poll(t, id)
	}
	for _, id := range []fleet.DeviceID{unit, other} {
		if err := w.enrolment.Approve(t.Context(), root, id, ""); err != nil {
			t.Fatal(err)
		}
		w.listing(t, id, tools[:3])
		w.listing(t, id, tools)
	}
	w.connect(unit)
	fleettest.Eventually(t, "the device is online", func() bool {
		d, err := w.store.Device(t.Context(), unit)
		return err == nil && d.Presence == fleet.PresenceOnline
	})
}

func (w *world) poll(t testing.TB, id fleet.DeviceID) enrolment.PollAnswer {
	t.Helper()
	answer, err := w.enrolment.Poll(enrolment.BootPoll{Device: id, ClientID: "c-" + string(id), At: time.Now().UTC(),
		Board:     "bread-compact-wifi",
		BoardType: "bread", Chip: "esp32s3", Version: "2.0.3", Slot: "ota_0", ELFSHA256: strings.Repeat("ab", 32),
		Layout: &fleet.FlashLayout{SlotSize: 4 << 20, Labels: []string{"ota_0", "ota_1", "assets"}, FreeHeap: 100_000,
			FlashBytes: 16 << 20},
		Facts: json.RawMessage(`{"flash_size":16777216}`)})
	if err != nil {
		t.Fatal(err)
	}
	fleettest.Eventually(t, "the poll is stored", func() bool {
		_, err := w.store.Device(t.Context(), id)
		return err == nil
	})
	return answer
}

func (w *world) listing(t testing.TB, id fleet.DeviceID, tools []fleet.Tool) {
	t.Helper()
	inv := fleet.Inventory{ID: strings.Repeat("0", 63) + string(rune('0'+len(tools))), Tools: tools,
		CreatedAt: time.Now().UTC()}
	if err := w.devices.Listed(t.Context(), fleet.ToolListing{Device: id, Inventory: inv, Version: "2.0.3",
		At: time.Now().UTC()}); err != nil {
		t.Fatal(err)
	}
}

// connect connects a device that answers every call with "true".
func (w *world) connect(id fleet.DeviceID) {
	w.link.Connect(id, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		return fleettest.Text("true"), nil
	})
	w.presence.Connected(fleet.Connection{Device: id, Node: "test", Epoch: 1, Transport: "mqtt", RemoteAddr: "192.0.2.7",
		At: time.Now().UTC()})
}

// reply is a response that has been read.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) problem(t testing.TB) problem {
	t.Helper()
	var p problem
	if ct := r.header.Get("Content-Type"); ct != "application/problem+json" {
		t.Fatalf("answered %d %s %s, want a problem", r.status, ct, r.body)
	}
	if err := json.Unmarshal(r.body, &p); err != nil || p.Status != r.status || p.Code == "" || p.Detail == "" ||
		p.Title == "" {
		t.Fatalf("%d %s is no whole problem (%v)", r.status, r.body, err)
	}
	return p
}

func decode[T any](t testing.TB, r reply, status int) T {
	t.Helper()
	var v T
	if r.status != status {
		t.Fatalf("answered %d %s, want %d", r.status, r.body, status)
	}
	if err := json.Unmarshal(r.body, &v); err != nil {
		t.Fatalf("%s: %v", r.body, err)
	}
	return v
}

// as sends a request with the token of a role ("" for none). Headers are given in pairs.
func (w *world) as(t testing.TB, role fleet.Role, method, path, body string, header ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.URL+prefix+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if role != "" {
		req.Header.Set("Authorization", "Bearer "+w.tokens[role])
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := w.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	w.conforms(t, method, path, resp, data)
	return reply{resp.StatusCode, resp.Header, data}
}

func (w *world) get(t testing.TB, path string) reply {
	t.Helper()
	return w.as(t, fleet.RoleViewer, http.MethodGet, path, "")
}

// post sends a request as an admin, who may do everything.
func (w *world) post(t testing.TB, path, body string, header ...string) reply {
	t.Helper()
	return w.as(t, fleet.RoleAdmin, http.MethodPost, path, body, header...)
}

// syncBuffer is a log that a test may read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
