package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// presenceStore stores presence in memory and counts the writes.
type presenceStore struct {
	mu      sync.Mutex
	away    bool
	resets  int
	samples int
	writes  int // rows, not batches
	rows    map[fleet.DeviceID]fleet.PresenceChange
}

const unit = fleet.DeviceID("a085e3112233")

func (s *presenceStore) SavePresence(_ context.Context, changes []fleet.PresenceChange) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errors.New("connection refused")
	}
	if s.rows == nil {
		s.rows = make(map[fleet.DeviceID]fleet.PresenceChange)
	}
	for _, c := range changes {
		if c.Connection == nil {
			c.Connection = s.rows[c.Device].Connection
		}
		s.rows[c.Device] = c
		s.writes++
	}
	return nil
}

func (s *presenceStore) LoseEdge(context.Context, string, []fleet.DeviceID, fleet.Reason, time.Time) ([]fleet.DeviceID,
	error) {
	return nil, nil
}

func (s *presenceStore) ResetPresence(context.Context, []fleet.DeviceID, []string, fleet.Reason, time.Time) (int64,
	error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return 0, errors.New("connection refused")
	}
	s.resets++
	return 0, nil
}

func (s *presenceStore) SavePresenceSample(context.Context, time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples++
	return nil
}

func (s *presenceStore) PresenceSamples(context.Context, time.Time) ([]fleet.PresenceSample, error) {
	return nil, nil
}

func (s *presenceStore) setAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *presenceStore) row(id fleet.DeviceID) fleet.PresenceChange {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows[id]
}

// counts returns the numbers of resets, samples and written rows.
func (s *presenceStore) counts() (resets, samples, writes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resets, s.samples, s.writes
}

func runPresences(t *testing.T, s *presenceStore, events *fleet.Events) (p *fleet.Presences, stop func()) {
	p = fleet.NewPresences(fleet.PresenceOptions{Store: s, Events: events, Node: "n1"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	return p, func() { cancel(); <-done }
}

func connection(epoch int64) fleet.Connection {
	return fleet.Connection{Device: unit, Node: "n1", Epoch: epoch, Transport: "mqtt", RemoteAddr: "192.0.2.7",
		At: time.Now()}
}

func presenceOf(p *fleet.Presences) fleet.Presence {
	now, _, _ := p.State(unit)
	return now
}

func TestPresenceFollowsTheNewestConnection(t *testing.T) {
	p := fleet.NewPresences(fleet.PresenceOptions{Store: new(presenceStore)})
	c1, c2 := connection(1), connection(2)
	steps := []struct {
		name string
		do   func()
		want fleet.Presence
	}{
		{"never heard of", func() {}, ""},
		{"a poll says nothing of MQTT", func() { p.Polled(unit, time.Now(), "") }, ""},
		{"connected", func() { p.Connected(c1) }, fleet.PresenceOnline},
		{"no answer", func() { p.Unresponsive(c1, fleet.Cause{Text: "no answer to tools/list"}) }, fleet.PresenceUnresponsive},
		{"a ping is no answer", func() { p.Seen(unit) }, fleet.PresenceUnresponsive},
		{"an answer", func() { p.Responded(unit) }, fleet.PresenceOnline},
		{"taken over", func() { p.Connected(c2) }, fleet.PresenceOnline},
		{"the old one's end", func() { p.Disconnected(c1, false, fleet.Cause{Text: "taken over"}) }, fleet.PresenceOnline},
		{"the old one's silence", func() { p.Unresponsive(c1, fleet.Cause{Text: "late"}) }, fleet.PresenceOnline},
		{"the end", func() { p.Disconnected(c2, true, fleet.Cause{}) }, fleet.PresenceOffline},
		{"the end again", func() { p.Disconnected(c2, false, fleet.Cause{}) }, fleet.PresenceOffline},
		{"an answer after the end", func() { p.Responded(unit) }, fleet.PresenceOffline},
		{"an old connect, overtaken", func() { p.Connected(c1) }, fleet.PresenceOffline},
	}
	for _, s := range steps {
		s.do()
		if got := presenceOf(p); got != s.want {
			t.Fatalf("%s: presence %q, want %q", s.name, got, s.want)
		}
	}
}

// The edge that holds a connection is silent for a while.
func TestPresenceAtASilentEdge(t *testing.T) {
	p := fleet.NewPresences(fleet.PresenceOptions{Store: new(presenceStore)})
	c1, c2 := connection(1), connection(2)
	c1.At = time.Now().Add(-time.Hour)
	p.Adopted(c1)
	silence := time.Now()
	const online, unknown, offline = fleet.PresenceOnline, fleet.PresenceUnknownEdge, fleet.PresenceOffline
	steps := []struct {
		name string
		do   func()
		want fleet.Presence
	}{
		{"the edge is silent", func() { p.EdgeSilent(c1, silence) }, unknown},
		{"no answer says nothing of the device", func() { p.Unresponsive(c1, fleet.Cause{Text: "late"}) }, unknown},
		{"the edge is heard", func() { p.EdgeHeard(c1) }, online},
		{"and again", func() { p.EdgeHeard(c1) }, online},
		{"an older connection's edge is silent", func() { p.Connected(c2); p.EdgeSilent(c1, silence) }, online},
		{"this one's", func() { p.EdgeSilent(c2, silence) }, unknown},
		{"an older connection's edge is heard", func() { p.EdgeHeard(c1) }, unknown},
		{"connected elsewhere", func() { p.Connected(connection(3)) }, online},
		{"the silent edge is heard", func() { p.EdgeHeard(c2) }, online},
		{"lost", func() { p.EdgeSilent(connection(3), silence); p.Disconnected(connection(3), false, fleet.Cause{}) }, offline},
		{"heard too late", func() { p.EdgeHeard(connection(3)) }, offline},
		{"its silence, seen too late", func() { p.EdgeSilent(connection(3), silence) }, offline},
	}
	for _, s := range steps {
		s.do()
		got, since, evidence := p.State(unit)
		if got != s.want || (got == unknown) != evidence.Is(fleet.PresenceEdgeSilent) ||
			got == unknown && since.UnixMilli() != silence.UnixMilli() {
			t.Fatalf("%s: presence %q since %v for %v, want %q", s.name, got, since, evidence, s.want)
		}
		if s.name == "the edge is heard" && since.UnixMilli() != c1.At.UnixMilli() {
			t.Errorf("online since %v, want %v: it was connected all the time", since, c1.At)
		}
		on, silent, hidden := p.Counts()
		if on+silent+hidden > 1 || (on == 1) != (got == online) || (hidden == 1) != (got == unknown) {
			t.Errorf("%s: counts %d, %d, %d", s.name, on, silent, hidden)
		}
	}
}

func TestPresenceEventsOnlyOnChange(t *testing.T) {
	var events fleet.Events
	p := fleet.NewPresences(fleet.PresenceOptions{Store: new(presenceStore), Events: &events})
	sub := events.Subscribe(10, nil)
	p.Connected(connection(1))
	p.Seen(unit)
	p.Responded(unit)
	p.Connected(connection(2))
	p.Disconnected(connection(2), false, fleet.Cause{})
	sub.Close()
	var got []fleet.Presence
	for e := range sub.C {
		got = append(got, e.Presence)
	}
	if diff := cmp.Diff([]fleet.Presence{fleet.PresenceOnline, fleet.PresenceOffline}, got); diff != "" {
		t.Error(diff)
	}
}

func TestWatchDeliversEvidenceInOrder(t *testing.T) {
	p := fleet.NewPresences(fleet.PresenceOptions{Store: new(presenceStore)})
	p.Connected(connection(1))
	seen, stop := p.Watch(unit)
	other, stopOther := p.Watch("b00000000001")
	defer stopOther()
	p.Disconnected(connection(1), true, fleet.Cause{})
	p.Polled(unit, time.Now(), "")
	p.Connected(connection(2))
	p.Connected(connection(3))
	for range 200 { // unread: it must not block
		p.Polled(unit, time.Now(), "")
	}
	stop()
	stop()
	p.Polled(unit, time.Now(), "")
	var kinds []fleet.EvidenceKind
	for e := range seen {
		kinds = append(kinds, e.Kind)
	}
	want := []fleet.EvidenceKind{fleet.EvidenceDisconnect, fleet.EvidenceBootPoll, fleet.EvidenceConnect,
		fleet.EvidenceConnectionLost, fleet.EvidenceConnect}
	if diff := cmp.Diff(want, kinds[:5]); diff != "" || len(kinds) != 64 || len(other) != 0 {
		t.Errorf("%d observations, %d of another device: %s", len(kinds), len(other), diff)
	}
}

func TestPresenceIsWrittenBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &presenceStore{away: true}
		p, stop := runPresences(t, s, nil)
		p.Connected(connection(1)) // before the reset
		time.Sleep(time.Minute)
		s.setAway(false)
		time.Sleep(time.Minute)
		resets, _, written := s.counts()
		if row := s.row(unit); resets != 1 || row.Presence != fleet.PresenceOnline || row.Connection.Epoch != 1 {
			t.Errorf("after %d resets the row is %+v", resets, row)
		}
		for range 600 { // ten minutes of pings
			time.Sleep(time.Second)
			p.Seen(unit)
		}
		_, samples, now := s.counts()
		if n := now - written; n < 4 || n > 6 {
			t.Errorf("ten minutes of pings were %d writes, want about 5", n)
		}
		p.Connected(connection(2))
		p.Unresponsive(connection(2), fleet.Cause{Text: "no answer"}) // merged: the connection must not be lost
		time.Sleep(time.Second)
		if row := s.row(unit); row.Presence != fleet.PresenceUnresponsive || row.Connection.Epoch != 2 {
			t.Errorf("merged changes left %+v", row)
		}
		if online, unresponsive, _ := p.Counts(); online != 0 || unresponsive != 1 {
			t.Errorf("counts %d, %d", online, unresponsive)
		}
		if samples < 10 {
			t.Errorf("%d samples in eleven minutes", samples)
		}
		p.Disconnected(connection(2), false, fleet.Cause{Text: "fleetd stopping"})
		stop()
		if row := s.row(unit); row.Presence != fleet.PresenceOffline {
			t.Errorf("at shutdown the row is %+v", row)
		}
	})
}

func TestPresenceMemoryPerDevice(t *testing.T) {
	const n = 50_000
	p := fleet.NewPresences(fleet.PresenceOptions{Store: new(presenceStore)})
	per := fleettest.HeapPer(n, func(i int) {
		p.Polled(fleet.DeviceID(fmt.Sprintf("%012x", i)), time.Now(), "")
	})
	t.Logf("%d bytes per device, its id included", per)
	if per > 250 {
		t.Errorf("%d bytes per device", per)
	}
	runtime.KeepAlive(p)
}

func TestTapSeesWhatWatchersSee(t *testing.T) {
	var tapped []fleet.Evidence
	p := fleet.NewPresences(fleet.PresenceOptions{Store: new(presenceStore), Tap: func(id fleet.DeviceID,
		e fleet.Evidence) {
		if id == unit {
			tapped = append(tapped, e)
		}
	}})
	seen, stop := p.Watch(unit)
	p.Connected(connection(1))
	p.Connected(connection(2))
	p.Disconnected(connection(1), false, fleet.Cause{}) // of the older connection: changes nothing
	p.Disconnected(connection(2), true, fleet.Cause{})
	p.Polled(unit, time.Now(), "aa11")
	p.Observed(unit, fleet.Evidence{Kind: fleet.EvidenceUpload})
	p.Seen(unit)
	stop()
	var watched []fleet.Evidence
	for e := range seen {
		watched = append(watched, e)
	}
	if diff := cmp.Diff(watched, tapped); diff != "" || len(tapped) != 6 || tapped[4].ELF != "aa11" {
		t.Errorf("%d tapped (-watched +tapped)\n%s", len(tapped), diff)
	}
}
