package main

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	"fleetd/broker/sim"
	"fleetd/fleet"
)

// TestTwoBoardsWithOneMAC runs two boards with the same address. The first is
// connected; the second polls under the same Device-Id.
func TestTwoBoardsWithOneMAC(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	board := func(seed uint64, name, addr string) *sim.Device {
		return d.simulate(sim.Options{Boards: []string{name}, Seed: seed, FirstMAC: "02:f1:ee:00:00:01",
			LocalAddrs: []string{addr},
			Keepalive:  2 * time.Second, BootDelay: 100 * time.Millisecond, TimeScale: 0.2}).Device(0)
	}
	first := board(1, "bread-compact-wifi", "127.0.0.2")
	d.eventually("the first board connected", first.Connected)
	type side struct {
		Client, Board, Chip string
		RemoteAddr          string `json:"remote_addr"`
		Bound               bool
	}
	type device struct {
		Conflict *struct {
			Code     string
			Evidence []string
			Sides    []side
		}
	}
	path := "/devices/02f1ee000001"
	look := func() (v device) {
		d.rest("GET", path, nil, &v)
		return v
	}
	if c := look().Conflict; c != nil {
		t.Fatalf("one board is a conflict: %+v", c)
	}
	second := board(2, "xmini-c3", "127.0.0.3")
	if first.ClientID() == second.ClientID() || first.ID() != second.ID() {
		t.Fatal("the two boards differ in the wrong way")
	}
	d.eventually("a conflict", func() bool { return look().Conflict != nil })
	c := look().Conflict
	if c.Code != "duplicate_device_id" || len(c.Sides) != 2 || c.Evidence[0] != "both_alive" {
		t.Fatalf("conflict %+v", c)
	}
	a, b := c.Sides[0], c.Sides[1]
	if a.Client != fleet.ClientTag(first.ClientID()) || a.RemoteAddr != "127.0.0.2" || a.Board != "bread-compact-wifi" ||
		!a.Bound {
		t.Errorf("the first side is %+v", a)
	}
	if b.Client != fleet.ClientTag(second.ClientID()) || b.RemoteAddr != "127.0.0.3" || b.Board != "xmini-c3" ||
		b.Chip != "esp32c3" || b.Bound {
		t.Errorf("the second side is %+v", b)
	}
	resp, err := http.Get("http://" + d.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if !bytes.Contains(text, []byte("\nfleetd_device_conflicts 1\n")) {
		t.Error("the metric does not count the conflict")
	}
	d.kill()
	d.start()
	if look().Conflict == nil {
		t.Error("after a restart the conflict is gone")
	}
	var v device
	d.eventually("a conflict that can be resolved", func() bool {
		v = device{}
		return d.rest("POST", path+"/resolve-conflict", map[string]string{"act": "keep", "client": a.Client}, &v) == 200
	})
	if v.Conflict != nil {
		t.Errorf("after it was resolved there is %+v", v.Conflict)
	}
	d.eventually("the kept board connected", first.Connected)
	time.Sleep(5 * time.Second) // the second unit keeps polling, and the first one answers
	if c := look().Conflict; c != nil || second.Connected() {
		t.Errorf("the refused board makes a conflict %+v, connected %t", c, second.Connected())
	}
}
