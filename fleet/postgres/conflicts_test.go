package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/postgres"
)

// pollOf returns a boot poll of one of two boards with the id a085e3112233.
func pollOf(client, addr, board string, at time.Time) enrolment.BootPoll {
	return enrolment.BootPoll{Device: "a085e3112233", ClientID: client, RemoteAddr: addr, Board: board, Chip: "esp32s3",
		Version: "2.4.2", ELFSHA256: "9f2c", At: at}
}

func TestConflictOutlivesARestart(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	now := time.Now().UTC().Truncate(time.Microsecond)
	with := func(o *enrolment.Options) {
		o.Mode, o.Conflicts, o.Now = fleet.EnrolOpen, s, func() time.Time { return now }
		o.Connected = func(fleet.DeviceID) bool { return true } // who has the id keeps it
	}
	const id = fleet.DeviceID("a085e3112233")
	conflict := func() *fleet.DeviceConflict {
		d, err := s.Device(t.Context(), id)
		check(t, err)
		return d.Conflict
	}
	marked := func(text string) int {
		q, err := fleet.ParseQuery(text)
		check(t, err)
		n, err := s.CountDevices(t.Context(), q)
		check(t, err)
		return n
	}
	e, _ := enrolments(t, s, with)
	say := func(client, addr string) {
		now = now.Add(time.Second)
		_, err := e.Poll(pollOf(client, addr, "box-"+client, now))
		check(t, err)
		settle(t, e)
	}
	say("A", "192.0.2.1")
	say("B", "192.0.2.2")
	if c := conflict(); c != nil || marked("conflict") != 0 {
		t.Fatalf("another Client-Id alone is a conflict: %+v", c)
	}
	say("A", "192.0.2.1")
	c := conflict()
	want := []fleet.ConflictSide{
		{Client: fleet.ClientTag("A"), RemoteAddr: "192.0.2.1", Chip: "esp32s3", Board: "box-A", Version: "2.4.2",
			ELFSHA256: "9f2c", Bound: true},
		{Client: fleet.ClientTag("B"), RemoteAddr: "192.0.2.2", Chip: "esp32s3", Board: "box-B", Version: "2.4.2",
			ELFSHA256: "9f2c"}}
	if c == nil {
		t.Fatal("two boards in turn are no conflict")
	}
	for i := range c.Sides {
		c.Sides[i].FirstSeen, c.Sides[i].LastSeen = time.Time{}, time.Time{}
	}
	if diff := cmp.Diff(want, c.Sides); diff != "" {
		t.Error(diff)
	}
	if !c.FirstSeen.Equal(now) || !c.LastSeen.Equal(now) || marked("conflict") != 1 || marked("-conflict") != 0 {
		t.Errorf("first %s, last %s, now %s; marked %d", c.FirstSeen, c.LastSeen, now, marked("conflict"))
	}
	e, _ = enrolments(t, s, with)
	if e.Conflicts() != 1 || e.Conflict(id) == nil {
		t.Error("after a restart the conflict is gone")
	}
	first := c.FirstSeen
	now = now.Add(2 * time.Minute)
	say("B", "192.0.2.2")
	if c = conflict(); !c.FirstSeen.Equal(first) || !c.LastSeen.Equal(now) {
		t.Errorf("after a restart it began at %s and went on until %s", c.FirstSeen, c.LastSeen)
	}
	now = now.Add(fleet.ConflictTTL + time.Second)
	e, _ = enrolments(t, s, with)
	if e.Conflicts() != 0 || e.Conflict(id) != nil || conflict().Active(now) {
		t.Error("a day after the latest evidence it still stands")
	}
}

// settle waits until the findings are stored.
func settle(t *testing.T, e *enrolment.Service) {
	t.Helper()
	check(t, e.Stored(t.Context()))
	check(t, e.StoredConflicts(t.Context()))
}

func TestConflictIsResolved(t *testing.T) {
	const id = fleet.DeviceID("a085e3112233")
	for _, c := range []struct {
		name  string
		r     enrolment.ConflictResolution
		let   map[string]bool // who is given credentials afterwards
		again bool            // what they do is a conflict again
	}{
		{"keep A", enrolment.ConflictResolution{Act: enrolment.ConflictKeep, Client: fleet.ClientTag("A")},
			map[string]bool{"A": true}, false},
		{"keep B", enrolment.ConflictResolution{Act: enrolment.ConflictKeep, Client: fleet.ClientTag("B")},
			map[string]bool{"B": true}, false},
		{"reenrol", enrolment.ConflictResolution{Act: enrolment.ConflictReenrol}, nil, false},
		{"dismiss", enrolment.ConflictResolution{Act: enrolment.ConflictDismiss}, map[string]bool{"A": true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := postgres.New(testDB(t), postgres.Options{})
			var kicked []fleet.DeviceID
			e, _ := enrolments(t, s, func(o *enrolment.Options) {
				o.Conflicts, o.Kick = s, func(id fleet.DeviceID, _ fleet.Cause) { kicked = append(kicked, id) }
			})
			say := func(client string) enrolment.PollAnswer {
				a, err := e.Poll(pollOf(client, "192.0.2.1", "box", time.Now().UTC()))
				check(t, err)
				settle(t, e)
				return a
			}
			say("A")
			check(t, e.Approve(t.Context(), ruler, id, ""))
			old := say("A").Session
			say("B")
			say("A")
			if e.Conflict(id) == nil {
				t.Fatal("no conflict")
			}
			viewer := ruler
			viewer.Role = fleet.RoleViewer
			if err := e.ResolveConflict(t.Context(), viewer, id, c.r); !errors.Is(err, fleet.ErrForbidden) {
				t.Errorf("a viewer: %v", err)
			}
			if err := e.ResolveConflict(t.Context(), ruler, id, enrolment.ConflictResolution{Act: enrolment.ConflictKeep,
				Client: "x"}); !errors.Is(err, fleet.ErrInvalid) {
				t.Errorf("an unknown side: %v", err)
			}
			check(t, e.ResolveConflict(t.Context(), ruler, id, c.r))
			d, err := s.Device(t.Context(), id)
			check(t, err)
			if d.Conflict != nil || e.Conflict(id) != nil {
				t.Error("it still stands")
			}
			if err := e.ResolveConflict(t.Context(), ruler, id, c.r); !errors.Is(err, fleet.ErrConflict) {
				t.Errorf("a second time: %v", err)
			}
			_, err = e.Authenticate(old.ClientID, old.Username, []byte(old.Password), "")
			if c.let["A"] != (err == nil) || c.let["A"] == (len(kicked) > 0) {
				t.Errorf("the credentials from before: %v; %d connections ended", err, len(kicked))
			}
			for range 2 {
				for _, client := range []string{"A", "B"} {
					if a := say(client); (a.Session != nil) != c.let[client] {
						t.Errorf("%s is answered %+v", client, a)
					}
				}
			}
			if (e.Conflict(id) != nil) != c.again {
				t.Errorf("afterwards the conflict is %+v", e.Conflict(id))
			}
			page, err := s.AuditEntries(t.Context(), audit.Filter{Limit: 1})
			check(t, err)
			if c.r.Act == enrolment.ConflictKeep {
				e, _ = enrolments(t, s, func(o *enrolment.Options) { o.Mode = fleet.EnrolOpen })
				other := map[bool]string{true: "B", false: "A"}[c.let["A"]]
				if a := say(other); a.Session != nil || a.Activation != nil {
					t.Errorf("after a restart %s, which polls first, is answered %+v", other, a)
				}
			}
			if got := page.Items[0]; got.Action != "device.resolve_conflict" || got.Actor.Name != "ruth" ||
				got.Subject != string(id) {
				t.Errorf("audit entry %+v", got)
			}
		})
	}
}
