package postgres_test

import (
	"context"
	"testing"
	"time"

	"fleetd/fleet"
)

// Everything that a reader sees of a device is of one moment, from the first second on: row,
// filter, order and count. Meanwhile nothing is stored except for the readers.
func TestReadersSeePresenceAsOne(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	addDevices(t, s, "a", "b", "c")
	p := fleet.NewPresences(fleet.PresenceOptions{Store: s, Node: "n1", WriteEvery: time.Hour})
	devices := fleet.NewDevices(fleet.DevicesOptions{Store: s, Targets: fleet.NewTargets(s, s), Presence: p,
		Events: &fleet.Events{}})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	if err := p.Recover(ctx); err != nil {
		t.Fatal(err)
	}
	go func() { done <- p.Run(ctx) }()

	conn := fleet.Connection{Device: "b", Node: "n1", Epoch: 1, Transport: "mqtts",
		RemoteAddr: "192.0.2.7", At: time.Now()}
	p.Connected(conn)
	d, err := devices.Device(ctx, "b")
	if err != nil || d.Presence != fleet.PresenceOnline || d.Transport != "mqtts" || d.RemoteAddr != "192.0.2.7" ||
		d.LastSeen == nil || time.Since(*d.LastSeen) > time.Minute {
		t.Errorf("connected: %s by %q from %q, seen %v, %v", d.Presence, d.Transport, d.RemoteAddr, d.LastSeen, err)
	}
	conn.Device, conn.Transport = "c", "mqtt"
	p.Connected(conn)
	list := func(query string) (ids []fleet.DeviceID) {
		t.Helper()
		q, err := fleet.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		page, err := devices.Devices(ctx, fleet.DeviceFilter{Query: q, Sort: fleet.SortName})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range page.Items {
			ids = append(ids, d.ID)
			online := d.Presence == fleet.PresenceOnline
			if online != (query == "presence:online") || online && d.Transport == "" {
				t.Errorf("%s lists %s: %s by %q", query, d.ID, d.Presence, d.Transport)
			}
		}
		return ids
	}
	same(t, list("presence:online"), []fleet.DeviceID{"b", "c"})
	p.Disconnected(fleet.Connection{Device: "b", Epoch: 1}, true, fleet.Cause{})
	q, _ := fleet.ParseQuery("presence:online")
	if n, err := devices.CountDevices(ctx, q); n != 1 || err != nil {
		t.Errorf("%d online, %v; want 1", n, err)
	}
	same(t, list("-presence:online"), []fleet.DeviceID{"a", "b"})

	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// The next process has another name, like one in a new container.
	next := fleet.NewPresences(fleet.PresenceOptions{Store: s, Node: "n2"})
	if err := next.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	d, err = s.Device(t.Context(), "c")
	if err != nil || d.Presence != fleet.PresenceOffline || !d.PresenceEvidence.Is(fleet.PresenceUnwatched) {
		t.Errorf("after a restart: %s (%s), %v", d.Presence, d.PresenceEvidence, err)
	}
}
