package picture_test

import (
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/picture"
)

const unit = fleet.DeviceID("a085e3112233")

func TestVisionTokens(t *testing.T) {
	const other = fleet.DeviceID("a085e3112244")
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	connections := map[fleet.DeviceID]fleet.Connection{}
	tokens := picture.NewVisionTokens(picture.VisionTokensOptions{Secret: []byte("secret"), PublicURL: "http://h:8080/",
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
	elsewhere := picture.NewVisionTokens(picture.VisionTokensOptions{Secret: []byte("other"),
		Connection: func(fleet.DeviceID) (fleet.Connection, bool) { return fleet.Connection{}, false }})
	_, forged := elsewhere.Address(unit)
	check("made with another secret", unit, forged, false)
}
