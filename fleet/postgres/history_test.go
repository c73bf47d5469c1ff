package postgres_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/bench/large"
	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/history"
	"fleetd/fleet/postgres"
)

// A moments test takes the time of the database between changes, which gives the states their times.
type moments struct {
	*testing.T
	db *pgxpool.Pool
	s  *postgres.Store
	h  *history.Service
}

func newMoments(t *testing.T) *moments {
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	return &moments{t, db, s, history.New(s, time.Now)}
}

// mark returns a moment after all that happened and before all that comes.
func (m *moments) mark() (at time.Time) {
	m.Helper()
	time.Sleep(2 * time.Millisecond)
	check(m, m.db.QueryRow(m.Context(), `SELECT clock_timestamp()`).Scan(&at))
	time.Sleep(2 * time.Millisecond)
	return at
}

// list returns the devices of a moment in one line each.
func (m *moments) list(at time.Time, text string) (lines []string) {
	m.Helper()
	page, err := m.h.Devices(m.Context(), history.Filter{At: at, Query: query(m, text)})
	check(m, err)
	for _, d := range page.Items {
		line := fmt.Sprintf("%s %s %s %s", d.ID, d.Version, strings.Join(d.Tags, ","), d.Presence)
		if d.HoldSince != nil {
			line += " held"
		}
		lines = append(lines, line)
	}
	n, err := m.h.Count(m.Context(), at, query(m, text))
	check(m, err)
	if n != len(page.Items) {
		m.Errorf("%d devices counted as of %s with %q, %d listed", n, at, text, len(page.Items))
	}
	return lines
}

// steps change two devices. After each, the fleet of that moment is listed for a query.
func TestHistory(t *testing.T) {
	m := newMoments(t)
	ctx, s := t.Context(), m.s
	empty := m.mark()
	version := func(id fleet.DeviceID, version string) {
		p := poll(id, now())
		p.Poll.Version = version
		check(t, s.SavePolls(ctx, []enrolment.PollRecord{p}))
	}
	presence := func(id fleet.DeviceID, p fleet.Presence) {
		m.mark()
		check(t, s.SavePresence(ctx, []fleet.PresenceChange{{Device: id, Presence: p, Since: now(), LastSeen: now(),
			Evidence: fleet.Because(fleet.PresenceConnected, "address", "x")}}))
	}
	tag := func(id fleet.DeviceID, tags ...string) {
		check(t, s.UpdateDevice(ctx, admin, id, fleet.DevicePatch{Tags: &tags}))
	}
	var at []time.Time
	steps := []struct {
		do    func()
		query string
		want  string
	}{
		{func() { version("a", "1.0"); version("b", "1.0") }, "", "a 1.0  pending; b 1.0  pending"},
		{func() { presence("a", fleet.PresenceOnline) }, "presence:online", "a 1.0  online"},
		{func() { tag("a", "hall", "lab") }, "tag:lab", "a 1.0 hall,lab online"},
		{func() { version("b", "1.1") }, "version>1.0", "b 1.1  pending"},
		{func() { check(t, s.FrameFleet(ctx, now())) }, "presence:online", "a 1.0 hall,lab online"},
		{func() { presence("a", fleet.PresenceOffline) }, "-presence:pending", "a 1.0 hall,lab offline"},
		{func() {
			check(t, s.SetHold(ctx, admin, "a", &fleet.Hold{Reason: "repair", By: admin, Since: now(),
				Until: ptr(now().Add(time.Hour))}))
		}, "hold", "a 1.0 hall,lab offline held"},
		{func() { check(t, s.SetHold(ctx, admin, "a", nil)); tag("a") }, "", "a 1.0  offline; b 1.1  pending"},
		{func() {
			addDevices(t, s, "c")
			check(t, s.UpdateDevice(ctx, admin, "c", fleet.DevicePatch{Name: ptr("Z")}))
		},
			"z", "c 2.4.0  pending"},
		{func() { check(t, s.RetireDevice(ctx, admin, "b", now())) }, "-z", "a 1.0  offline"},
		{func() { check(t, s.RetireDevice(ctx, admin, "c", now())) }, "retired", "b 1.1  pending; c 2.4.0  pending"},
	}
	for _, step := range steps {
		step.do()
		at = append(at, m.mark())
	}
	for i, step := range steps {
		if got := strings.Join(m.list(at[i], step.query), "; "); got != step.want {
			t.Errorf("after step %d, %q matches %q, want %q", i, step.query, got, step.want)
		}
	}
	if got := m.list(empty, ""); len(got) != 0 {
		t.Errorf("before the first device there are %q", got)
	}
	states, err := m.h.States(ctx, "a", 10)
	check(t, err)
	if len(states) != 5 || states[0].Tags == nil || states[4].Version != "1.0" || states[2].HoldReason != "repair" {
		t.Errorf("states of a device: %+v", states)
	}
	_, err = m.h.States(ctx, "nobody", 10)
	wantKind(t, err, fleet.ErrNotFound)

	c, err := m.h.Counts(ctx, at[6], fleet.Query{})
	check(t, err)
	same(t, c, history.Counts{Total: 2, Held: 1, Versions: []fleet.DeviceCount{{Value: "1.0", Count: 1},
		{Value: "1.1", Count: 1}}, Boards: c.Boards, Tags: []fleet.DeviceCount{{Value: "hall", Count: 1},
		{Value: "lab", Count: 1}}, Presence: []fleet.DeviceCount{{Value: "offline", Count: 1}, {Value: "pending", Count: 1}}})

	d, err := m.h.Diff(ctx, history.DiffFilter{From: at[1], To: at[9]})
	check(t, err)
	var lines []string
	for _, c := range d.Page.Items {
		lines = append(lines, fmt.Sprintln(c.Device, c.Fields, c.Before != nil, c.After != nil))
	}
	same(t, lines, []string{"a [presence] true true\n", "b [removed] true false\n", "c [added] false true\n"})
	same(t, d.Counts, map[history.Field]int{history.FieldPresence: 1, history.FieldRemoved: 1, history.FieldAdded: 1})
	d, err = m.h.Diff(ctx, history.DiffFilter{From: at[0], To: at[6], Query: query(t, "tag:lab"), Field: history.FieldHold})
	check(t, err)
	if d.Devices != 1 || len(d.Page.Items) != 1 || d.Counts[history.FieldTags] != 1 || d.Counts[history.FieldHold] != 1 ||
		d.Counts[history.FieldVersion] != 0 {
		t.Errorf("changes of tag:lab: %+v", d)
	}

	a, err := m.h.Adoption(ctx, history.AdoptionFilter{From: at[0], To: at[8], Points: 2})
	check(t, err)
	same(t, a.Series, []history.Series{{Version: "2.4.0", Counts: []int{0, 1}}, {Version: "1.1", Counts: []int{0, 1}},
		{Version: "1.0", Counts: []int{2, 1}}})
	a, err = m.h.Adoption(ctx, history.AdoptionFilter{From: at[0], To: at[10], Points: 2, Version: "1.1"})
	check(t, err)
	same(t, a.Series, []history.Series{{Version: "1.1", Counts: []int{0, 0}}})
	same(t, a.Others, []int{2, 1})
}

// A principal with a filter sees the past of the devices that match it now.
func TestHistoryInScope(t *testing.T) {
	m := newMoments(t)
	addDevices(t, m.s, "a", "b")
	check(t, m.s.UpdateDevice(t.Context(), admin, "b", fleet.DevicePatch{Tags: &[]string{"lab"}}))
	before := m.mark()
	check(t, m.s.UpdateDevice(t.Context(), admin, "a", fleet.DevicePatch{Tags: &[]string{"lab"}}))
	check(t, m.s.UpdateDevice(t.Context(), admin, "b", fleet.DevicePatch{Tags: &[]string{"hall"}}))
	after := m.mark()
	scope, err := fleet.NewScope("tag:lab", "", nil)
	check(t, err)
	ctx := fleet.WithScope(t.Context(), fleet.Principal{Kind: fleet.KindOperator, ID: "7", Role: fleet.RoleViewer, Scope: scope})
	page, err := m.h.Devices(ctx, history.Filter{At: before})
	check(t, err)
	if len(page.Items) != 1 || page.Items[0].ID != "a" {
		t.Errorf("devices in scope: %+v", page.Items)
	}
	c, err := m.h.Counts(ctx, before, fleet.Query{})
	check(t, err)
	d, err := m.h.Diff(ctx, history.DiffFilter{From: before, To: after})
	check(t, err)
	a, err := m.h.Adoption(ctx, history.AdoptionFilter{From: before, To: after, Points: 2})
	check(t, err)
	if c.Total != 1 || d.Devices != 1 || d.Page.Items[0].Device != "a" || a.Series[0].Counts[0] != 1 {
		t.Errorf("in scope: %+v, %+v, %+v", c, d, a)
	}
	_, err = m.h.States(ctx, "b", 10)
	wantKind(t, err, fleet.ErrNotFound)
}

func TestHistoryPages(t *testing.T) {
	m := newMoments(t)
	var ids []fleet.DeviceID
	for i := range 7 {
		ids = append(ids, fleet.DeviceID(fmt.Sprintf("d%d", i)))
	}
	addDevices(t, m.s, ids...)
	at := m.mark()
	for _, id := range ids {
		check(t, m.s.UpdateDevice(t.Context(), admin, id, fleet.DevicePatch{Tags: &[]string{"lab"}}))
	}
	end := m.mark()
	var listed, changed []fleet.DeviceID
	f := history.Filter{At: at, Limit: 3}
	for f.Cursor = ""; ; {
		page, err := m.h.Devices(t.Context(), f)
		check(t, err)
		for _, d := range page.Items {
			listed = append(listed, d.ID)
		}
		if f.Cursor = page.Next; f.Cursor == "" {
			break
		}
	}
	g := history.DiffFilter{From: at, To: end, Limit: 3}
	for {
		d, err := m.h.Diff(t.Context(), g)
		check(t, err)
		for _, c := range d.Page.Items {
			changed = append(changed, c.Device)
		}
		if g.Cursor = d.Page.Next; g.Cursor == "" {
			break
		}
	}
	same(t, listed, ids)
	same(t, changed, ids)
}

// A question that cannot be answered is refused.
func TestHistoryRefuses(t *testing.T) {
	m := newMoments(t)
	begin, err := m.h.Begin(t.Context())
	check(t, err)
	list := func(f history.Filter) error { _, err := m.h.Devices(t.Context(), f); return err }
	diff := func(f history.DiffFilter) error { _, err := m.h.Diff(t.Context(), f); return err }
	series := func(f history.AdoptionFilter) error { _, err := m.h.Adoption(t.Context(), f); return err }
	for _, c := range []struct {
		code string
		err  error
	}{
		{"future_moment", list(history.Filter{At: now().Add(time.Hour)})},
		{"before_history", list(history.Filter{At: begin.States.Add(-time.Second)})},
		{"before_history", list(history.Filter{At: time.Unix(0, 0)})},
		{"no_history_of_field", list(history.Filter{At: now(), Query: query(t, "seen<1h")})},
		{"invalid_cursor", list(history.Filter{At: now(), Cursor: "x"})},
		{"invalid_history_period", diff(history.DiffFilter{From: now(), To: now().Add(-time.Millisecond)})},
		{"invalid_field", diff(history.DiffFilter{From: begin.States, To: now(), Field: "seen"})},
		{"before_history", series(history.AdoptionFilter{From: begin.Versions.Add(-time.Hour)})},
		{"invalid_points", series(history.AdoptionFilter{Points: 1})},
	} {
		e, ok := errors.AsType[*fleet.Error](c.err)
		if !ok || e.Code != c.code {
			t.Errorf("%v, want %s", c.err, c.code)
		}
	}
}

// If the clock is set back, the time that has not come yet is forgotten, and the periods of a device still follow
// each other.
func TestHistoryWithClockSetBack(t *testing.T) {
	m := newMoments(t)
	addDevices(t, m.s, "a")
	at := m.mark()
	tag := func(tag string) {
		check(t, m.s.UpdateDevice(t.Context(), admin, "a", fleet.DevicePatch{Tags: &[]string{tag}}))
	}
	tag("one")
	check(t, m.s.UpdateDevice(t.Context(), admin, "a", fleet.DevicePatch{Name: ptr("later")}))
	check(t, m.s.FrameFleet(t.Context(), now().Add(24*time.Hour)))
	for _, table := range []string{"device_states", "device_names"} { // as if the clock had been ahead by a day
		_, err := m.db.Exec(t.Context(), `UPDATE `+table+` SET begun_at = begun_at
			+ CASE WHEN begun_at > $1 THEN interval '1 day' ELSE '0' END, ended_at = ended_at + interval '1 day'`, at)
		check(t, err)
	}
	tag("two")
	same(t, m.list(m.mark(), ""), []string{"a 2.4.0 two pending"})
	same(t, m.list(at, ""), []string{"a 2.4.0  pending"})
	states, err := m.h.States(t.Context(), "a", 10)
	check(t, err)
	if len(states) != 2 || states[0].Name != "later" || states[1].Name != "" {
		t.Errorf("%+v", states)
	}
	var frames int
	check(t, m.db.QueryRow(t.Context(), `SELECT count(*) FROM fleet_frames WHERE at > now()`).Scan(&frames))
	if frames != 0 {
		t.Error("a frame of the time that has not come yet was kept")
	}
}

// What is older than the retention is forgotten, and is then refused.
func TestHistoryRetention(t *testing.T) {
	m := newMoments(t)
	ctx := t.Context()
	addDevices(t, m.s, "a")
	first := m.mark()
	check(t, m.s.UpdateDevice(ctx, admin, "a", fleet.DevicePatch{Tags: &[]string{"one"}}))
	m.mark()
	check(t, m.s.FrameFleet(ctx, now()))
	kept := m.mark()
	check(t, m.s.UpdateDevice(ctx, admin, "a", fleet.DevicePatch{Tags: &[]string{"two"}}))
	cut := first.Add(time.Millisecond)
	_, err := m.s.Retain(ctx, postgres.Retention{Calls: 2 * time.Hour, Connections: time.Hour}, cut.Add(time.Hour))
	check(t, err)
	h := history.New(m.s, time.Now)
	_, err = h.Devices(ctx, history.Filter{At: first})
	wantKind(t, err, fleet.ErrInvalid)
	m.h = h
	same(t, m.list(kept, ""), []string{"a 2.4.0 one pending"})
	_, err = h.Adoption(ctx, history.AdoptionFilter{From: kept, To: now()})
	check(t, err)
}

// A change of what lists of the past show begins a state; no other change does.
func TestHistoryKeepsEachColumn(t *testing.T) {
	m := newMoments(t)
	ctx := t.Context()
	addDevices(t, m.s, "a")
	check(t, m.s.SaveListing(ctx, listing("a", "inv1", "self.x")))
	check(t, m.s.SaveListing(ctx, listing("a", "inv2", "self.x", "self.y")))
	states := func() int {
		list, err := m.h.States(ctx, "a", 100)
		check(t, err)
		return len(list)
	}
	const hold = `hold_kind = 'operator', hold_id = '1', hold_name = 'ada', hold_role = 'admin', `
	for _, c := range []struct {
		set  string
		kept bool
	}{
		{`name = 'N', name_key = 'n'`, true}, {`board = 'B', board_key = 'b'`, true}, {`chip = 'c'`, true},
		{`kind = 'mqtt5'`, true}, {`version = '3.1', version_key = '{3,1}'`, true}, {`version_key = '{3,1,0}'`, true},
		{`tags = '{x}', tags_key = E'\x01x\x01'`, true}, {`inventory_id = 'inv1'`, true}, {`inventory_id = NULL`, true},
		{hold + `hold_reason = 'r', hold_since = now()`, true}, {`hold_reason = 'q'`, true}, {`hold_until = now()`, true},
		{`enrolment = 'rejected'`, true}, {`retired_at = now()`, true}, {`retired_at = now() + interval '1 s'`, false},
		{`retired_at = NULL`, true}, {`name = 'N', tags = '{x}', version = '3.1'`, false}, {`notes = 'n'`, false},
		{`last_seen = now(), presence = 'online', presence_since = now(), remote_addr = 'x'`, false},
		{`hold_name = 'bob'`, false}, {`slot = 'ota_1', elf_sha256 = 'f', language = 'de', serial = 7`, false},
	} {
		before := states()
		_, err := m.db.Exec(ctx, `UPDATE devices SET `+c.set+` WHERE id = 'a'`)
		check(t, err)
		if kept := states() - before; kept != map[bool]int{true: 1}[c.kept] {
			t.Errorf("%s adds %d states", c.set, kept)
		}
	}
	check(t, m.s.SavePresence(ctx, []fleet.PresenceChange{{Device: "a", Presence: fleet.PresenceOnline, Since: now(),
		LastSeen: now()}}))
	before := states()
	addDevices(t, m.s, "a") // another version
	if n := states() - before; n != 1 {
		t.Errorf("a poll with another version adds %d states", n)
	}
	addDevices(t, m.s, "a")
	if n := states() - before; n != 1 {
		t.Errorf("the same poll again adds %d states", n-1)
	}
	var open, profiles int
	check(t, m.db.QueryRow(ctx, `SELECT (SELECT count(*) FROM device_states WHERE ended_at = 'infinity'),
		(SELECT count(*) FROM device_profiles)`).Scan(&open, &profiles))
	if open != 1 || profiles != 13 { // as many as differ
		t.Errorf("%d open states, %d profiles", open, profiles)
	}
}

// A device that never joined is deleted with its past, also from frames; one with its id later has another past.
func TestHistoryOfDeletedDevices(t *testing.T) {
	m := newMoments(t)
	ctx := t.Context()
	waits := func(version string) {
		p := poll("w", now())
		p.Admission.Enrolment, p.Poll.Version = fleet.EnrolmentWaiting, version
		check(t, m.s.SavePolls(ctx, []enrolment.PollRecord{p}))
	}
	addDevices(t, m.s, "a")
	waits("1.0")
	waits("1.1")
	check(t, m.s.FrameFleet(ctx, now()))
	at := m.mark()
	same(t, m.list(at, ""), []string{"a 2.4.0  pending", "w 1.1  pending"})
	check(t, m.s.DropWaiting(ctx, []fleet.DeviceID{"a", "w"}))
	same(t, m.list(at, ""), []string{"a 2.4.0  pending"})
	same(t, m.list(m.mark(), ""), []string{"a 2.4.0  pending"})
	c, err := m.h.Counts(ctx, at, fleet.Query{})
	check(t, err)
	same(t, c.Versions, []fleet.DeviceCount{{Value: "2.4.0", Count: 1}})
	waits("1.2")
	same(t, m.list(at, ""), []string{"a 2.4.0  pending"})
	same(t, m.list(m.mark(), ""), []string{"a 2.4.0  pending", "w 1.2  pending"})
	states, err := m.h.States(ctx, "w", 10)
	check(t, err)
	if len(states) != 1 {
		t.Errorf("%+v", states)
	}
	check(t, m.s.FrameFleet(ctx, now()))
	same(t, m.list(m.mark(), ""), []string{"a 2.4.0  pending", "w 1.2  pending"})
}

// Profiles and sets of tags that no state uses are deleted, but not at once.
func TestSweepHistory(t *testing.T) {
	m := newMoments(t)
	ctx := t.Context()
	addDevices(t, m.s, "a")
	waiting := poll("w", now())
	waiting.Admission.Enrolment, waiting.Poll.Version = fleet.EnrolmentWaiting, "9.9"
	check(t, m.s.SavePolls(ctx, []enrolment.PollRecord{waiting}))
	check(t, m.s.UpdateDevice(ctx, admin, "w", fleet.DevicePatch{Tags: &[]string{"x"}}))
	check(t, m.s.DropWaiting(ctx, []fleet.DeviceID{"w"}))
	left := func() (left string) {
		check(t, m.s.SweepHistory(ctx))
		check(t, m.db.QueryRow(ctx, `SELECT (SELECT count(*) FROM device_profiles WHERE version = '9.9') || ' '
			|| (SELECT count(*) FROM device_tag_sets WHERE tags = '{x}')`).Scan(&left))
		return left
	}
	same(t, left(), "1 1")
	same(t, left(), "1 1")
	check(t, m.s.SavePolls(ctx, []enrolment.PollRecord{waiting})) // a marked profile is not used again
	_, err := m.db.Exec(ctx, `UPDATE device_profiles SET unused_since = unused_since - interval '2 hours'`)
	check(t, err)
	_, err = m.db.Exec(ctx, `UPDATE device_tag_sets SET unused_since = unused_since - interval '2 hours'`)
	check(t, err)
	same(t, left(), "1 0")
	same(t, m.list(m.mark(), ""), []string{"a 2.4.0  pending", "w 9.9  pending"})
}

// Transactions that change devices to a new version in different orders do not wait for each other.
func TestHistoryOfTransactionsAtOnce(t *testing.T) {
	m := newMoments(t)
	ctx := t.Context()
	addDevices(t, m.s, "a", "b", "c", "d")
	set := func(tx pgx.Tx, id, version string) {
		_, err := tx.Exec(ctx, `UPDATE devices SET version = $2 WHERE id = $1`, id, version)
		check(t, err)
	}
	one, err := m.db.Begin(ctx)
	check(t, err)
	other, err := m.db.Begin(ctx)
	check(t, err)
	set(one, "a", "8.1")
	set(other, "b", "8.2")
	set(one, "c", "8.2")
	set(other, "d", "8.1")
	check(t, one.Commit(ctx))
	check(t, other.Commit(ctx))
	c, err := m.h.Counts(ctx, m.mark(), fleet.Query{})
	check(t, err)
	same(t, c.Versions, []fleet.DeviceCount{{Value: "8.1", Count: 2}, {Value: "8.2", Count: 2}})
}

// TestHistoryScale prints the times of questions about the past. FLEETD_HISTORY_DEVICES=100000 judges them.
func TestHistoryScale(t *testing.T) {
	devices, _ := strconv.Atoi(os.Getenv("FLEETD_HISTORY_DEVICES"))
	limit := 100 * time.Millisecond
	if devices == 0 {
		devices, limit = 500, time.Minute
	}
	m := newMoments(t)
	load(t, m.db, devices, 1)
	check(t, large.States(t.Context(), m.db, 90))
	var states, changes int
	check(t, m.db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM device_states WHERE ended_at <> 'infinity'),
			(SELECT count(*) FROM presence_changes)`).Scan(&states, &changes))
	t.Logf("%d devices, %d earlier states, %d changes of presence", devices, states, changes)
	// Frames are as far before the moments as they ever are: an hour, or six hours.
	begun := time.Now()
	for _, before := range []time.Duration{90 * 24 * time.Hour, 89*24*time.Hour + 8*time.Hour,
		45*24*time.Hour + 6*time.Hour, 27 * time.Hour, 3 * time.Hour, time.Hour} {
		check(t, m.s.FrameFleet(t.Context(), begun.Add(-before)))
	}
	t.Logf("a frame takes %v", time.Since(begun)/6)
	ctx := t.Context()
	atMost(t, limit, "devices now, to compare", func() error {
		_, err := m.s.Devices(ctx, fleet.DeviceFilter{Query: query(t, "-kitchen")})
		return err
	})
	for _, days := range []int{0, 1, 45, 89} {
		at := time.Now().AddDate(0, 0, -days).Add(-2 * time.Hour)
		if days == 45 {
			at = time.Now().AddDate(0, 0, -45).Add(time.Minute)
		}
		for _, text := range []string{"", "board:board-3", "version<1.3", "presence:online -hold", "tag:lab", "kitchen"} {
			f := history.Filter{At: at, Query: query(t, text)}
			p, err := m.h.Devices(ctx, f)
			check(t, err)
			f.Cursor = p.Next
			atMost(t, limit, fmt.Sprintf("devices %d days ago %q", days, text), func() error {
				_, err := m.h.Devices(ctx, f)
				return err
			})
		}
		atMost(t, limit, fmt.Sprintf("counts %d days ago", days), func() error {
			_, err := m.h.Counts(ctx, at, fleet.Query{})
			return err
		})
		atMost(t, limit, fmt.Sprintf("changes since %d days ago", days), func() error {
			_, err := m.h.Diff(ctx, history.DiffFilter{From: at, To: time.Now().Add(-time.Minute)})
			return err
		})
		if days > 0 {
			atMost(t, limit, fmt.Sprintf("adoption of %d days", days), func() error {
				_, err := m.h.Adoption(ctx, history.AdoptionFilter{From: at, To: time.Now()})
				return err
			})
		}
	}
	atMost(t, limit/2, "states of a device", func() error {
		_, err := m.h.States(ctx, large.DeviceID(77), 100)
		return err
	})
}
