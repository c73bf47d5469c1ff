package fleet_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

func TestVisionTokens(t *testing.T) {
	const other = fleet.DeviceID("a085e3112244")
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	connections := map[fleet.DeviceID]fleet.Connection{}
	tokens := fleet.NewVisionTokens(fleet.VisionTokensOptions{Secret: []byte("secret"), PublicURL: "http://h:8080/",
		Connection: func(id fleet.DeviceID) (fleet.Connection, bool) { c, ok := connections[id]; return c, ok },
		Now:        func() time.Time { return now }})
	connections[unit] = fleet.Connection{Device: unit, At: now}
	url, token := tokens.Address(unit)
	if url != "http://h:8080/vision/explain" {
		t.Errorf("the address is %q", url)
	}
	check := func(when string, id fleet.DeviceID, token string, good bool) {
		t.Helper()
		if err := tokens.Check(id, token); (err == nil) != good {
			t.Errorf("%s: %v", when, err)
		}
	}
	check("new", unit, token, true)
	check("of another device", other, token, false)
	for _, bad := range []string{"", "x", token[:len(token)-1], token + "A", "AAAAAAAAAAA" + token[11:], " " + token} {
		check("changed to "+bad, unit, bad, false)
	}
	now = now.Add(30 * 24 * time.Hour)
	check("after a month on the same connection", unit, token, true)
	connections[unit] = fleet.Connection{Device: unit, At: now}
	_, next := tokens.Address(unit)
	check("of the connection before", unit, token, false)
	check("of the new one", unit, next, true)
	delete(connections, unit)
	check("just disconnected", unit, next, true)
	now = now.Add(16 * time.Minute)
	check("disconnected for a while", unit, next, false)
	elsewhere := fleet.NewVisionTokens(fleet.VisionTokensOptions{Secret: []byte("other"),
		Connection: func(fleet.DeviceID) (fleet.Connection, bool) { return fleet.Connection{}, false }})
	_, forged := elsewhere.Address(unit)
	check("made with another secret", unit, forged, false)
}

// A picture may come when the call that asked for it is over, and another runs.
func TestRunningCall(t *testing.T) {
	b := newBench(t)
	var running fleet.RunningCall
	var found, asked, other bool
	b.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		running, found = b.Running(unit)
		asked, other = running.Asks("What is this?"), running.Asks("Who is that?")
		return fleettest.Text("true"), nil
	})
	c := b.call(t, fleet.CallRequest{Tool: "self.odd", Arguments: json.RawMessage(`{"question":"What is this?"}`)})
	if !found || running.ID != c.ID || running.Tool != "self.odd" || !asked || other {
		t.Errorf("while call %s ran: %+v %v; its question %v, another %v", c.ID, running, found, asked, other)
	}
	c = b.call(t, fleet.CallRequest{Tool: "self.get_device_status"})
	if running.ID != c.ID || !asked || !other {
		t.Errorf("while a call without a question ran: %+v; %v, %v", running, asked, other)
	}
	if got, ok := b.Running(unit); ok {
		t.Errorf("when all are over: %+v", got)
	}
}
