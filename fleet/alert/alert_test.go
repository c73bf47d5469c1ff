package alert_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/cluster"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
)

var (
	admin    = fleet.Principal{Kind: fleet.KindSystem, Name: "test", Role: fleet.RoleAdmin}
	operator = fleet.Principal{Kind: fleet.KindOperator, ID: "o1", Name: "ada", Role: fleet.RoleOperator}
	viewer   = fleet.Principal{Kind: fleet.KindOperator, ID: "o2", Name: "bo", Role: fleet.RoleViewer}
)

// world is the service over a real database, with a clock set by the test.
type world struct {
	*testing.T
	db    *pgxpool.Pool
	store *postgres.Store
	*alert.Service
	o     alert.Options
	mu    sync.Mutex
	now   time.Time
	fleet fleet.PresenceSample // as counted for pages
}

func newWorld(t *testing.T, change ...func(*alert.Options)) *world {
	t.Parallel()
	w := &world{T: t, db: pgtest.New(t), now: time.Now().UTC().Truncate(time.Second)}
	w.store = postgres.New(w.db, postgres.Options{})
	w.o = alert.Options{Store: w.store, Facts: w.store, Log: slog.New(slog.DiscardHandler), Every: time.Second,
		Now: func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return w.now }}
	w.o.Presence = func(context.Context) (fleet.PresenceSample, error) { return w.fleet, nil }
	for _, f := range change {
		f(&w.o)
	}
	w.Service = alert.New(w.o)
	return w
}

// pass lets time go by and checks the conditions every half minute.
func (w *world) pass(d time.Duration) {
	w.Helper()
	for end := w.o.Now().Add(d); w.o.Now().Before(end); {
		w.mu.Lock()
		w.now = w.now.Add(30 * time.Second)
		w.mu.Unlock()
		w.Look(w.Context())
	}
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	if _, err := w.db.Exec(w.Context(), sql, args...); err != nil {
		w.Fatal(err)
	}
}

func (w *world) devices(n int, presence string, seen time.Time) {
	w.Helper()
	w.exec(`INSERT INTO devices (id, created_at, presence_since, presence, last_seen, enrolment)
		SELECT $1 || lpad(to_hex(i), 8, '0'), $3, $3, $2, $3, 'enrolled' FROM generate_series(1, $4) i`,
		presence[:2]+"--", presence, seen, n)
}

// samples stores samples of the fleet for every minute up to now.
func (w *world) samples(minutes, online, offline int) {
	w.Helper()
	w.fleet.Online, w.fleet.Offline = online, offline
	w.exec(`INSERT INTO presence_samples (at, online, unresponsive, offline, pending)
		SELECT $1::timestamptz - make_interval(mins => i), $2, 0, $3, 0 FROM generate_series(0, $4 - 1) i
		ON CONFLICT (at) DO UPDATE SET online = excluded.online, offline = excluded.offline`,
		w.now, online, offline, minutes)
}

// sampled lets time pass with a sample of the fleet each minute.
func (w *world) sampled(d time.Duration, online, offline int) {
	w.Helper()
	for end := w.now.Add(d); w.now.Before(end); {
		w.samples(1, online, offline)
		w.pass(time.Minute)
	}
	w.samples(1, online, offline)
}

// is compares the open alerts with "kind state severity devices".
func (w *world) is(want ...string) {
	w.Helper()
	var got []string
	for _, a := range w.Current(viewer) {
		got = append(got, fmt.Sprintf("%s %s %s %d", a.Kind, a.State, a.Severity, a.Devices))
	}
	if !slices.Equal(got, want) {
		w.Fatalf("open alerts: %q, want %q", got, want)
	}
}

func (w *world) only() alert.Alert {
	w.Helper()
	all := w.Current(viewer)
	if len(all) != 1 {
		w.Fatalf("%d alerts are open, want one", len(all))
	}
	return all[0]
}

func (w *world) set(k alert.Kind, change func(*alert.Threshold)) {
	w.Helper()
	s, err := w.Settings(w.Context(), admin)
	if err != nil {
		w.Fatal(err)
	}
	t := s.Thresholds[k]
	change(&t)
	if _, err := w.SetSettings(w.Context(), admin, alert.SettingsChange{
		Thresholds: map[alert.Kind]alert.Threshold{k: t}}); err != nil {
		w.Fatal(err)
	}
}

func TestEveryEventHasItsTransitions(t *testing.T) {
	for _, s := range append([]alert.Status{""}, alert.Statuses...) {
		for _, e := range alert.Events {
			to, ok := alert.Next(s, e)
			if ok && (s == alert.Ended || e == alert.Opened && s != "" || to == "") {
				t.Errorf("%s of %q leads to %q", e, s, to)
			}
		}
	}
	if _, ok := alert.Next(alert.Acknowledged, alert.Acked); ok {
		t.Error("what is acknowledged can be acknowledged again")
	}
}

func TestOnlineShareFellAndRecovers(t *testing.T) {
	w := newWorld(t)
	w.sampled(6*time.Minute, 100, 0) // devices had time to reconnect
	w.is()
	w.sampled(time.Minute, 70, 30)
	w.is() // it must hold for a minute
	w.sampled(3*time.Minute, 0, 100)
	w.is("online_dropped open bad 100")
	began := w.only().Began

	// After the span of the threshold, the fleet would be compared with itself.
	w.sampled(30*time.Minute, 0, 100)
	w.is("online_dropped open bad 100")
	// A slight recovery does not end it, and a full one not at once.
	w.sampled(3*time.Minute, 85, 15)
	w.is("online_dropped open bad 15")
	w.sampled(3*time.Minute, 95, 5)
	if a := w.only(); a.QuietSince == nil || !a.Began.Equal(began) {
		t.Errorf("alert %+v, want it quiet", a)
	}
	w.sampled(2*time.Minute, 0, 100) // not over after all: the same alert continues
	if a := w.only(); a.QuietSince != nil || !a.Began.Equal(began) {
		t.Errorf("alert %+v, want it to go on", a)
	}
	w.sampled(8*time.Minute, 99, 1)
	w.is()
	_, history, err := w.Get(w.Context(), viewer, func() alert.Alert {
		page, err := w.List(w.Context(), viewer, alert.Filter{States: []alert.Status{alert.Ended}})
		if err != nil || len(page.Items) != 1 {
			t.Fatalf("ended alerts: %+v, %v", page, err)
		}
		return page.Items[0]
	}().ID)
	if err != nil || len(history) != 2 || history[0].Event != alert.Opened || history[1].Event != alert.Closed {
		t.Errorf("history %+v, %v", history, err)
	}
}

func TestFewDevicesAreNoFall(t *testing.T) {
	w := newWorld(t)
	w.sampled(6*time.Minute, 3, 0)
	w.sampled(5*time.Minute, 2, 1) // a third, but one device
	w.is()
	w.sampled(5*time.Minute, 0, 3) // the whole fleet
	w.is("online_dropped open bad 3")
}

func TestAfterAStartDevicesMayReconnect(t *testing.T) {
	w := newWorld(t)
	// fleetd was down for an hour; before that, all devices were online.
	w.now = w.now.Add(-time.Hour)
	w.samples(20, 100, 0)
	w.now = w.now.Add(time.Hour)
	w.devices(4, "offline", w.now.Add(-30*24*time.Hour))
	w.Service = alert.New(w.o)
	if !w.Settling() {
		t.Error("presence counts at once")
	}
	w.sampled(4*time.Minute, 10, 90) // reconnecting
	w.is()
	w.sampled(2*time.Minute, 98, 2)
	w.sampled(2*time.Minute, 98, 2)
	w.is("devices_offline open bad 4")

	w = &world{T: t, db: w.db, store: w.store, o: w.o, now: w.now.Add(2 * time.Hour)}
	w.o.Now = func() time.Time { return w.now }
	w.o.Presence = func(context.Context) (fleet.PresenceSample, error) { return w.fleet, nil }
	w.exec(`DELETE FROM alert_events; DELETE FROM alerts; DELETE FROM devices`)
	w.Service = alert.New(w.o)
	w.sampled(8*time.Minute, 10, 90) // they do not reconnect
	w.is("online_dropped open bad 90")
}

func TestDevicesOfflineCountsWhatItsLinkFinds(t *testing.T) {
	w := newWorld(t)
	w.set(alert.DevicesOffline, func(th *alert.Threshold) { th.Span, th.Count = 2*time.Hour, 2 })
	w.pass(6 * time.Minute)
	w.devices(1, "offline", w.now.Add(-3*time.Hour))
	w.devices(5, "online", w.now.Add(-3*time.Hour))
	w.exec(`INSERT INTO devices (id, created_at, presence_since, presence, last_seen) VALUES
		('recent', now(), now(), 'offline', $1), ('never', now(), now(), 'pending', NULL)`, w.now.Add(-time.Minute))
	w.pass(2 * time.Minute)
	w.is() // one is fewer than two
	w.exec(`UPDATE devices SET last_seen = $1 WHERE id = 'recent'`, w.now.Add(-4*time.Hour))
	w.pass(2 * time.Minute)
	w.is("devices_offline open warning 2")
	q, err := fleet.ParseQuery(w.only().Query)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := w.store.CountDevices(t.Context(), q); err != nil || n != 2 {
		t.Errorf("the link %q finds %d devices, %v; the alert counts 2", q.Text, n, err)
	}
	w.exec(`UPDATE devices SET presence = 'offline'`) // twice as many, and half of the fleet
	w.pass(time.Minute)
	w.is("devices_offline open bad 8")
}

func TestAcknowledge(t *testing.T) {
	w := newWorld(t)
	w.pass(6 * time.Minute)
	w.devices(3, "offline", w.now.Add(-48*time.Hour))
	w.devices(20, "online", w.now)
	w.pass(2 * time.Minute)
	a := w.only()
	if got := w.Summary(viewer); got != (alert.Summary{Open: 1, Worst: alert.Warning}) {
		t.Errorf("summary %+v", got)
	}
	narrow := operator
	narrow.Scope, _ = fleet.NewScope("tag:lab", "", nil)
	for _, by := range []fleet.Principal{viewer, narrow} {
		if _, err := w.Acknowledge(t.Context(), by, a.ID, ""); !errors.Is(err, fleet.ErrForbidden) {
			t.Errorf("%s acknowledged it: %v", by.Name, err)
		}
	}
	if w.Summary(narrow) != (alert.Summary{}) || w.Current(narrow) != nil {
		t.Error("a principal that does not see the whole fleet sees alerts")
	}
	if _, err := w.Acknowledge(t.Context(), operator, a.ID, "line\x00break\n"); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a note with control characters: %v", err)
	}
	if _, err := w.Acknowledge(t.Context(), operator, a.ID, "power is out in hall 3"); err != nil {
		t.Fatal(err)
	}
	w.is("devices_offline acknowledged warning 3")
	if w.Summary(viewer).Open != 0 {
		t.Error("an acknowledged alert counts as open")
	}
	if _, err := w.Acknowledge(t.Context(), operator, a.ID, ""); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("a second acknowledgement: %v", err)
	}
	var entries int
	if err := w.db.QueryRow(t.Context(), `SELECT count(*) FROM audit_entries WHERE action = 'alert.acknowledge'
		AND subject = $1 AND actor_name = 'ada' AND detail->>'note' = 'power is out in hall 3'`, a.ID.String()).
		Scan(&entries); err != nil || entries != 1 {
		t.Errorf("%d audit entries, %v", entries, err)
	}

	w.exec(`UPDATE devices SET presence = 'offline', last_seen = $1 WHERE id IN (SELECT id FROM devices
		WHERE presence = 'online' ORDER BY id LIMIT 2)`, w.now.Add(-48*time.Hour))
	w.pass(time.Minute)
	w.is("devices_offline acknowledged warning 5") // not twice as many
	w.exec(`UPDATE devices SET presence = 'offline', last_seen = $1 WHERE id IN (SELECT id FROM devices
		WHERE presence = 'online' ORDER BY id LIMIT 1)`, w.now.Add(-48*time.Hour))
	w.pass(time.Minute)
	w.is("devices_offline open warning 6")
	if a := w.only(); a.AckedBy.Name != "ada" || a.Note != "power is out in hall 3" {
		t.Errorf("the acknowledgement is lost: %+v", a)
	}

	w.set(alert.DevicesOffline, func(th *alert.Threshold) { th.Enabled = false })
	w.pass(30 * time.Second)
	w.is() // a condition that is switched off ends at once
}

func TestTwoPeopleAcknowledgeAtOnce(t *testing.T) {
	w := newWorld(t)
	w.pass(6 * time.Minute)
	w.devices(3, "offline", w.now.Add(-48*time.Hour))
	w.pass(2 * time.Minute)
	id := w.only().ID
	outcomes := make(chan error, 8)
	for range cap(outcomes) {
		go func() {
			_, err := w.Acknowledge(context.WithoutCancel(t.Context()), operator, id, "me")
			outcomes <- err
		}()
	}
	done := 0
	for range cap(outcomes) {
		if err := <-outcomes; err == nil {
			done++
		} else if !errors.Is(err, fleet.ErrConflict) {
			t.Error(err)
		}
	}
	if done != 1 {
		t.Errorf("%d of them acknowledged it", done)
	}
}

func TestCrashLoops(t *testing.T) {
	w := newWorld(t)
	w.devices(3, "online", w.now)
	ids := []fleet.DeviceID{"on--00000001", "on--00000002", "stranger"}
	poll := func(id fleet.DeviceID, n int) {
		w.exec(`INSERT INTO report_changes (device_id, at, code, params)
			SELECT $1, $2::timestamptz - i * interval '1 minute', 'restarted', '{}'
			FROM generate_series(0, $3 - 1) i`, id, w.now, n)
	}
	poll(ids[0], 4)
	poll(ids[2], 20) // is not enrolled
	w.pass(2 * time.Minute)
	w.is()
	poll(ids[0], 1)
	w.pass(2 * time.Minute)
	w.is("crash_loop open warning 1")
	if got := w.only().Query; got != "id:on--00000001" {
		t.Errorf("its link finds %q", got)
	}
	w.exec(`INSERT INTO device_vitals (device_id, at, safe_mode, core_dump, vitals) VALUES
		('on--00000003', now(), true, false, '{}')`)
	w.pass(time.Minute)
	w.is("crash_loop open warning 2")

	// The counts outlive the process. An hour after the restarts the alert ends.
	w.exec(`DELETE FROM device_vitals`)
	w.Service = alert.New(w.o)
	w.pass(30 * time.Minute)
	w.is("crash_loop open warning 1")
	w.pass(40 * time.Minute)
	w.is()
}

func TestToolsChangedWithoutFirmware(t *testing.T) {
	w := newWorld(t)
	w.devices(2, "online", w.now)
	list := func(device, inventory, elf string, partial bool) {
		t.Helper()
		if err := w.store.SaveListing(t.Context(), fleet.ToolListing{Device: fleet.DeviceID(device), At: time.Now(),
			Version: "2.0.3", ELFSHA256: elf, Partial: partial, Inventory: fleet.Inventory{
				ID: strings.Repeat("0", 60) + inventory, Tools: []fleet.Tool{{Name: "self." + inventory}},
				CreatedAt: time.Now()}}); err != nil {
			t.Fatal(err)
		}
	}
	const a, b = "on--00000001", "on--00000002"
	list(a, "aaaa", "e1", false)
	list(a, "bbbb", "e2", false) // with an update
	list(a, "cccc", "e2", true)  // part of a list that broke off
	list(a, "bbbb", "e2", false)
	list(b, "aaaa", "e1", false)
	w.pass(time.Minute)
	w.is()
	list(b, "cccc", "e1", false)
	w.pass(time.Minute)
	w.is("tools_changed open warning 1")
	if got := w.only().Query; got != "id:"+b {
		t.Errorf("its link finds %q", got)
	}
}

func TestDisksCertificatesAndUpstreams(t *testing.T) {
	var disk alert.Disk
	var upstream alert.Upstream
	var ends time.Time
	w := newWorld(t, func(o *alert.Options) {
		o.Disks = func() []alert.Disk { return []alert.Disk{disk} }
		o.Certificates = func() []alert.Certificate { return []alert.Certificate{{Name: "fleet.pem", Ends: ends}} }
		o.Upstreams = func(context.Context) []alert.Upstream { return []alert.Upstream{upstream} }
	})
	disk = alert.Disk{Name: "./data", Free: 50 << 30, Total: 100 << 30}
	upstream = alert.Upstream{Name: "voice:8000"}
	ends = w.now.Add(100 * 24 * time.Hour)
	w.pass(2 * time.Minute)
	w.is()
	disk.Free, upstream.Down, ends = 9<<30, w.now, w.now.Add(10*24*time.Hour)
	w.pass(3 * time.Minute)
	w.is("upstream_down open bad 0", "certificate_expiring open warning 0", "disk_low open warning 0")
	disk.Free = 11 << 30 // above the threshold, but not far enough
	upstream.Down = time.Time{}
	ends = w.now.Add(-time.Hour)
	w.pass(6 * time.Minute)
	w.is("certificate_expiring open bad 0", "disk_low open warning 0")
	disk.Free = 13 << 30
	w.pass(7 * time.Minute)
	w.is("certificate_expiring open bad 0")
}

func TestReceiversOfTheRecord(t *testing.T) {
	stream, witness := alert.Receiver{Name: "siem"}, alert.Receiver{Name: "witness.example/w1"}
	w := newWorld(t, func(o *alert.Options) {
		o.Receivers = func() []alert.Receiver { return []alert.Receiver{stream, witness} }
	})
	stream.Down = w.now
	w.pass(5 * time.Minute)
	w.is()
	w.pass(8 * time.Minute)
	w.is("record_not_delivered open warning 0")
	if a := w.only(); a.Subject != "siem" || a.Params.Case() != "" {
		t.Errorf("the alert is about %q, case %q", a.Subject, a.Params.Case())
	}
	stream.Down = time.Time{}
	witness.Down, witness.Replaced = w.now, true
	w.pass(2 * time.Minute)
	w.is("record_not_delivered open bad 0", "record_not_delivered open warning 0")
	w.pass(10 * time.Minute)
	if a := w.only(); a.Subject != "witness.example/w1" || a.Params.Case() != "replaced" {
		t.Errorf("the alert is about %q, case %q", a.Subject, a.Params.Case())
	}
}

func TestPlugins(t *testing.T) {
	lamp, wrong := alert.Plugin{Name: "lamp"}, alert.Plugin{Name: "wrong"}
	w := newWorld(t, func(o *alert.Options) {
		o.Plugins = func() []alert.Plugin { return []alert.Plugin{lamp, wrong} }
	})
	w.pass(2 * time.Minute)
	w.is()
	lamp.Down, lamp.Why = w.now, fleet.Because("plugin_ended", "detail", "exit 3")
	w.pass(30 * time.Second)
	w.is()
	w.pass(3 * time.Minute)
	w.is("plugin_crashing open warning 0")
	a := w.only()
	if why, _ := a.Params["why"].(fleet.Reason); a.Subject != "lamp" || !why.Is("plugin_ended") {
		t.Errorf("the alert is about %q, because %v", a.Subject, a.Params["why"])
	}
	lamp.Down = time.Time{}
	wrong.Down, wrong.Invalid = w.now, true
	w.pass(10 * time.Minute)
	if a = w.only(); a.Subject != "wrong" || a.Params.Case() != "invalid" {
		t.Errorf("the alert is about %q, case %q", a.Subject, a.Params.Case())
	}
}

// An alert about tools in quarantine opens at once and ends after the last release.
func TestQuarantinedTools(t *testing.T) {
	var held []alert.Quarantined
	w := newWorld(t, func(o *alert.Options) { o.Quarantined = func() []alert.Quarantined { return held } })
	w.pass(2 * time.Minute)
	w.is()
	held = []alert.Quarantined{{Device: "endpoint.lamp", Tools: []string{"on", "off"}, Since: w.now}}
	w.pass(time.Minute)
	w.is("tool_quarantined open warning 0")
	if a := w.only(); a.Subject != "endpoint.lamp" || a.Params["tool"] != "on" {
		t.Errorf("the alert is about %q, %v", a.Subject, a.Params)
	}
	held = nil
	w.pass(7 * time.Minute)
	w.is()
}

func TestThresholds(t *testing.T) {
	w := newWorld(t)
	with := func(k alert.Kind, th alert.Threshold) alert.SettingsChange {
		return alert.SettingsChange{Thresholds: map[alert.Kind]alert.Threshold{k: th}}
	}
	day := 24 * time.Hour
	tests := []struct {
		name   string
		change alert.SettingsChange
		field  string // the invalid field; "" if the change is accepted
	}{
		{"good", with(alert.OnlineDropped, alert.Threshold{Enabled: true, Percent: 5, Span: time.Hour, Count: 10}), ""},
		{"no condition", with("made_up", alert.Threshold{}), "kind"},
		{"no percent", with(alert.OnlineDropped, alert.Threshold{Span: time.Hour, Count: 1}), "percent"},
		{"too much", with(alert.OnlineDropped, alert.Threshold{Percent: 101, Span: time.Hour, Count: 1}), "percent"},
		{"not used", with(alert.DiskLow, alert.Threshold{Percent: 5, Count: 1}), "count"},
		{"negative", with(alert.RolledBack, alert.Threshold{Span: day, Count: -1}), "count"},
		{"too short", with(alert.RolledBack, alert.Threshold{Span: time.Second, Count: 1}), "span_ms"},
		{"part of a second", with(alert.CrashLoop, alert.Threshold{Span: time.Hour + 1, Count: 5}), "span_ms"},
		{"waits too long", alert.SettingsChange{EndAfter: new(2 * time.Hour)}, "end_after_ms"},
	}
	for _, tt := range tests {
		_, err := w.SetSettings(t.Context(), admin, tt.change)
		var refusal *fleet.Error
		if errors.As(err, &refusal) != (tt.field != "") || refusal != nil && refusal.Field != tt.field {
			t.Errorf("%s: %v, want %q at fault", tt.name, err, tt.field)
		}
	}
	if _, err := w.SetSettings(t.Context(), operator, tests[0].change); !errors.Is(err, fleet.ErrForbidden) {
		t.Errorf("an operator changed them: %v", err)
	}
	again := alert.New(w.o)
	s, err := again.Settings(t.Context(), viewer)
	if err != nil || s.Thresholds[alert.OnlineDropped].Count != 10 || s.Thresholds[alert.DiskLow].Percent != 10 {
		t.Errorf("after a restart: %+v, %v", s, err)
	}
	var entries int
	if err := w.db.QueryRow(t.Context(), `SELECT count(*) FROM audit_entries WHERE action = 'alert.settings'`).
		Scan(&entries); err != nil || entries != 1 {
		t.Errorf("%d audit entries, %v", entries, err)
	}
}

func TestCluster(t *testing.T) {
	standby := cluster.Node{Name: "core-2", Role: cluster.Core, State: cluster.StandsBy, Version: "1"}
	edge := cluster.Node{Name: "edge-1", Role: cluster.Edge, State: cluster.Attached, Version: "1"}
	w := newWorld(t, func(o *alert.Options) {
		o.Nodes = func() []cluster.Node {
			return []cluster.Node{{Name: "core-1", Role: cluster.Core, State: cluster.Leads, Version: "1"}, standby, edge}
		}
	})
	w.pass(2 * time.Minute)
	w.is()
	standby.State = cluster.Silent
	w.pass(time.Minute)
	w.is()
	w.pass(time.Minute)
	w.is("no_standby open warning 0")
	standby.State = cluster.StandsBy
	edge.State, edge.Heard = cluster.Gone, w.now
	w.pass(6 * time.Minute)
	if a := w.only(); a.Kind != alert.EdgeGone || a.Subject != "edge-1" || a.Severity != alert.Bad {
		t.Errorf("the alert is %+v", a)
	}
	id := w.only().ID
	lost := edge
	edge = cluster.Node{Name: "edge-2", Role: cluster.Edge, State: cluster.Attached, Version: "1"}
	w.Service = alert.New(w.o) // the next leader has not heard the edge
	w.pass(10 * time.Minute)
	if a := w.only(); a.ID != id || a.QuietSince != nil {
		t.Errorf("with the next leader the alert is %+v", a)
	}
	edge = lost
	edge.State = cluster.Attached
	w.pass(6 * time.Minute)
	w.is()
	edge.Version = "2"
	w.pass(9 * time.Minute)
	w.is()
	w.pass(2 * time.Minute)
	if a := w.only(); a.Kind != alert.VersionsDiffer || a.Params["versions"] != "1, 2" {
		t.Errorf("the alert is %+v", a)
	}
	edge.State = cluster.Gone // what no longer runs has no version
	w.pass(6 * time.Minute)
	if a := w.only(); a.Kind != alert.EdgeGone {
		t.Errorf("the alert is %+v", a)
	}
}
