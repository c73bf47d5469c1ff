package enrolment

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
)

// A sign is an event of one unit: "poll A 10.0.0.1", "connect A 10.0.0.1", "over A 10.0.0.2" (it takes
// over from the previous connection), "heard", "refused A". after is the time since the previous sign.
type sign struct {
	after      time.Duration
	does       string
	client, at string
}

func TestDuplicatesAreTwoUnits(t *testing.T) {
	const min, hour = time.Minute, time.Hour
	for name, c := range map[string]struct {
		signs []sign
		want  []fleet.ConflictEvidence
	}{
		"one board starts again and again": {signs: []sign{{0, "poll", "A", "1"}, {min, "poll", "A", "1"}, {hour, "poll",
			"A", "1"}}},
		"flashed again: A, then B for good": {signs: []sign{{0, "poll", "A", "1"}, {min, "poll", "B", "1"}, {min, "poll",
			"B", "1"},
			{min, "connect", "B", "1"}, {min, "heard", "", ""}, {hour, "poll", "B", "1"}}},
		"flashed twice": {signs: []sign{{0, "poll", "A", "1"}, {min, "poll", "B", "1"}, {min, "poll", "C", "1"}, {min,
			"poll", "C", "1"}}},
		"flashed while its old connection lingers": {signs: []sign{{0, "connect", "A", "1"}, {min, "poll", "B", "1"},
			{time.Second, "heard", "", ""}, {3 * min, "poll", "B", "1"}}},
		"two boards start in turn": {signs: []sign{{0, "poll", "A", "1"}, {min, "poll", "B", "2"}, {min, "poll", "A", "1"}},
			want: []fleet.ConflictEvidence{fleet.EvidenceClientIDsAlternate}},
		"two boards, but days apart": {signs: []sign{{0, "poll", "A", "1"}, {min, "poll", "B", "2"}, {25 * hour, "poll",
			"A", "1"}}},
		"another polls while the first answers": {signs: []sign{{0, "connect", "A", "1"}, {min, "poll", "B", "2"},
			{30 * time.Second, "heard", "", ""}},
			want: []fleet.ConflictEvidence{fleet.EvidenceBothAlive}},
		"another polls and the first connects again": {signs: []sign{{0, "connect", "A", "1"}, {min, "poll", "B", "2"},
			{min, "connect", "A", "1"}},
			want: []fleet.ConflictEvidence{fleet.EvidenceBothAlive}},
		"another was let in and the first keeps trying": {signs: []sign{{0, "poll", "A", "1"}, {min, "poll", "B", "2"},
			{min, "refused", "A", ""}},
			want: []fleet.ConflictEvidence{fleet.EvidenceBothAlive}},
		"connections take over in turn": {signs: []sign{{0, "connect", "A", "1"}, {10 * time.Second, "over", "A", "2"},
			{10 * time.Second, "over", "A", "1"}, {10 * time.Second, "over", "A", "2"}},
			want: []fleet.ConflictEvidence{fleet.EvidenceTakeoversAlternate}},
		"two takeovers are not enough": {signs: []sign{{0, "connect", "A", "1"}, {10 * time.Second, "over", "A", "2"},
			{10 * time.Second, "over", "A", "1"}}},
		"they take over slowly": {signs: []sign{{0, "connect", "A", "1"}, {min, "over", "A", "2"}, {2 * min, "over",
			"A", "1"}, {2 * min, "over", "A", "2"}}},
		"its address changes": {signs: []sign{{0, "connect", "A", "1"}, {10 * time.Second, "over", "A", "2"},
			{10 * time.Second, "over", "A", "3"},
			{10 * time.Second, "over", "A", "4"}, {10 * time.Second, "poll", "A", "5"}, {10 * time.Second, "over", "A", "6"}}},
		"it takes over from one address": {signs: []sign{{0, "connect", "A", "1"}, {time.Second, "over", "A", "1"},
			{time.Second, "over", "A", "1"},
			{time.Second, "over", "A", "1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			const id = fleet.DeviceID("a085e3112233")
			d := newDuplicates(10, func(fleet.DeviceID) {})
			now := time.Date(2026, 8, 8, 12, 0, 0, 0, time.UTC)
			var link *fleet.Connection
			linked := func(fleet.DeviceID) (fleet.Connection, bool) {
				if link == nil {
					return fleet.Connection{}, false
				}
				return *link, true
			}
			for _, s := range c.signs {
				now = now.Add(s.after)
				switch s.does {
				case "poll":
					d.polled(BootPoll{Device: id, ClientID: s.client, RemoteAddr: s.at, At: now}, "A", linked)
				case "heard":
					d.heard(id, now)
				case "refused":
					d.refused(id, s.client, "B", now, linked)
				default:
					n := fleet.Connection{Device: id, ClientID: mqttClientID(id, s.client), RemoteAddr: s.at, At: now}
					if s.does == "over" {
						n.OverClientID, n.OverRemoteAddr = link.ClientID, link.RemoteAddr
					}
					link = &n
					d.connected(n)
				}
			}
			got, _ := d.conflict(id)
			if diff := cmp.Diff(c.want, got.Evidence); diff != "" {
				t.Errorf("evidence %+v: %s", got, diff)
			}
			if len(c.want) > 0 && (len(got.Sides) != 2 || got.LastSeen != now || got.Code != fleet.ConflictDuplicateID) {
				t.Errorf("conflict %+v", got)
			}
		})
	}
}

func TestConflictSidesSayWhatTheyAre(t *testing.T) {
	const id = fleet.DeviceID("a085e3112233")
	var stored []fleet.DeviceID
	d := newDuplicates(10, func(id fleet.DeviceID) { stored = append(stored, id) })
	now := time.Date(2026, 8, 8, 12, 0, 0, 0, time.UTC)
	linked := func(fleet.DeviceID) (fleet.Connection, bool) { return fleet.Connection{}, false }
	a := BootPoll{Device: id, ClientID: "5f0c0f4e-a", RemoteAddr: "192.0.2.1", Chip: "esp32s3", Board: "box",
		Version: "1.0", ELFSHA256: "aa", At: now}
	b := BootPoll{Device: id, ClientID: "5f0c0f4e-b", RemoteAddr: "192.0.2.2", Chip: "esp32c3", Board: "lamp",
		Version: "2.0", ELFSHA256: "bb"}
	for i := range 3 {
		b.At, a.At = now.Add(time.Duration(2*i+1)*time.Second), now.Add(time.Duration(2*i+2)*time.Second)
		d.polled(b, a.ClientID, linked)
		d.polled(a, a.ClientID, linked)
	}
	c, ok := d.conflict(id)
	want := []fleet.ConflictSide{
		{Client: fleet.ClientTag(a.ClientID), RemoteAddr: "192.0.2.1", Chip: "esp32s3", Board: "box", Version: "1.0",
			ELFSHA256: "aa",
			FirstSeen: now.Add(time.Second), LastSeen: a.At},
		{Client: fleet.ClientTag(b.ClientID), RemoteAddr: "192.0.2.2", Chip: "esp32c3", Board: "lamp", Version: "2.0",
			ELFSHA256: "bb",
			FirstSeen: now.Add(time.Second), LastSeen: b.At}}
	if diff := cmp.Diff(want, c.Sides); !ok || diff != "" {
		t.Error(diff)
	}
	if !slices.Equal(stored, []fleet.DeviceID{id}) {
		t.Errorf("stored %d times within seconds, want once", len(stored))
	}
	for _, s := range c.Sides {
		if s.Client == a.ClientID || s.Client == b.ClientID {
			t.Error("a side gives its Client-Id away")
		}
	}
	if d.count(now) != 1 || d.count(now.Add(fleet.ConflictTTL+time.Minute)) != 0 {
		t.Error("a conflict does not end a day after the latest evidence")
	}
	d.forget(id)
	if d.count(now) != 0 || !d.quiet() {
		t.Error("a conflict that was ended is still there")
	}
}

func TestDuplicatesAreBounded(t *testing.T) {
	d := newDuplicates(1000, func(fleet.DeviceID) {})
	now := time.Date(2026, 8, 8, 12, 0, 0, 0, time.UTC)
	linked := func(fleet.DeviceID) (fleet.Connection, bool) { return fleet.Connection{}, false }
	for i := range 10_000 {
		id := fleet.DeviceID(fmt.Sprintf("%012x", i))
		d.polled(BootPoll{Device: id, ClientID: "B", At: now}, "A", linked)
		if i%2 == 0 {
			d.polled(BootPoll{Device: id, ClientID: "A", At: now}, "A", linked)
		}
		for c := range i % 20 {
			d.polled(BootPoll{Device: id, ClientID: fmt.Sprint("C", c), At: now}, "A", linked)
		}
		if s := d.devices[id]; len(s.sides) > maxConflictSides {
			t.Fatalf("%d sides are kept", len(s.sides))
		}
	}
	if n := len(d.devices); n != d.suspects.Len()+d.conflicts.Len() || n != 2000 || int64(n) != d.watched.Load() {
		t.Errorf("%d devices kept of 10,000, in lists of %d and %d, %d counted", n, d.suspects.Len(), d.conflicts.Len(),
			d.watched.Load())
	}
}
