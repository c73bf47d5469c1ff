package console_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alexedwards/argon2id"
	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
	"golang.org/x/net/html"

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
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/history"
	"fleetd/fleet/logstream"
	"fleetd/fleet/mail"
	"fleetd/fleet/operator"
	"fleetd/fleet/picture"
	"fleetd/fleet/place"
	"fleetd/fleet/policy"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/fleet/record"
	"fleetd/fleet/redaction"
	"fleetd/fleet/schedule"
	"fleetd/fleet/system"
	"fleetd/fleet/telemetry"
	"fleetd/fleet/trend"
	"fleetd/fleet/upstream"
	"fleetd/fleet/webhook"
	"fleetd/web"
	"fleetd/web/api"
	"fleetd/web/console"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, pgtest.LeakOption()) }

const password = "correct horse battery"

// passwordHash has cheap parameters, because argon2id is slow on purpose; a comparison uses the
// parameters of the hash.
var passwordHash = sync.OnceValue(func() string {
	hash, err := argon2id.CreateHash(password, &argon2id.Params{Memory: 64, Iterations: 1, Parallelism: 1,
		SaltLength: 16, KeyLength: 32})
	if err != nil {
		panic(err)
	}
	return hash
})

// A site is a whole server on its own database, with scripted devices.
type site struct {
	t          testing.TB
	url        string
	store      *postgres.Store
	db         *pgxpool.Pool
	link       *fleettest.Link
	events     *fleet.Events
	devices    *fleet.Devices
	presences  *fleet.Presences
	enrolments *enrolment.Service
	rules      *enrolment.Rules
	policies   *policy.Service
	upstreams  *upstream.Service
	record     *record.Service
	sequencer  *record.Sequencer
	logStreams *logstream.Service
	redaction  *redaction.Service
	operators  *operator.Service
	filters    *fleet.Filters
	serials    *enrolment.Serials
	keys       *enrolment.SigningKeys
	snapshots  *picture.Service
	coreDumps  *telemetry.CoreDumps
	logs       *telemetry.Logs
	firmware   *firmware.Service
	campaigns  *campaign.Service
	calls      *call.Service
	open       *fleet.OpenConversations
	fanOuts    *call.FanOuts
	schedules  *schedule.Service // not run
	approvals  *call.Approvals
	alerts     *alert.Service // its loop does not run
	reports    *telemetry.Reports
	logged     *logBuffer
	epoch      int64 // of the latest connection

	edgeGone     atomic.Bool  // in clusterStatus
	edgeDrains   atomic.Bool  // in clusterStatus
	databaseAway atomic.Int64 // time since when, in Unix milliseconds; 0: available
}

// A logBuffer stores log output.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newConsole(t testing.TB, change ...func(*console.Options)) *site {
	t.Helper()
	db, err := postgres.Open(t.Context(), pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	c := &site{t: t, db: db, store: postgres.New(db, postgres.Options{}), link: new(fleettest.Link),
		events: new(fleet.Events),
		logged: new(logBuffer)}
	log := slog.New(slog.NewTextHandler(c.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.logged.String())
		}
	})
	o := c.services(log)
	for _, f := range change {
		f(&o)
	}
	c.serve(o)
	return c
}

// services wires the domain as cmd/fleetd/server does, around scripted devices.
func (c *site) services(log *slog.Logger) console.Options {
	bytes, err := blobs.OpenDir(c.t.TempDir())
	if err != nil {
		c.t.Fatal(err)
	}
	c.presences = fleet.NewPresences(fleet.PresenceOptions{Store: c.store, Events: c.events, Node: "test", Log: log})
	if err := c.presences.Recover(c.t.Context()); err != nil { // else pages do not wait for connecting devices
		c.t.Fatal(err)
	}
	c.openKeys(log)
	c.rules = enrolment.NewRules(c.store, nil)
	targets := fleet.NewTargets(c.store, c.store)
	c.enrolments, err = enrolment.New(enrolment.Options{Store: c.store, Events: c.events, Keys: c.keys, Serials: c.serials,
		Mode: fleet.EnrolByCode, Rules: c.rules, Log: log,
		Device: targets.Device, Conflicts: c.store})
	if err != nil {
		c.t.Fatal(err)
	}
	var calls *call.Service
	c.snapshots = picture.New(picture.Options{Links: c.store, Store: c.store, Blobs: bytes,
		PublicURL: "http://fleet.test", Presences: c.presences, Events: c.events, Log: log,
		Running: func(id fleet.DeviceID) (fleet.RunningCall, bool) { return calls.Running(id) }})
	c.open = fleet.NewOpenConversations(fleet.OpenConversationsOptions{Events: c.events})
	c.policies = policy.New(c.store, log)
	if err := c.policies.Load(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	pins := policy.NewToolPins(c.store, targets, log)
	tools := catalogue.New(catalogue.Options{Store: c.store, Log: log})
	if err := tools.Load(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	c.store.OnDefinitions(func(ctx context.Context) { _ = tools.Reload(ctx) })
	held := policy.NewToolQuarantines(policy.ToolQuarantinesOptions{Store: c.store, Pins: pins, Definitions: tools})
	if err := pins.Load(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	calls = call.New(call.Options{Store: c.store, Targets: targets, Policy: c.policies, Approvals: c.store,
		Pins:          pins,
		Link:          c.link,
		Interruptions: &call.Interruptions{Open: c.open},
		Watcher:       c.presences, URLs: c.snapshots, Events: c.events, Log: log,
		Observe: func(call *fleet.Call) { c.reports.Called(call) }})
	c.devices = fleet.NewDevices(fleet.DevicesOptions{Store: c.store, Targets: targets, Presence: c.presences,
		Events: c.events,
		Kick:   func(fleet.DeviceID, fleet.Cause) {}, Retiring: c.enrolments.Retired, Log: log, Approve: c.enrolments.Approve,
		Busy: campaign.PartsOf(c.store)})
	c.operators = operator.New(c.store)
	c.filters = fleet.NewFilters(c.store)
	c.firmware = firmware.New(firmware.Options{Store: c.store, Blobs: bytes, Devices: c.store,
		Unavailable: campaign.Unavailable(c.store), RolledBack: c.store.RolledBackBuilds,
		Layouts: c.store, Events: c.events, Log: log,
		TempDir: c.t.TempDir()})
	c.campaigns = campaign.New(campaign.Options{Store: c.store, Firmware: c.store, Devices: c.store, Inventories: c.store,
		Quarantines: c.store, Requeue: c.store.Requeue, RolledBack: c.store.RolledBackBuilds, Events: c.events, Log: log})
	fanOuts := call.NewFanOuts(call.FanOutsOptions{Store: c.store, Devices: c.store, Calls: calls, Approvals: c.store,
		Presence: c.presences, Events: c.events, Log: log})
	c.calls, c.fanOuts = calls, fanOuts
	c.schedules = schedule.New(schedule.Options{Store: c.store, FanOuts: func() schedule.FanOuts { return fanOuts },
		Authority: campaign.KeptRights(nil), Log: log})
	c.approvals = call.NewApprovals(call.ApprovalsOptions{Store: c.store, Calls: calls, FanOuts: fanOuts,
		Events: c.events, Log: log, Sweep: 50 * time.Millisecond})
	sealer, err := enrolment.NewSealer(make([]byte, 32))
	if err != nil {
		c.t.Fatal(err)
	}
	c.upstreams = upstream.New(upstream.Options{Store: c.store, Sealer: sealer, Targets: targets,
		Link: upstreamLink{}, Fixed: &upstream.Choice{Server: upstream.Server{Name: "flag.test",
			URL: "ws://flag.test/xiaozhi/v1/", Auth: upstream.AuthNone}}, Log: log})
	if err := c.upstreams.Load(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	hooks := webhook.New(webhook.Options{Text: func(lang string, j webhook.Job) webhook.Text {
		return webhook.Text{Title: string(j.Event), Body: lang, Open: "open"}
	}, Store: c.store, Sealer: sealer, PublicURL: "http://fleet.test", Log: log})
	c.t.Cleanup(hooks.Close)
	c.alerts = alert.New(alert.Options{Store: c.store, Facts: c.store, Events: c.events, Log: log,
		CheckAddress: func(text string) error { _, err := mail.Address(text); return err }})
	c.logs = telemetry.NewLogs(telemetry.LogsOptions{Calls: calls, Events: c.events, Log: log})
	c.reports = telemetry.NewReports(telemetry.ReportsOptions{Store: c.store, Events: c.events, OnLog: c.logs.OnLog,
		Log: log, WriteEvery: 5 * time.Millisecond})
	c.coreDumps = telemetry.NewCoreDumps(telemetry.CoreDumpsOptions{Links: c.store, Store: c.store, Blobs: bytes,
		Calls: calls, Devices: c.store,
		Inventories: c.store, Vitals: c.reports, Presences: c.presences, Events: c.events, Log: log})
	c.background(c.presences.Run, c.enrolments.Run, fanOuts.Run, c.reports.Run, c.approvals.Run)
	c.t.Cleanup(calls.Shutdown)
	c.record, c.sequencer = newRecord(c.t, c.store, log)
	c.redaction, err = redaction.New(redaction.Options{Store: c.store, Sealer: sealer, Secret: make([]byte, 32)})
	if err != nil {
		panic(err)
	}
	c.logStreams = logstream.New(logstream.Options{Store: c.store, Log: c.record, Sealer: sealer, Logger: log})
	return console.Options{Record: c.record, LogStreams: c.logStreams, Redaction: c.redaction, Schedules: c.schedules,
		History: history.New(c.store, time.Now), Trends: trend.New(c.store, c.filters, time.Now),
		Places:  place.New(c.store, c.alerts),
		Compare: compare.New(c.store),
		Changes: changes.New(c.store, history.New(c.store, time.Now), c.devices, time.Now),
		Devices: c.devices, Calls: calls, FanOuts: fanOuts, Enrolments: c.enrolments, Rules: c.rules,
		Presences: c.presences, Firmware: c.firmware, Campaigns: c.campaigns, Approvals: c.approvals, Webhooks: hooks,
		Upstreams: c.upstreams, Alerts: c.alerts, Plugins: newPlugins(c.t, c.store, "", &scriptedRunner{}),
		Endpoints: newEndpoints(c.t, c.store, &scriptedDials{}),
		DatabaseAway: func() (since time.Time) {
			if ms := c.databaseAway.Load(); ms != 0 {
				since = time.UnixMilli(ms)
			}
			return since
		},
		Operators: c.operators, Policies: c.policies, Filters: c.filters, ToolPins: pins,
		ToolQuarantines: held, Catalogue: tools,
		Tester:  &policy.Tester{Policy: c.policies, Calls: calls, Devices: c.devices, Operators: c.operators},
		Serials: c.serials, Keys: c.keys, Snapshots: c.snapshots, CoreDumps: c.coreDumps,
		Logs: c.logs, Pictures: c.store, Conversations: c.store, Talking: c.open, Stats: c.store, Samples: c.store,
		Audit: c.store, Reports: c.reports, Events: c.events,
		Sessions: c.store.Sessions(), PublicURL: "http://fleet.test", EnrolmentMode: fleet.EnrolByCode, Version: "1.2.3",
		APIDocument: func() ([]byte, error) { return api.Document("1.2.3") },
		InCluster:   true,
		Cluster:     cluster.NewService(cluster.Options{Store: c.store, Status: c.clusterStatus, Drain: c.drainNode}),
		Report: func(ctx context.Context) (r system.Report, err error) {
			r.Version, r.StartedAt = "1.2.3", time.Now().UTC()
			r.Database, err = c.store.DatabaseReport(ctx)
			return r, err
		},
		Log: log}
}

func (c *site) openKeys(log *slog.Logger) {
	sealer, err := enrolment.NewSealer(make([]byte, 32))
	if err == nil {
		c.serials = enrolment.NewSerials(c.store, sealer, log)
		c.keys, err = enrolment.NewSigningKeys(c.store, make([]byte, 32), log)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// exec changes the database without the server, to simulate the passage of time.
func (c *site) exec(sql string, args ...any) {
	c.t.Helper()
	if _, err := c.db.Exec(c.t.Context(), sql, args...); err != nil {
		c.t.Fatal(err)
	}
}

// background runs services until the test ends.
func (c *site) background(run ...func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, f := range run {
		wg.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				c.t.Error(err)
			}
		})
	}
	c.t.Cleanup(func() { cancel(); wg.Wait() })
}

func (c *site) serve(o console.Options) {
	o.Authority = authority.New(authority.Options{Store: c.store, Changes: o.Operators.Changes})
	pages, err := console.New(o)
	if err != nil {
		c.t.Fatal(err)
	}
	s := web.New(web.Options{Console: pages.Routes, CloseStreams: pages.CloseStreams,
		DeviceRoutes: func(r chi.Router) { r.Post("/u/{token}", http.NotFound) }, Log: o.Log})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	c.url = "http://" + ln.Addr().String()
	c.background(func(ctx context.Context) error { return s.Run(ctx, ln) })
}

// operator adds an operator with the usual password.
func (c *site) operator(name string, role fleet.Role) operator.Operator {
	c.t.Helper()
	o := operator.Operator{ID: uuid.Must(uuid.NewV7()), Name: name, Role: role, PasswordHash: passwordHash(),
		CreatedAt: time.Now().UTC()}
	if err := c.store.CreateOperator(c.t.Context(), fleet.Principal{Kind: fleet.KindSystem, Role: fleet.RoleAdmin},
		o); err != nil {
		c.t.Fatal(err)
	}
	return o
}

// tools are the tools of the scripted devices.
var tools = []fleet.Tool{
	{Name: "self.audio_speaker.set_volume", Description: "Set the volume", Audience: fleet.AudienceModel,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"volume":{"type":"integer","minimum":0,"maximum":100}},"required":["volume"]}`)},
	{Name: "self.get_device_status", Description: "Status", Audience: fleet.AudienceModel, InputSchema: json.RawMessage(
		`{"type":"object","properties":{}}`)},
	{Name: fleet.ToolReboot, Description: "Reboot", Audience: fleet.AudienceUser, InputSchema: json.RawMessage(
		`{"type":"object","properties":{}}`)},
	{Name: fleet.ToolReconfigureWiFi, Description: "Enter WiFi configuration mode", Audience: fleet.AudienceModel,
		InputSchema: json.RawMessage(`{"type":"object","properties":{}}`)},
	{Name: fleet.ToolSnapshot, Description: "Snapshot", Audience: fleet.AudienceUser,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"url":{"type":"string"},"quality":{"type":"integer","default":80,"minimum":1,"maximum":100}},"required":["url"]}`)},
	{Name: fleet.ToolPreviewImage, Description: "Preview", Audience: fleet.AudienceUser,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"url":{"type":"string"}},"required":["url"]}`)},
}

// poll adds devices that have started but not yet connected.
func (c *site) poll(ids ...fleet.DeviceID) {
	c.t.Helper()
	now := time.Now().UTC()
	var polls []enrolment.PollRecord
	for _, id := range ids {
		polls = append(polls, enrolment.PollRecord{
			Poll: enrolment.BootPoll{Device: id, ClientID: "c1", Board: "bread-compact-wifi", Chip: "esp32s3", Version: "2.4.0",
				ELFSHA256: "9f2c",
				Slot:      "ota_0", At: now, Facts: json.RawMessage(`{"chip_model_name":"esp32s3"}`)},
			Admission: enrolment.Admission{Device: id, Enrolment: fleet.EnrolmentEnrolled, ClientID: "c1"},
		})
	}
	if err := c.store.SavePolls(c.t.Context(), polls); err != nil {
		c.t.Fatal(err)
	}
}

// enrol adds devices that offer the usual tools.
func (c *site) enrol(ids ...fleet.DeviceID) {
	c.t.Helper()
	c.poll(ids...)
	now := time.Now().UTC()
	for _, id := range ids {
		if err := c.devices.Listed(c.t.Context(), fleet.ToolListing{Device: id, Inventory: fleet.Inventory{ID: strings.Repeat(
			"ab", 32), Tools: tools, CreatedAt: now}, Version: "2.4.0", At: now}); err != nil {
			c.t.Fatal(err)
		}
	}
}

// connect connects a device that replies by script.
func (c *site) connect(id fleet.DeviceID, script fleettest.Script) {
	c.link.Connect(id, script)
	c.epoch = time.Now().UnixNano()
	c.presences.Connected(fleet.Connection{Device: id, Node: "test", Epoch: c.epoch, RemoteAddr: "192.0.2.7",
		At: time.Now().UTC()})
}

func says(text string) fleettest.Script {
	return func(context.Context, string, json.RawMessage) (fleet.Answer, error) { return fleettest.Text(text), nil }
}

// A browser stores cookies and does not follow redirects.
type browser struct {
	t       testing.TB
	base    string
	client  *http.Client
	headers map[string]string
}

func (c *site) browser() *browser {
	jar, _ := cookiejar.New(nil)
	transport := &http.Transport{DisableCompression: true} // with -race, compression takes a third of the time
	c.t.Cleanup(transport.CloseIdleConnections)
	return &browser{t: c.t, base: c.url, headers: map[string]string{"Accept": "text/html,*/*;q=0.8"},
		client: &http.Client{Jar: jar, Transport: transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// signIn returns the browser of a signed-in operator.
func (c *site) signIn(name string) *browser {
	c.t.Helper()
	b := c.browser()
	p := b.post("/sign-in", url.Values{"name": {name}, "password": {password}})
	p.wantRedirect("/")
	return b
}

// as adds an operator of the role and signs them in.
func (c *site) as(role fleet.Role) *browser {
	c.t.Helper()
	c.operator(string(role)+"-1", role)
	return c.signIn(string(role) + "-1")
}

// A page is a response whose HTML can be searched by selector.
type page struct {
	t      testing.TB
	what   string
	status int
	header http.Header
	body   string
	root   *html.Node
}

func (b *browser) get(path string) *page { return b.do(http.MethodGet, path, "", nil) }

func (b *browser) post(path string, form url.Values) *page {
	return b.do(http.MethodPost, path, "application/x-www-form-urlencoded", strings.NewReader(form.Encode()))
}

func (b *browser) do(method, path, contentType string, body io.Reader) *page {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	for k, v := range b.headers {
		r.Header.Set(k, v)
	}
	resp, err := b.client.Do(r)
	if err != nil {
		b.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatalf("%s %s: %v", method, path, err)
	}
	p := &page{t: b.t, what: method + " " + path, status: resp.StatusCode, header: resp.Header, body: string(text)}
	if p.root, err = html.Parse(strings.NewReader(p.body)); err != nil {
		b.t.Fatalf("%s: %v", p.what, err)
	}
	return p
}

func (p *page) wantStatus(status int) *page {
	p.t.Helper()
	if p.status != status {
		p.t.Fatalf("%s: status %d, want %d; location %q\n%s", p.what, p.status, status, p.header.Get("Location"),
			p.text("#main"))
	}
	return p
}

func (p *page) wantRedirect(prefix string) string {
	p.t.Helper()
	p.wantStatus(http.StatusSeeOther)
	location := p.header.Get("Location")
	if !strings.HasPrefix(location, prefix) {
		p.t.Fatalf("%s: leads to %q, want %q", p.what, location, prefix)
	}
	return location
}

func (p *page) wantText(selector, text string) *page {
	p.t.Helper()
	if got := p.text(selector); !strings.Contains(got, text) {
		p.t.Errorf("%s: %s reads %q, want %q", p.what, selector, got, text)
	}
	return p
}

// find returns the elements that match "#id", "tag" or "tag[attr=value]".
func (p *page) find(selector string) []*html.Node {
	tag, attr, value := selector, "", ""
	if id, ok := strings.CutPrefix(selector, "#"); ok {
		tag, attr, value = "", "id", id
	} else if at := strings.IndexByte(selector, '['); at >= 0 {
		tag = selector[:at]
		attr, value, _ = strings.Cut(strings.TrimSuffix(selector[at+1:], "]"), "=")
	}
	var found []*html.Node
	for n := range p.root.Descendants() {
		if n.Type == html.ElementNode && (tag == "" || n.Data == tag) && (attr == "" || attribute(n, attr) == value) {
			found = append(found, n)
		}
	}
	return found
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// foreignPart reports whether the element is foreign text within a sentence.
func foreignPart(n *html.Node) bool {
	return n != nil && n.Data == "span" && attribute(n, "class") == "foreign" &&
		(n.PrevSibling != nil && n.PrevSibling.Type == html.TextNode || n.NextSibling != nil &&
			n.NextSibling.Type == html.TextNode)
}

// toolPrefix reports whether n is the dimmed beginning of a tool's name.
func toolPrefix(n *html.Node) bool { return n != nil && attribute(n, "class") == "tool-self" }

// text returns the text of the elements, with each run of blanks as one.
func (p *page) text(selector string) string {
	var b strings.Builder
	for _, n := range p.find(selector) {
		for d := range n.Descendants() {
			if d.Type == html.TextNode {
				if !foreignPart(d.Parent) && !foreignPart(d.PrevSibling) && !toolPrefix(d.PrevSibling) {
					b.WriteByte(' ')
				}
				b.WriteString(d.Data)
			}
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}
