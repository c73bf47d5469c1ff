package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/postgres"
)

func connect(id fleet.DeviceID, epoch int64, at time.Time) fleet.PresenceChange {
	return fleet.PresenceChange{Device: id, Presence: fleet.PresenceOnline, Since: at,
		Evidence: text(fmt.Sprint("connect ",
			epoch)), LastSeen: at,
		Connection: &fleet.Connection{Device: id, Node: "n1", Epoch: epoch, Transport: "mqtt", RemoteAddr: "192.0.2.9",
			At: at}}
}

func TestPresenceMovesForward(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	at := now()
	addDevices(t, s, unit)
	save := func(c fleet.PresenceChange) fleet.Device {
		t.Helper()
		if err := s.SavePresence(ctx, []fleet.PresenceChange{c}); err != nil {
			t.Fatal(err)
		}
		d, err := s.Device(ctx, unit)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	second := func(n int) time.Time { return at.Add(time.Duration(n) * time.Second) }
	if d := save(connect(unit, 5, second(1))); d.Presence != fleet.PresenceOnline || d.Transport != "mqtt" ||
		d.RemoteAddr != "192.0.2.9" || !d.LastSeen.Equal(second(1)) {
		t.Errorf("connected: %+v", d)
	}
	old := connect(unit, 4, second(2))
	old.Presence = fleet.PresenceOffline
	if d := save(old); d.Presence != fleet.PresenceOnline || said(d.PresenceEvidence) != "connect 5" ||
		!d.LastSeen.Equal(second(2)) {
		t.Errorf("an older connection changed presence: %+v", d)
	}
	gone := fleet.PresenceChange{Device: unit, Presence: fleet.PresenceOffline, Since: second(3), Evidence: text("gone"),
		LastSeen: second(3)}
	if d := save(gone); d.Presence != fleet.PresenceOffline || d.Transport != "mqtt" {
		t.Errorf("disconnected: %+v", d)
	}
	late := fleet.PresenceChange{Device: unit, Presence: fleet.PresenceOnline, Since: second(2), Evidence: text("late"),
		LastSeen: second(1)}
	if d := save(late); d.Presence != fleet.PresenceOffline || !d.LastSeen.Equal(second(3)) {
		t.Errorf("an older change won: %+v", d)
	}
	if d := save(connect(unit, 6, second(4))); d.Presence != fleet.PresenceOnline {
		t.Errorf("reconnected: %+v", d)
	}
}

// A new device may connect before its first poll is stored.
func TestPresenceBeforePoll(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	if err := s.SavePresence(ctx, []fleet.PresenceChange{connect(unit, 1, now())}); err != nil {
		t.Fatal(err)
	}
	addDevices(t, s, unit, "other")
	if d, err := s.Device(ctx, unit); err != nil || d.Presence != fleet.PresenceOnline {
		t.Errorf("presence %s, %v", d.Presence, err)
	}
}

// Times and epochs that a wrong clock left in the future do not prevent later changes from being
// stored.
func TestPresenceAfterTheClockWasAhead(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	addDevices(t, s, unit)
	save := func(c fleet.PresenceChange, want fleet.Presence) {
		t.Helper()
		check(t, s.SavePresence(ctx, []fleet.PresenceChange{c}))
		d, err := s.Device(ctx, unit)
		check(t, err)
		if d.Presence != want {
			t.Errorf("presence after %q: %s, want %s", c.Evidence, d.Presence, want)
		}
	}
	at := now()
	ahead := at.Add(3 * time.Hour)
	save(connect(unit, ahead.UnixMicro(), ahead), fleet.PresenceOnline)
	save(fleet.PresenceChange{Device: unit, Presence: fleet.PresenceOffline, Since: at, Evidence: text("gone")},
		fleet.PresenceOffline)
	save(connect(unit, ahead.UnixMicro()+1, at), fleet.PresenceOnline)
	_, err := s.ResetPresence(ctx, nil, nil, fleet.Because(fleet.PresenceUnwatched), at)
	check(t, err)
	save(connect(unit, at.UnixMicro(), at), fleet.PresenceOnline)
}

func TestResetPresence(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	addDevices(t, s, "a", "b", "c")
	if err := s.SavePresence(ctx, []fleet.PresenceChange{connect("a", 1, now()), connect("b", 1, now())}); err != nil {
		t.Fatal(err)
	}
	at := now()
	if n, err := s.ResetPresence(ctx, []fleet.DeviceID{"b"}, nil, fleet.Because(fleet.PresenceUnwatched), at); n != 1 || err != nil {
		t.Errorf("reset %d devices, %v; want 1", n, err)
	}
	if err := s.SavePresenceSample(ctx, at); err != nil {
		t.Fatal(err)
	}
	got, err := s.PresenceSamples(ctx, at.Add(-time.Second))
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, []fleet.PresenceSample{{At: at, Online: 1, Offline: 1, Pending: 1}})
}

// TestSilentEdge stores that an edge is silent: time lines do not show it, and a new process leaves the
// devices to the edge until it is gone.
func TestSilentEdge(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	addDevices(t, s, "a", "b", "c", "d")
	began := now()
	at := func(id fleet.DeviceID, edge string) fleet.PresenceChange {
		c := connect(id, 1, began)
		c.Connection.Node = edge
		return c
	}
	hidden := func(id fleet.DeviceID) fleet.PresenceChange {
		c := at(id, "e1")
		c.Presence, c.Since = fleet.PresenceUnknownEdge, began.Add(time.Minute)
		c.Evidence = fleet.Because(fleet.PresenceEdgeSilent, "edge", "e1")
		return c
	}
	save := func(changes ...fleet.PresenceChange) {
		t.Helper()
		check(t, s.SavePresence(ctx, changes))
	}
	presences := func() (all [4]fleet.Presence) {
		for i, id := range []fleet.DeviceID{"a", "b", "c", "d"} {
			d, err := s.Device(ctx, id)
			check(t, err)
			all[i] = d.Presence
		}
		return all
	}
	entries := func() (n int) {
		check(t, db.QueryRow(ctx, `SELECT count(*) FROM presence_changes`).Scan(&n))
		return n
	}
	const online, unknown, offline = fleet.PresenceOnline, fleet.PresenceUnknownEdge, fleet.PresenceOffline
	save(at("a", "e1"), at("b", "e1"), at("c", "e2"), at("d", "e1"))
	save(hidden("a"), hidden("b"))
	if got := presences(); got != [4]fleet.Presence{unknown, unknown, online, online} || entries() != 4 {
		t.Errorf("%v, %d entries; a silent edge is none", got, entries())
	}
	save(at("a", "e1"))
	d, err := s.Device(ctx, "a")
	check(t, err)
	if d.Presence != online || !d.PresenceSince.Equal(began) || d.Edge != "e1" || entries() != 4 {
		t.Errorf("%s since %v at %s, %d entries", d.Presence, d.PresenceSince, d.Edge, entries())
	}
	if _, err := s.ResetPresence(ctx, []fleet.DeviceID{"d"}, []string{"e1"}, fleet.Because(fleet.PresenceUnwatched), now()); err != nil {
		t.Fatal(err)
	}
	if got := presences(); got != [4]fleet.Presence{unknown, unknown, offline, online} {
		t.Errorf("after a start of fleetd %v", got)
	}
	gone, err := s.LoseEdge(ctx, "e1", []fleet.DeviceID{"b"}, fleet.Because(fleet.PresenceBroke, "detail",
		fleet.Because(fleet.CauseEdgeLost)), now().Add(2*time.Minute))
	check(t, err)
	if got := presences(); got != [4]fleet.Presence{offline, unknown, offline, online} || len(gone) != 1 ||
		entries() != 5 {
		t.Errorf("after the loss of the edge %v, %v, %d entries", got, gone, entries())
	}
	back := connect("b", 2, now())
	back.Since = began // it never was offline, as far as is known
	save(back)
	if got := presences(); got[1] != online || entries() != 5 {
		t.Errorf("%v, %d entries", got, entries())
	}
	check(t, s.SavePresenceSample(ctx, now()))
}

// Batches of thousands are usual in a reconnect storm.
func TestPresenceAndPollsInBulk(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	var polls []enrolment.PollRecord
	var changes []fleet.PresenceChange
	at := now()
	for i := range 5000 {
		id := fleet.DeviceID(fmt.Sprintf("d%05d", i))
		polls = append(polls, poll(id, at))
		changes = append(changes, connect(id, 1, at))
	}
	for range 2 { // the second time the rows are there
		began := time.Now()
		if err := s.SavePolls(ctx, polls); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d polls in %v", len(polls), time.Since(began))
		began = time.Now()
		if err := s.SavePresence(ctx, changes); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d presence changes in %v", len(changes), time.Since(began))
	}
	if n, err := s.CountDevices(ctx, query(t, "presence:online")); n != 5000 || err != nil {
		t.Errorf("%d devices online, %v", n, err)
	}
}
