package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/picture"
	"fleetd/fleet/postgres"
	"fleetd/fleet/telemetry"
)

func line(t *testing.T, s *postgres.Store, f fleet.TimelineFilter) fleet.Page[fleet.TimelineEntry] {
	t.Helper()
	page, err := s.Timeline(t.Context(), f)
	check(t, err)
	return page
}

func codes(list []fleet.TimelineEntry) (all []string) {
	for _, e := range list {
		all = append(all, string(e.Kind)+" "+e.Code)
	}
	return all
}

// eventful makes one event of each kind happen to a device.
func eventful(t *testing.T, s *postgres.Store, id fleet.DeviceID) {
	t.Helper()
	ctx := t.Context()
	at := now().Add(-time.Minute)
	second := func(n int) time.Time { return at.Add(time.Duration(n) * time.Second) }
	check(t, s.SavePresence(ctx, []fleet.PresenceChange{connect(id, 1, second(1))}))
	check(t, s.SavePresence(ctx, []fleet.PresenceChange{{Device: id, Presence: fleet.PresenceOffline, Since: second(2),
		Evidence: fleet.Because(fleet.PresenceBroke, "detail", fleet.Because(fleet.CauseSocketClosed))}}))
	check(t, s.SaveVitals(ctx, map[fleet.DeviceID]telemetry.Vitals{id: {At: second(3), Boots: 7, ResetReason: "panic",
		Version: "1.0.0\x00", Crashes: 2}}))
	check(t, s.SaveDeviceConfigs(ctx, map[fleet.DeviceID]telemetry.Config{id: {At: second(4), Version: 5,
		Values: []byte(`{}`)}}))
	check(t, s.UpdateDevice(ctx, admin, id, fleet.DevicePatch{Name: ptr("kitchen"), Tags: ptr([]string{"lab", "x"})}))
	check(t, s.SetHold(ctx, admin, id, &fleet.Hold{Reason: "mine", By: admin, Since: now(), Until: ptr(now())}))
	check(t, s.SetHold(ctx, admin, id, nil))
	c := newCall(id, fleet.CallSent)
	check(t, s.InsertCall(ctx, c))
	check(t, s.FinishCall(ctx, finish(c, fleet.CallSucceeded, `{"content":[]}`)))
	check(t, s.CreateSnapshot(ctx, picture.Snapshot{ID: uuid.Must(uuid.NewV7()), Kind: picture.SnapshotScreen, Device: id,
		Call: c.ID, Blob: "ab", MediaType: "image/png", Width: 1, Height: 1, Size: 9, CreatedAt: now()}))
	check(t, s.CreateCoreDump(ctx, telemetry.CoreDump{ID: uuid.Must(uuid.NewV7()), Device: id, Call: c.ID, Blob: "cd",
		Size: 9, Summary: "task main", CreatedAt: now()}))
	check(t, s.SaveConversations(ctx, []fleet.Conversation{{ID: uuid.Must(uuid.NewV7()), Device: id, Upstream: "voice",
		Begin: now(), End: ptr(now().Add(time.Second)), Ended: fleet.EndedByDevice, Calls: 2}}))
	check(t, s.Quarantine(ctx, campaign.Quarantine{Device: id, Reason: text("x"), Since: now(), Until: now().Add(time.Hour)}))
	check(t, s.ClearQuarantine(ctx, admin, id))
}

func TestTimelineHasEverything(t *testing.T) {
	s := newStore(t)
	addDevices(t, s, unit, "other")
	eventful(t, s, unit)
	page := line(t, s, fleet.TimelineFilter{Device: unit})
	want := []string{"presence online", "presence offline", "crash restarted", "configuration configured",
		"firmware firmware_first", "edit device.update", "hold device.hold", "hold device.release", "call succeeded",
		"picture picture_screen", "crash core_dump", "conversation conversation", "audit quarantine.clear"}
	got := codes(page.Items)
	slices.Reverse(got)
	slices.Sort(got)
	slices.Sort(want)
	same(t, got, want)
	for i, e := range page.Items[1:] {
		if e.At.After(page.Items[i].At.Add(time.Millisecond)) {
			t.Errorf("entry %d, %v, is newer than the one before it", i+1, e.At)
		}
	}
	by := map[string]fleet.TimelineEntry{}
	for _, e := range page.Items {
		by[e.Code] = e
	}
	same(t, by["offline"].Params, fleet.Params{"transport": "mqtt",
		"evidence": fleet.Because(fleet.PresenceBroke, "detail", fleet.Because(fleet.CauseSocketClosed))})
	same(t, by["restarted"].Params, fleet.Params{"reset_reason": "panic", "boots": int64(7), "crashes": int64(2),
		"version": "1.0.0"})
	same(t, by["device.update"].Params, fleet.Params{"name": "kitchen", "tags": "lab, x"})
	same(t, by["device.update"].Actor.Name, admin.Name)
	if by["succeeded"].Ref == "" || by["succeeded"].Params["tool"] == nil {
		t.Errorf("the call is %+v", by["succeeded"])
	}
	if n := len(line(t, s, fleet.TimelineFilter{Device: "other"}).Items); n != 1 { // its first firmware
		t.Errorf("another device has %d entries", n)
	}
}

// A call says why it failed with the parameters of the code, whatever they are.
func TestTimelineOfFailedCalls(t *testing.T) {
	s := newStore(t)
	addDevices(t, s, unit)
	full := fleet.Params{"device": "front door", "n": int64(3), "why": fleet.Because("x", "n", int64(1))}
	for _, tt := range []struct{ params, want fleet.Params }{{full, full}, {nil, nil},
		{fleet.Params{"tool": "self.\x00"}, nil}} { // what jsonb does not take is left out
		c := newCall(unit, fleet.CallSent)
		check(t, s.InsertCall(t.Context(), c))
		c.State, c.Error, c.FinishedAt = fleet.CallRefused, &fleet.CallError{Code: "unknown_tool", Params: tt.params}, ptr(now())
		check(t, s.FinishCall(t.Context(), c))
		newest := line(t, s, fleet.TimelineFilter{Device: unit}).Items[0]
		reason, _ := newest.Params["reason"].(fleet.Reason)
		same(t, newest.Ref, c.ID.String())
		same(t, reason.Params, tt.want)
	}
}

func TestTimelineKindsPagesAndDates(t *testing.T) {
	s := newStore(t)
	addDevices(t, s, unit)
	eventful(t, s, unit)
	all := line(t, s, fleet.TimelineFilter{Device: unit}).Items
	for _, kind := range fleet.TimelineKinds {
		var want []string
		for _, e := range all {
			if e.Kind == kind {
				want = append(want, e.Key)
			}
		}
		var got []string
		for _, e := range line(t, s, fleet.TimelineFilter{Device: unit, Kinds: []fleet.TimelineKind{kind}}).Items {
			got = append(got, e.Key)
		}
		same(t, got, want)
	}
	for _, limit := range []int{1, 2, 5} {
		var paged []fleet.TimelineEntry
		f := fleet.TimelineFilter{Device: unit, Limit: limit}
		for {
			page := line(t, s, f)
			paged = append(paged, page.Items...)
			if f.Cursor = page.Next; f.Cursor == "" {
				break
			}
		}
		same(t, paged, all)
	}
	middle := all[6]
	for _, e := range line(t, s, fleet.TimelineFilter{Device: unit, Before: middle.At}).Items {
		if !e.At.Before(middle.At) {
			t.Errorf("before %v: %v", middle.At, e.At)
		}
	}
	for _, bad := range []string{"x", "eyJsIjoidGltZWxpbmUiLCJpIjoieCJ9", "eyJsIjoiYXVkaXQiLCJpIjoieCJ9"} {
		_, err := s.Timeline(t.Context(), fleet.TimelineFilter{Device: unit, Cursor: bad})
		wantKind(t, err, fleet.ErrInvalid)
	}
}

// A record that is stored again changes nothing, and neither does a late one.
func TestPresenceChangesAreKeptOnce(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	addDevices(t, s, unit)
	at := now()
	changes := []fleet.PresenceChange{connect(unit, 2, at)}
	for range 2 {
		check(t, s.SavePresence(ctx, changes))
	}
	check(t, s.SavePresence(ctx, []fleet.PresenceChange{connect(unit, 1, at.Add(time.Second))})) // of an older connection
	seen := connect(unit, 2, at)
	seen.LastSeen, seen.Connection = at.Add(time.Minute), nil
	check(t, s.SavePresence(ctx, []fleet.PresenceChange{seen, connect("unknown", 1, at)}))
	presence := []fleet.TimelineKind{fleet.TimelinePresence}
	same(t, codes(line(t, s, fleet.TimelineFilter{Device: unit, Kinds: presence}).Items), []string{"presence online"})
	same(t, len(line(t, s, fleet.TimelineFilter{Device: "unknown"}).Items), 0)

	// If fleetd was away, the device has one entry, provided that it connects again at once.
	last := func() fleet.TimelineEntry {
		return line(t, s, fleet.TimelineFilter{Device: unit, Kinds: presence}).Items[0]
	}
	_, err := s.ResetPresence(ctx, nil, nil, fleet.Because(fleet.PresenceUnwatched), at.Add(time.Minute))
	check(t, err)
	same(t, last().At, at)
	check(t, s.SavePresence(ctx, []fleet.PresenceChange{connect(unit, 3, at.Add(2*time.Minute))}))
	same(t, codes(line(t, s, fleet.TimelineFilter{Device: unit, Kinds: presence}).Items),
		[]string{"presence online", "presence online"})
	evidence, _ := last().Params["evidence"].(fleet.Reason)
	same(t, evidence.Code, fleet.PresenceWatched)
	same(t, evidence.Params["since_at"], any(at.Add(time.Minute).UTC().Format(time.RFC3339)))

	// A device that connects an hour later was away itself.
	stopping := fleet.PresenceChange{Device: unit, Presence: fleet.PresenceOffline, Since: at.Add(3 * time.Minute),
		Evidence: fleet.Because(fleet.PresenceBroke, "detail", fleet.Because(fleet.CauseStopping))}
	check(t, s.SavePresence(ctx, []fleet.PresenceChange{stopping}))
	same(t, last().At, at.Add(2*time.Minute))
	check(t, s.SavePresence(ctx, []fleet.PresenceChange{connect(unit, 4, at.Add(time.Hour))}))
	same(t, codes(line(t, s, fleet.TimelineFilter{Device: unit, Kinds: presence}).Items),
		[]string{"presence online", "presence offline", "presence online", "presence online"})
	_, err = s.Retain(ctx, postgres.Retention{Calls: time.Minute, Connections: time.Minute}, at.Add(4*time.Minute))
	check(t, err)
	same(t, codes(line(t, s, fleet.TimelineFilter{Device: unit, Kinds: presence}).Items),
		[]string{"presence online", "presence offline"})
}

// A second report of the same start, or of the same configuration, is not a change.
func TestReportsThatChangeNothing(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	addDevices(t, s, unit)
	at := now()
	for i := range 4 {
		boots := int64(3 + i/2) // two reports of each start
		check(t, s.SaveVitals(ctx, map[fleet.DeviceID]telemetry.Vitals{unit: {At: at.Add(time.Duration(i) * time.Minute),
			Boots: boots, ResetReason: "software"}, "unknown": {At: at, Boots: 1}}))
		check(t, s.SaveDeviceConfigs(ctx, map[fleet.DeviceID]telemetry.Config{unit: {
			At:      at.Add(time.Duration(i) * time.Minute),
			Version: boots, Values: []byte(`{}`)}}))
	}
	check(t, s.SaveVitals(ctx, map[fleet.DeviceID]telemetry.Vitals{unit: {At: at, Boots: 3}})) // late
	same(t, codes(line(t, s, fleet.TimelineFilter{Device: unit,
		Kinds: []fleet.TimelineKind{fleet.TimelineCrash, fleet.TimelineConfiguration}}).Items),
		[]string{"configuration configured", "crash restarted", "configuration configured", "crash restarted"})
	same(t, len(line(t, s, fleet.TimelineFilter{Device: "unknown"}).Items), 0)
}

func TestScopeOfTimeline(t *testing.T) {
	r := newRig(t)
	addDevices(t, r.Store, "d0", "e1")
	eventful(t, r.Store, "d0")
	c, _ := r.campaign("d0", "e1")
	check(t, r.ReplaceDevice(t.Context(), admin, "d0", "e1", now()))
	scope, err := fleet.NewScope("id:d*", "", nil)
	check(t, err)
	narrow := fleet.WithScope(t.Context(), fleet.Principal{Role: fleet.RoleViewer, Scope: scope})
	page, err := r.Timeline(narrow, fleet.TimelineFilter{Device: "e1"})
	check(t, err)
	same(t, codes(page.Items), nil)
	whole, err := r.Timeline(t.Context(), fleet.TimelineFilter{Device: "d0"})
	check(t, err)
	page, err = r.Timeline(narrow, fleet.TimelineFilter{Device: "d0"})
	check(t, err)
	if len(page.Items) != len(whole.Items)-2 {
		t.Errorf("%v of %v", codes(page.Items), codes(whole.Items))
	}
	if text := fmt.Sprint(page.Items); strings.Contains(text, c.ID.String()) || strings.Contains(text, "device.replace") {
		t.Errorf("what is hidden is named: %s", text)
	}
}

// If a device reports nothing, each boot poll after its first proves a restart. The poll of a
// device that is not enrolled yet proves none, since such a device repeats its poll.
func TestRestartsThatBootPollsProve(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	at := now().Add(-time.Hour)
	polls := func(minute int, state fleet.Enrolment) {
		t.Helper()
		p := poll(unit, at.Add(time.Duration(minute)*time.Minute))
		p.Admission.Enrolment = state
		check(t, s.SavePolls(ctx, []enrolment.PollRecord{p}))
		check(t, s.SavePolls(ctx, []enrolment.PollRecord{p})) // stored twice, it is one poll
	}
	restarts := func() (all []fleet.Params) {
		t.Helper()
		crashes := fleet.TimelineFilter{Device: unit, Kinds: []fleet.TimelineKind{fleet.TimelineCrash}}
		for _, e := range line(t, s, crashes).Items {
			same(t, e.Code, fleet.TimelineRestarted)
			all = append(all, e.Params)
		}
		return all
	}
	proved := fleet.Params{"proof": string(fleet.EvidenceBootPoll), "version": "2.4.0"}
	polls(0, fleet.EnrolmentWaiting)
	polls(1, fleet.EnrolmentWaiting)
	check(t, s.SaveAdmission(ctx, admin, "device.claim", poll(unit, at).Admission, at.Add(2*time.Minute)))
	polls(3, fleet.EnrolmentEnrolled)
	same(t, restarts(), nil)
	polls(4, fleet.EnrolmentEnrolled)
	polls(6, fleet.EnrolmentEnrolled)
	same(t, restarts(), []fleet.Params{proved, proved})

	// The device's own report of the same start replaces the entry of the poll.
	report := telemetry.Vitals{At: at.Add(7 * time.Minute), Uptime: 65 * time.Second, Boots: 9, ResetReason: "software"}
	check(t, s.SaveVitals(ctx, map[fleet.DeviceID]telemetry.Vitals{unit: report}))
	reported := fleet.Params{"reset_reason": "software", "boots": int64(9), "version": ""}
	same(t, restarts(), []fleet.Params{reported, proved})
	polls(6, fleet.EnrolmentEnrolled) // stored late
	same(t, restarts(), []fleet.Params{reported, proved})

	crashing, err := s.Crashing(ctx, 2, at)
	check(t, err)
	same(t, crashing, []fleet.DeviceID{unit})
	crashing, err = s.Crashing(ctx, 3, at)
	check(t, err)
	same(t, crashing, []fleet.DeviceID{})
}

// grow fills the tables that lists of events read.
func grow(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	for _, sql := range []string{
		`INSERT INTO presence_changes SELECT 'd' || i % 500, now() - make_interval(secs => i), 'online', 'connected', NULL, 'mqtt'
			FROM generate_series(1, 12500) i`,
		`INSERT INTO report_changes SELECT 'd' || i % 500, now() - make_interval(secs => i), 'restarted', '{}'
			FROM generate_series(1, 5000) i`,
		`INSERT INTO audit_entries (id, created_at, actor_kind, actor_id, actor_name, actor_role, action, subject)
			SELECT gen_random_uuid(), now(), 'operator', '', '', 'admin', 'device.update', 'd' || i % 500
			FROM generate_series(1, 5000) i`,
		`INSERT INTO calls (id, created_at, device_id, tool, actor_kind, actor_id, actor_name, actor_role, state, finished_at)
			SELECT gen_random_uuid(), now(), 'd' || i % 500, 't', 'operator', '', '', 'admin', 'succeeded', now()
			FROM generate_series(1, 5000) i`,
		`INSERT INTO snapshots (id, device_id, call_id, blob, media_type, width, height, size, created_at)
			SELECT gen_random_uuid(), 'd' || i % 500, gen_random_uuid(), 'x', 'image/png', 1, 1, 1, now()
			FROM generate_series(1, 5000) i`,
		`INSERT INTO conversations SELECT gen_random_uuid(), 'd' || i % 500, 'v', now(), NULL, '', 0, 0, 0, 0, 0, 0, 0, 0, 0
			FROM generate_series(1, 5000) i`,
		`INSERT INTO core_dumps SELECT gen_random_uuid(), 'd' || i % 500, gen_random_uuid(), i::text, 1, '', '', '', '', '', i, now()
			FROM generate_series(1, 5000) i`,
		`INSERT INTO devices (id, created_at, presence_since) SELECT 'd' || i, now(), now() FROM generate_series(0, 4999) i`,
		`INSERT INTO device_firmware (device_id, version, slot, elf_sha256, idf_version, first_seen, last_seen, current)
			SELECT 'd' || i, '1', '', '', '', now(), now(), false FROM generate_series(0, 4999) i`,
		`INSERT INTO inventories VALUES ('i', '[]', '{}', now())`,
		`INSERT INTO device_inventories (device_id, inventory_id, version, elf_sha256, server_name, server_version, tools_count,
				partial, first_seen, last_seen, current)
			SELECT 'd' || i, 'i', '', '', '', '', 1, false, now(), now(), false FROM generate_series(0, 4999) i`,
		`ANALYZE`} {
		_, err := db.Exec(t.Context(), sql)
		check(t, err)
	}
}

// wholeReads returns the lines of a statement's plan that read a whole table. Tables that are empty here cost
// nothing to read.
func wholeReads(t *testing.T, db *pgxpool.Pool, sql string, args []any) (lines []string, plan string) {
	t.Helper()
	rows, _ := db.Query(t.Context(), "EXPLAIN "+sql, args...)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	check(t, err)
	for _, row := range all {
		if strings.Contains(row, "Seq Scan") && !strings.Contains(row, "(cost=0.0") {
			lines = append(lines, row)
		}
	}
	return lines, strings.Join(all, "\n")
}

// However large the tables, a timeline reads only the device's own rows.
func TestTimelineReadsNoWholeTable(t *testing.T) {
	db := testDB(t)
	addDevices(t, postgres.New(db, postgres.Options{}), unit)
	grow(t, db)
	scope, err := fleet.NewScope("tag:lab", "", nil)
	check(t, err)
	for _, f := range []fleet.TimelineFilter{{Device: "d7"}, {Device: "d7", Before: now().Add(-time.Hour)},
		{Device: "d7", Kinds: []fleet.TimelineKind{fleet.TimelineHold, fleet.TimelineCrash}}} {
		for _, ctx := range []string{"all", "narrow"} {
			in := t.Context()
			if ctx == "narrow" {
				in = fleet.WithScope(in, fleet.Principal{Role: fleet.RoleViewer, Scope: scope})
			}
			sql, args, err := postgres.TimelineQuery(in, f)
			check(t, err)
			lines, plan := wholeReads(t, db, sql, args)
			for _, row := range lines {
				// A scope reads the devices, and the devices of the campaign that made a call.
				if !strings.Contains(row, "on devices") && !strings.Contains(row, "on deployments part") {
					t.Errorf("%s: %s\n%s", ctx, row, plan)
				}
			}
		}
	}
}
