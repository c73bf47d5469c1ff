package alert_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/webhook"
)

// scoped is an operator of the devices in a room, and a viewer of the rest.
func scoped(room string) fleet.Principal {
	filter, err := fleet.ParseScope("tag:" + room)
	if err != nil {
		panic(err)
	}
	return fleet.Principal{Kind: fleet.KindOperator, ID: "o3", Name: "kim", Role: fleet.RoleOperator,
		Scope: &fleet.Scope{Filter: filter, Rest: fleet.RoleViewer}}
}

// posted collects the deliveries as "webhook event kind".
func (w *world) posted(names map[uuid.UUID]string) (take func() []string) {
	var all []string
	w.store.SetOutbox(func(_ context.Context, _ pgx.Tx, jobs []webhook.Job) error {
		for _, j := range jobs {
			a, err := j.Alert()
			if err != nil {
				return err
			}
			all = append(all, fmt.Sprintf("%s %s %s", names[j.Webhook], j.Event, a.Kind))
		}
		return nil
	})
	return func() []string {
		slices.Sort(all)
		got := all
		all = nil
		return got
	}
}

func (w *world) hook(names map[uuid.UUID]string, name string, r alert.Route, events ...webhook.EventKind) {
	w.Helper()
	if events == nil {
		events = webhook.EventKinds
	}
	route, err := r.Check()
	if err != nil {
		w.Fatal(err)
	}
	hook := webhook.Webhook{ID: uuid.Must(uuid.NewV7()), Name: name, Address: []byte{1}, Secret: []byte{1}, Events: events,
		Enabled: true, CreatedAt: w.now, Shape: webhook.Fleetd, Lang: "en", Route: route}
	names[hook.ID] = name
	if err := w.store.CreateWebhook(w.Context(), admin, hook); err != nil {
		w.Fatal(err)
	}
}

// room adds devices with a tag that were last seen at a time.
func (w *world) room(tag string, n int, presence string, seen time.Time) {
	w.Helper()
	w.exec(`INSERT INTO devices (id, created_at, presence_since, presence, last_seen, enrolment, tags, tags_key)
		SELECT replace($1, '/', '-') || '-' || $2 || lpad(i::text, 2, '0'), $3, $3, $2, $3, 'enrolled', ARRAY[$1], $5
		FROM generate_series(1, $4) i`, tag, presence, seen, n, "\x01"+tag+"\x01")
}

func wantJobs(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("posted %q, want %q", got, want)
	}
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var refused *fleet.Error
	if !errors.As(err, &refused) || refused.Code != code {
		t.Errorf("error %v, want %s", err, code)
	}
}

// A silenced alert is neither sent nor counted, and is sent once after the silence, also if fleetd was
// restarted meanwhile.
func TestSilencedAlertsAreNotSent(t *testing.T) {
	w := newWorld(t)
	names := make(map[uuid.UUID]string)
	w.hook(names, "all", alert.Route{})
	posted := w.posted(names)
	w.room("lab", 2, "offline", w.now.Add(-48*time.Hour))
	w.pass(7 * time.Minute)
	w.is("devices_offline open bad 2")
	wantJobs(t, posted(), "all alert.opened devices_offline")

	a := w.only()
	made, err := w.Silence(w.Context(), operator, alert.SilenceRequest{Alert: a.ID, For: time.Hour,
		Reason: "moving the lab"})
	if err != nil {
		t.Fatal(err)
	}
	if a := w.only(); !a.Silenced(w.now) || a.Silence.Reason != "moving the lab" || a.Silence.By.Name != "ada" {
		t.Errorf("the alert has the silence %+v", a.Silence)
	}
	if got := w.Summary(viewer); got.Open != 0 || got.Worst != "" {
		t.Errorf("the badge counts a silenced alert: %+v", got)
	}
	if _, err := w.Acknowledge(w.Context(), operator, a.ID, ""); err != nil {
		t.Fatal(err)
	}
	w.room("lab2", 3, "offline", w.now.Add(-48*time.Hour)) // doubled since it was acknowledged: it is open again
	w.pass(time.Minute)
	w.is("devices_offline open bad 5")
	wantJobs(t, posted())

	w.Service = alert.New(w.o) // a restart, or another leader
	w.pass(50 * time.Minute)
	w.is("devices_offline open bad 5")
	wantJobs(t, posted())
	w.pass(10 * time.Minute)
	wantJobs(t, posted(), "all alert.opened devices_offline")
	if got := w.Summary(viewer); got.Open != 1 || got.Worst != alert.Bad {
		t.Errorf("after the silence the badge is %+v", got)
	}
	w.pass(10 * time.Minute)
	wantJobs(t, posted())

	_, history, err := w.Get(w.Context(), viewer, a.ID)
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	for _, r := range history {
		events = append(events, string(r.Event)+" "+r.By.Name+" "+r.Note)
	}
	want := []string{"opened  ", "silenced ada moving the lab", "acknowledged ada ", "worsened  ", "unsilenced  "}
	if !slices.Equal(events, want) {
		t.Errorf("history %q, want %q", events, want)
	}
	// Mails have only the events that were sent.
	items, _, last, err := w.store.AlertDigest(w.Context(), alert.Route{}, 0, w.now.Add(time.Hour), 50)
	if err != nil || len(items) != 2 || items[0].Record.Event != alert.Opened ||
		items[1].Record.Event != alert.Unsilenced || last != history[4].Seq {
		t.Errorf("digest %+v, last %d, %v", items, last, err)
	}
	var audited int
	if err := w.db.QueryRow(t.Context(), `SELECT count(*) FROM audit_entries WHERE action = 'alert.silence'
		AND subject = $1 AND detail->>'reason' = 'moving the lab'`, made.ID.String()).Scan(&audited); err != nil || audited != 1 {
		t.Errorf("%d audit entries, %v", audited, err)
	}
}

// A silence of a kind also holds for alerts that open later; ended early, it lets them be sent.
func TestSilenceOfAKindEndsEarly(t *testing.T) {
	w := newWorld(t)
	names := make(map[uuid.UUID]string)
	w.hook(names, "all", alert.Route{})
	posted := w.posted(names)
	made, err := w.Silence(w.Context(), operator, alert.SilenceRequest{Kind: alert.DevicesOffline, For: 8 * time.Hour,
		Reason: "x"})
	if err != nil {
		t.Fatal(err)
	}
	w.room("lab", 2, "offline", w.now.Add(-48*time.Hour))
	w.pass(7 * time.Minute)
	w.is("devices_offline open bad 2")
	wantJobs(t, posted())
	if _, err := w.EndSilence(w.Context(), viewer, made.ID); !errors.Is(err, fleet.ErrForbidden) {
		t.Errorf("a viewer ends it: %v", err)
	}
	wantJobs(t, posted())
	if _, err := w.EndSilence(w.Context(), operator, made.ID); err != nil {
		t.Fatal(err)
	}
	wantJobs(t, posted(), "all alert.opened devices_offline")
	_, err = w.EndSilence(w.Context(), operator, made.ID)
	wantCode(t, err, "silence_ended")

	// An alert that ends while it is silenced is not sent at all.
	if _, err := w.Silence(w.Context(), operator, alert.SilenceRequest{Kind: alert.DevicesOffline, For: 10 * time.Minute,
		Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	w.exec(`UPDATE devices SET presence = 'online', last_seen = $1`, w.now)
	w.pass(30 * time.Minute)
	w.is()
	wantJobs(t, posted())
}

// A silence of devices holds while all devices of the alert match, and that of an operator with a scope
// only within the scope.
func TestSilenceOfDevices(t *testing.T) {
	w := newWorld(t)
	names := make(map[uuid.UUID]string)
	w.hook(names, "all", alert.Route{})
	posted := w.posted(names)
	kim := scoped("lab")
	if _, err := w.Silence(w.Context(), kim, alert.SilenceRequest{Query: "tag:lab,hall", For: time.Hour,
		Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	w.room("lab", 2, "offline", w.now.Add(-48*time.Hour))
	w.pass(7 * time.Minute)
	wantJobs(t, posted())
	if a := w.only(); !a.Silenced(w.now) || a.Silence.Scope != "tag:lab" {
		t.Errorf("the alert has the silence %+v", a.Silence)
	}
	w.room("hall", 1, "offline", w.now.Add(-48*time.Hour)) // beyond the scope
	w.pass(2 * time.Minute)
	wantJobs(t, posted(), "all alert.opened devices_offline")
	a := w.only()
	if a.Silenced(w.now) {
		t.Error("an operator silenced devices beyond their scope")
	}
	_, err := w.Silence(w.Context(), kim, alert.SilenceRequest{Alert: a.ID, For: time.Hour, Reason: "x"})
	wantCode(t, err, "silence_out_of_scope")
	whole, err := w.Silence(w.Context(), operator, alert.SilenceRequest{Alert: a.ID, For: time.Hour, Reason: "x"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.EndSilence(w.Context(), kim, whole.ID)
	wantCode(t, err, "silence_out_of_scope")
	if a := w.only(); !a.Silenced(w.now) {
		t.Error("an operator with a scope ended the silence of the fleet's")
	}
	if _, err := w.Silence(w.Context(), kim, alert.SilenceRequest{Kind: alert.DiskLow, For: time.Hour,
		Reason: "x"}); err != nil {
		t.Fatal(err)
	}
}

func TestRefusedSilences(t *testing.T) {
	w := newWorld(t)
	hidden := scoped("lab")
	hidden.Scope = &fleet.Scope{Filter: hidden.Scope.Filter}
	model := fleet.Principal{Kind: fleet.KindModel, Name: "m", Role: fleet.RoleOperator}
	ok := alert.SilenceRequest{Kind: alert.DiskLow, For: time.Hour, Reason: "x"}
	with := func(change func(*alert.SilenceRequest)) alert.SilenceRequest {
		r := ok
		change(&r)
		return r
	}
	for _, tt := range []struct {
		by   fleet.Principal
		r    alert.SilenceRequest
		code string
	}{
		{viewer, ok, "forbidden"},
		{hidden, ok, "forbidden"},
		{model, ok, "person_needed"},
		{operator, with(func(r *alert.SilenceRequest) { r.For = 100 * 365 * 24 * time.Hour }), "invalid_silence_end"},
		{operator, with(func(r *alert.SilenceRequest) { r.For = 0 }), "invalid_silence_end"},
		{operator, with(func(r *alert.SilenceRequest) { r.For = -time.Hour }), "invalid_silence_end"},
		{operator, with(func(r *alert.SilenceRequest) { r.Until = w.now.Add(-time.Minute) }), "invalid_silence_end"},
		{operator, with(func(r *alert.SilenceRequest) { r.Reason = " " }), "invalid_reason"},
		{operator, with(func(r *alert.SilenceRequest) { r.Reason = strings.Repeat("x", 10_000) }), "invalid_reason"},
		{operator, with(func(r *alert.SilenceRequest) { r.Reason = "a\nb" }), "invalid_reason"},
		{operator, with(func(r *alert.SilenceRequest) { r.Kind = "" }), "invalid_silence"},
		{operator, with(func(r *alert.SilenceRequest) { r.Kind = "moon" }), "invalid_alert_kind"},
		{operator, with(func(r *alert.SilenceRequest) { r.Query = `tag:"` }), "invalid_query"},
	} {
		_, err := w.Silence(w.Context(), tt.by, tt.r)
		wantCode(t, err, tt.code)
	}
	unknown := with(func(r *alert.SilenceRequest) { r.Alert = uuid.Must(uuid.NewV7()) })
	_, err := w.Silence(w.Context(), operator, unknown)
	wantCode(t, err, "unknown_alert")
	var n int
	if err := w.db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM silences) + (SELECT count(*) FROM audit_entries
		WHERE action LIKE 'alert.%')`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows of refused silences, %v", n, err)
	}
}

// Each webhook gets the alerts of its devices, kinds and severities, their ends also when the devices are
// back, and alerts that come into its route later as opened.
func TestRoutes(t *testing.T) {
	w := newWorld(t)
	names := make(map[uuid.UUID]string)
	w.hook(names, "all", alert.Route{})
	w.hook(names, "bad", alert.Route{Least: alert.Bad}, webhook.AlertOpened, webhook.AlertEnded)
	w.hook(names, "disks", alert.Route{Kinds: []alert.Kind{alert.DiskLow}})
	w.hook(names, "hall", alert.Route{Query: "tag:hall/*"})
	w.hook(names, "lab", alert.Route{Query: "tag:lab/*"})
	posted := w.posted(names)
	w.room("other", 20, "online", w.now)
	w.room("lab/1", 2, "offline", w.now.Add(-48*time.Hour))
	w.pass(7 * time.Minute)
	w.is("devices_offline open warning 2")
	wantJobs(t, posted(), "all alert.opened devices_offline", "lab alert.opened devices_offline")
	w.room("hall/1", 1, "offline", w.now.Add(-48*time.Hour))
	w.pass(time.Minute)
	wantJobs(t, posted(), "hall alert.opened devices_offline")
	w.room("cellar", 30, "offline", w.now.Add(-48*time.Hour))
	w.pass(time.Minute)
	w.is("devices_offline open bad 33")
	wantJobs(t, posted(), "all alert.worsened devices_offline", "bad alert.opened devices_offline",
		"hall alert.worsened devices_offline", "lab alert.worsened devices_offline")
	w.exec(`UPDATE devices SET presence = 'online', last_seen = $1`, w.now)
	w.pass(7 * time.Minute)
	w.is()
	wantJobs(t, posted(), "all alert.ended devices_offline", "bad alert.ended devices_offline",
		"hall alert.ended devices_offline", "lab alert.ended devices_offline")
	for _, bad := range []alert.Route{{Query: `tag:"`}, {Least: "moon"}, {Kinds: []alert.Kind{"moon"}}} {
		if _, err := bad.Check(); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("route %+v: %v", bad, err)
		}
	}
}

func TestShareOfAGroup(t *testing.T) {
	w := newWorld(t)
	groups := []alert.Group{
		{Name: "room 1", Query: "tag:site/1", Warning: 50, Critical: 80, Least: 2, Span: 5 * time.Minute},
		{Name: "site", Query: "tag:site/*", Warning: 20, Critical: 50, Least: 3, Span: 5 * time.Minute},
		{Name: "fleet", Warning: 90, Least: 1, Span: 5 * time.Minute},
	}
	if _, err := w.SetSettings(w.Context(), admin, alert.SettingsChange{Groups: &groups}); err != nil {
		t.Fatal(err)
	}
	w.set(alert.DevicesOffline, func(t *alert.Threshold) { t.Enabled = false })
	w.room("site/1", 3, "online", w.now)
	w.room("site/1", 3, "offline", w.now.Add(-10*time.Minute))
	w.room("site/2", 20, "online", w.now)
	w.pass(6 * time.Minute) // devices had time to reconnect, and these are offline for 5 minutes
	w.pass(2 * time.Minute)
	w.is("group_offline open warning 3")
	if a := w.only(); a.Subject != "room 1" || a.Params["percent"] != int64(50) || a.Params["all"] != int64(6) {
		t.Errorf("alert %+v", a)
	}
	w.exec(`UPDATE devices SET presence = 'offline', last_seen = $1 WHERE tags = '{site/2}' AND right(id, 1) < '6'`,
		w.now.Add(-30*time.Minute))
	w.pass(2 * time.Minute)
	var got []string
	for _, a := range w.Current(viewer) {
		got = append(got, fmt.Sprintf("%s %s %d", a.Subject, a.Severity, a.Devices))
	}
	slices.Sort(got)
	if want := []string{"room 1 warning 3", "site bad 15"}; !slices.Equal(got, want) {
		t.Errorf("alerts %q, want %q", got, want)
	}
	for _, tt := range []struct {
		code   string
		change func(*alert.Group)
	}{
		{"invalid_name", func(g *alert.Group) { g.Name = "" }},
		{"invalid_group", func(g *alert.Group) { g.Name = "site" }},
		{"invalid_group", func(g *alert.Group) { g.Query = "presence:online" }},
		{"invalid_query", func(g *alert.Group) { g.Query = `tag:"` }},
		{"invalid_group", func(g *alert.Group) { g.Warning = 0 }},
		{"invalid_group", func(g *alert.Group) { g.Critical = 40 }},
		{"invalid_group", func(g *alert.Group) { g.Least = 0 }},
		{"invalid_group", func(g *alert.Group) { g.Span = time.Second }},
		{"invalid_query", func(g *alert.Group) { g.Query = "name:" + strings.Repeat("x", 1010) }},
	} {
		bad := slices.Clone(groups)
		tt.change(&bad[0])
		_, err := w.SetSettings(w.Context(), admin, alert.SettingsChange{Groups: &bad})
		wantCode(t, err, tt.code)
	}
	_, err := w.SetSettings(w.Context(), operator, alert.SettingsChange{Groups: &groups})
	wantCode(t, err, "forbidden")
}
