package enrolment_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// The polls have one Client-Id. Their addresses decide how the last one is answered.
func TestAddressesThatAlternate(t *testing.T) {
	const a, b, c = "192.0.2.1", "192.0.2.2", "192.0.2.3"
	tests := []struct {
		name  string
		steps []string // addresses of polls; "connects", "installs": what the unit that polled does; "hour"
		held  bool
	}{
		{"one address", []string{a, "connects", a, "connects", a}, false},
		{"moved", []string{a, "connects", b, "connects", c}, false},
		{"moved and back", []string{a, "connects", b, "connects", a}, false},
		{"polled in between and did nothing", []string{a, "connects", b, a}, true},
		{"restarts without a connection from two addresses", []string{a, "connects", b, b, a}, true},
		{"installs in between", []string{a, "connects", b, "installs", a}, false},
		{"later", []string{a, "connects", b, "hour", a}, false},
		{"and again from the other", []string{a, "connects", b, a, b}, true},
		{"and again from a third", []string{a, "connects", b, a, c}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := new(conflictStore)
			e := newEnrolments(t, &s.admissionStore, fleet.EnrolOpen, func(o *enrolment.Options) { o.Conflicts = s })
			at := time.Now()
			var last enrolment.PollAnswer
			for _, step := range tt.steps {
				switch step {
				case "connects":
					e.Connected(fleet.Connection{Device: unit, ClientID: "GID_default@@@a0_85_e3_11_22_33@@@" + uuid1, At: at})
				case "installs":
					e.Settled(unit)
				case "hour":
					at = at.Add(time.Hour)
				default:
					var err error
					last, err = e.Poll(enrolment.BootPoll{Device: unit, ClientID: uuid1, RemoteAddr: step, At: at})
					must(t, err)
				}
				at = at.Add(time.Second)
			}
			if (last.Session == nil) != tt.held {
				t.Errorf("the last poll got %+v", last)
			}
			conflict := e.Conflict(unit)
			if (conflict != nil) != tt.held {
				t.Fatalf("the conflict is %+v", conflict)
			}
			if !tt.held {
				return
			}
			if !slices.Equal(conflict.Evidence, []fleet.ConflictEvidence{fleet.EvidenceAddressesAlternate}) ||
				len(conflict.Sides) != 2 {
				t.Errorf("the conflict is %+v", conflict)
			}
			must(t, e.ResolveConflict(t.Context(), ann, unit, enrolment.ConflictResolution{Act: enrolment.ConflictDismiss}))
		})
	}
}

// The unit that had the credentials first continues to get them while another is held. After a
// restart of fleetd neither gets them.
func TestTheUnitBeforeKeepsItsCredentials(t *testing.T) {
	const own, other = "192.0.2.1", "192.0.2.2"
	connected := true
	conn := fleet.Connection{Device: unit, ClientID: "GID_default@@@a0_85_e3_11_22_33@@@" + uuid1, RemoteAddr: own}
	s := new(conflictStore)
	options := func(o *enrolment.Options) {
		o.Conflicts = s
		o.Connection = func(fleet.DeviceID) (fleet.Connection, bool) { return conn, connected }
		o.Ping = func(context.Context, fleet.DeviceID) (fleet.Connection, bool) { return conn, connected }
	}
	e := newEnrolments(t, &s.admissionStore, fleet.EnrolOpen, options)
	from := func(addr string) bool {
		t.Helper()
		a, err := e.Poll(enrolment.BootPoll{Device: unit, ClientID: uuid1, RemoteAddr: addr, At: time.Now()})
		must(t, err)
		return a.Session != nil
	}
	connected = false
	if !from(own) {
		t.Fatal("a device that starts got no credentials")
	}
	connected = true
	if from(other) {
		t.Fatal("a second unit got credentials")
	}
	connected = false
	if from(other) {
		t.Error("the second unit got credentials while the device was away")
	}
	if !from(own) {
		t.Error("the device got no credentials when it started again")
	}
	drain(t, e)
	e = newEnrolments(t, &s.admissionStore, fleet.EnrolOpen, options)
	if from(other) || from(own) {
		t.Error("after a restart it is not known which unit was first, and one got credentials")
	}
	must(t, e.ResolveConflict(t.Context(), ann, unit, enrolment.ConflictResolution{Act: enrolment.ConflictDismiss}))
	if !from(own) {
		t.Error("after the conflict was dismissed the device got no credentials")
	}
}

// A conflictStore stores conflicts and admissions.
type conflictStore struct {
	admissionStore
	conflicts []enrolment.ConflictRecord
}

func (s *conflictStore) DeviceConflicts(context.Context, time.Time) ([]enrolment.ConflictRecord, error) {
	return s.conflicts, nil
}

func (s *conflictStore) ResolveHardware(context.Context, fleet.Principal, fleet.DeviceID, bool) error {
	return nil
}

func (s *conflictStore) SaveConflicts(_ context.Context, all []enrolment.ConflictRecord) error {
	s.conflicts = all
	return nil
}

func (s *conflictStore) ResolveConflict(ctx context.Context, by fleet.Principal, _ enrolment.ConflictResolution,
	a enrolment.Admission, at time.Time) error {
	s.conflicts = nil
	return s.SaveAdmission(ctx, by, "device.resolve_conflict", a, at)
}
