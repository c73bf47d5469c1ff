package postgres_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
)

// A device's first poll and its first presence are written at about the same
// time, by two writers. Whichever comes first, the device ends up online.
func TestPresenceAndFirstPollInAnyOrder(t *testing.T) {
	db, err := postgres.Open(t.Context(), pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s := postgres.New(db, postgres.Options{})
	const devices = 200
	for i := range devices {
		id := fleet.DeviceID(fmt.Sprintf("02beef%06x", i))
		now := time.Now()
		var both sync.WaitGroup
		both.Go(func() {
			err := s.SavePolls(t.Context(), []enrolment.PollRecord{{Poll: enrolment.BootPoll{Device: id, At: now},
				Admission: enrolment.Admission{Device: id, Enrolment: fleet.EnrolmentEnrolled}}})
			if err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			err := s.SavePresence(t.Context(), []fleet.PresenceChange{{Device: id, Presence: fleet.PresenceOnline, Since: now,
				LastSeen:   now,
				Connection: &fleet.Connection{Device: id, Node: "n", Epoch: 1, At: now}}})
			if err != nil {
				t.Error(err)
			}
		})
		both.Wait()
	}
	online, err := fleet.ParseQuery("presence:online")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.CountDevices(t.Context(), online); err != nil || n != devices {
		t.Errorf("%d of %d devices are online, %v", n, devices, err)
	}
}
