package enrolment_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// flooded polls once for each of n invented devices. addr returns the address of each.
func flooded(e *enrolment.Service, n int, at time.Time, addr func(i int) string) {
	for i := range n {
		id := fleet.DeviceID(fmt.Sprintf("c%011x", i))
		e.Poll(enrolment.BootPoll{Device: id, ClientID: "x", RemoteAddr: addr(i), At: at})
	}
}

// A real board must get its code, keep it while it polls, and be claimed, however many other
// devices poll meanwhile.
func TestFloodLeavesRoomForABoard(t *testing.T) {
	tests := []struct {
		name  string
		n     int
		addr  func(i int) string
		board string
	}{
		{"from one address", 3000, func(int) string { return "203.0.113.9" }, "198.51.100.7"},
		{"from the network of the board", 2000, func(int) string { return "198.51.100.9" }, "198.51.100.7"},
		{"from one IPv6 network", 2000, func(i int) string { return fmt.Sprintf("2001:db8::%x", i+1) }, "2001:db8:1::1"},
		{"from 100 networks", 3000, func(i int) string { return fmt.Sprintf("10.%d.%d.1", i%4, i/4%25) },
			"198.51.100.7"},
		{"from as many networks as addresses", 2000, func(i int) string {
			return fmt.Sprintf("2001:db8:%x:%x::1", i>>16+1,
				i&0xffff)
		}, "198.51.100.7"},
		{"through a proxy on this machine", 2000, func(int) string { return "127.0.0.1" }, "127.0.0.1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := time.Date(2026, 11, 1, 9, 0, 0, 0, time.UTC)
			s := new(admissionStore)
			e := newEnrolments(t, s, fleet.EnrolByCode,
				func(o *enrolment.Options) {
					o.MaxWaiting, o.MaxWaitingPerNetwork = 1000, 50 // a tenth of the defaults, like the floods
					o.Now = func() time.Time { return now }
				})
			flooded(e, tt.n/2, now, tt.addr)
			board := enrolment.BootPoll{Device: unit, ClientID: uuid1, Board: "bread-compact-wifi", RemoteAddr: tt.board,
				At: now}
			first, err := e.Poll(board)
			if err != nil || first.Activation == nil {
				t.Fatalf("the board got %+v, %v", first, err)
			}
			now = now.Add(3 * time.Second) // protocol 1.5: it polls every 3 s until it is let in
			if e.Activate(unit, uuid1) {
				t.Fatal("activated before it was claimed")
			}
			flooded(e, tt.n, now, tt.addr)
			now = now.Add(30 * time.Second)
			board.At = now
			again, err := e.Poll(board)
			if err != nil || again.Activation == nil || again.Activation.Code != first.Activation.Code {
				t.Fatalf("after the flood the board got %+v, %v; its code was %s", again, err, first.Activation.Code)
			}
			if waiting := len(e.Waiting()); waiting > 1000 {
				t.Errorf("%d devices wait", waiting)
			}
			if id, err := e.Claim(t.Context(), ann, first.Activation.Code); err != nil || id != unit {
				t.Errorf("Claim = %q, %v", id, err)
			}
			if a, err := e.Poll(board); err != nil || a.Session == nil {
				t.Errorf("the claimed board got %+v, %v", a, err)
			}
			drain(t, e)
			if n := s.count(); n > 1001 {
				t.Errorf("%d devices are stored", n)
			}
		})
	}
}

// A device that was given a place is claimed before its second poll, and thus before it is in
// the store.
func TestClaimOfADeviceNotYetStored(t *testing.T) {
	now := time.Now()
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolByCode,
		func(o *enrolment.Options) { o.MaxWaiting = 10; o.Now = func() time.Time { return now } })
	flooded(e, 20, now, func(int) string { return "203.0.113.9" })
	code := poll(t, e, uuid1).Activation.Code
	if _, err := e.Claim(t.Context(), ann, code); err != nil {
		t.Fatal(err)
	}
	if row := s.row(unit); row.Enrolment != fleet.EnrolmentEnrolled {
		t.Errorf("stored %+v", row)
	}
}

func TestUnlistedNetworksAreCounted(t *testing.T) {
	now := time.Now()
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolByCode, func(o *enrolment.Options) {
		o.MaxWaitingPerNetwork, o.Now = 100, func() time.Time { return now }
	})
	flooded(e, 1000, now, func(int) string { return "203.0.113.9" })
	if n := len(e.Waiting()); n != 100 {
		t.Errorf("%d devices wait, want 100", n)
	}
	got := e.Unlisted()
	if len(got) != 1 || got[0].Network != netip.MustParsePrefix("203.0.113.0/24") || got[0].Requests != 900 {
		t.Errorf("unlisted: %+v", got)
	}
	if st := e.Stats(); st.Waiting != 100 || st.Unlisted != 900 {
		t.Errorf("stats: %+v", st)
	}
	now = now.Add(2 * time.Hour)
	if got := e.Unlisted(); len(got) != 0 {
		t.Errorf("two hours later: %+v", got)
	}
}

// The row of a device that lost its place is deleted. A device that returned meanwhile stays.
func TestUnlistedDevicesLeaveTheStore(t *testing.T) {
	now := time.Now()
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolByCode, func(o *enrolment.Options) {
		o.MaxWaitingPerNetwork, o.Now = 10, func() time.Time { return now }
	})
	from := func(int) string { return "203.0.113.9" }
	flooded(e, 10, now, from)
	must(t, e.Stored(t.Context()))
	if n := s.count(); n != 10 {
		t.Fatalf("%d devices are stored, want 10", n)
	}
	for i := range 10 {
		e.Poll(enrolment.BootPoll{Device: fleet.DeviceID(fmt.Sprintf("d%011x", i)), ClientID: "x", RemoteAddr: from(i),
			At: now})
	}
	back := fleet.DeviceID("c00000000003")
	e.Poll(enrolment.BootPoll{Device: back, ClientID: "x", RemoteAddr: from(0), At: now})
	must(t, e.DropUnlisted(t.Context()))
	if s.row(back).Device != back || s.count() != 1 {
		t.Errorf("%d devices are stored, of the one that came back %+v", s.count(), s.row(back))
	}
}
