package server

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// A core whose clock is ten minutes behind that of the dead leader knows which connection of a device
// is the newest, also of one that connected elsewhere while no core led. Codes on screens stay valid.
func TestNewCoreWithAnotherClock(t *testing.T) {
	t.Parallel()
	if reason := canSetClock(nil); reason != "" {
		t.Skip("needs ", reason)
	}
	clock := filepath.Join(t.TempDir(), "clock")
	if err := writeClock(clock, 600); err != nil {
		t.Fatal(err)
	}
	w := newCluster(t, []string{clockFile + "=" + clock}, "--enrolment", "code")
	stays, moves, leaves := w.joinByCode(w.edges[0], 1), w.joinByCode(w.edges[0], 2), w.joinByCode(w.edges[0], 3)
	_ = leaves.newest().Disconnect(&paho.Disconnect{})
	fleettest.EventuallyWithin(t, time.Minute, "a device to be offline", func() bool {
		return w.count(`SELECT count(*) FROM devices WHERE id = $1 AND presence = 'offline'`, leaves.id) == 1
	})
	waiting := w.newRowDevice(4)
	code := waiting.code(w.edges[0])
	since := time.Now()
	old := moves.newest()

	w.cores[1].signal(syscall.SIGSTOP)
	w.cores[0].signal(syscall.SIGKILL)
	w.cores[0].awaitEnd(time.Minute)
	moved := make(chan error, 1)
	go func() { moved <- moves.connect(w.edges[1]) }()
	time.Sleep(300 * time.Millisecond) // so that the edge asks the next leader
	w.cores[1].signal(syscall.SIGCONT)
	w.cores[1].awaitReady()
	if err := <-moved; err != nil {
		t.Fatalf("a device that connects while no core leads: %v", err)
	}
	select {
	case <-old.Done():
	case <-time.After(time.Minute):
		t.Error("its earlier connection stays open")
	}
	if err := leaves.connect(w.edges[1]); err != nil {
		t.Fatal(err)
	}
	for _, d := range []*rowDevice{stays, moves, leaves} {
		fleettest.EventuallyWithin(t, 10*time.Second, d.mac+" to be online", func() bool {
			return w.count(`SELECT count(*) FROM devices WHERE id = $1 AND presence = 'online'`, d.id) == 1
		})
		var c rowCall
		w.rest(w.edges[0], w.token, "POST", callsPath(d.id), act(time.Minute), &c)
		if c.State != fleet.CallSucceeded {
			t.Errorf("a call to %s: %+v", d.mac, c)
		}
	}
	time.Sleep(attachTime) // presence of devices that are not announced would be reset by now
	if n := w.count(`SELECT count(*) FROM devices WHERE presence <> 'online' AND id = ANY ($1)`,
		[]string{string(stays.id), string(moves.id), string(leaves.id)}); n != 0 {
		t.Errorf("%d devices are not online", n)
	}
	if n := w.count(`SELECT count(*) FROM presence_changes WHERE presence = 'offline' AND device_id = ANY ($1) AND at > $2`,
		[]string{string(stays.id), string(moves.id)}, since); n != 0 {
		t.Errorf("%d changes to offline are on record", n)
	}
	for d, edge := range map[*rowDevice]string{stays: "edge-1", moves: "edge-2", leaves: "edge-2"} {
		if n := w.count(`SELECT count(*) FROM connections WHERE device_id = $1 AND node = $2`, d.id, edge); n != 1 {
			t.Errorf("%s is not on record at %s", d.mac, edge)
		}
	}
	if again := waiting.code(w.edges[1]); again != code {
		t.Errorf("the screen showed %s, and shows %s after the takeover", code, again)
	}
	waiting.join(w.edges[1], code)
}
