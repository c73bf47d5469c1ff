package console_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/picture"
	"fleetd/fleet/telemetry"
)

// The device list has to feel instant at 5,000 devices. The limit is that of the design; the best
// of many measurements counts, because other tests may run at the same time.
func TestDeviceListIsInstant(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	c := newConsole(t)
	var ids []fleet.DeviceID
	for i := range 5000 {
		ids = append(ids, fleet.DeviceID(fmt.Sprintf("a085e3%06x", i)))
	}
	c.poll(ids...)
	c.fillColumns(ids)
	b := c.as(fleet.RoleOperator)
	const limit = 100 * time.Millisecond
	for _, path := range []string{"/devices", "/devices?q=0013", "/devices?q=presence%3Aonline+version%3C2.4",
		"/devices?q=tag%3Alab&sort=last_seen&desc=1", "/", "/devices?view=wall", "/complete?q=", "/complete?q=board%3A",
		"/devices?columns=picture,board,chip,version,slot,tags,signal,heap,crash,ip,transport,created,seen"} {
		var took []time.Duration
		for len(took) < 1 || fleettest.Bounded() && (len(took) < 21 || slices.Min(took) > limit && len(took) < 200) {
			began := time.Now()
			b.get(path).wantStatus(200)
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		t.Logf("%-50s median %v", path, took[len(took)/2])
		fleettest.Within(t, "the best of "+path, took[0], limit)
	}
}

// fillColumns stores vitals of all devices and pictures of some, and saves filters.
func (c *site) fillColumns(ids []fleet.DeviceID) {
	c.t.Helper()
	check := func(err error) {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	now, rssi := time.Now().UTC(), -61
	vitals := make(map[fleet.DeviceID]telemetry.Vitals, len(ids))
	for i, id := range ids {
		vitals[id] = telemetry.Vitals{At: now, Uptime: time.Hour, Version: "2.4.0", Boots: 3, Crashes: int64(i % 7 / 6),
			HeapFree: 120_000, HeapMin: 90_000, IP: "192.0.2.7", SSID: "workshop", RSSI: &rssi}
	}
	check(c.store.SaveVitals(c.t.Context(), vitals))
	for i, id := range ids[:1000] {
		for range 3 {
			check(c.store.CreateSnapshot(c.t.Context(), picture.Snapshot{ID: uuid.Must(uuid.NewV7()),
				Kind:   picture.SnapshotScreen,
				Device: id, Call: uuid.New(), Blob: strings.Repeat("ab", 32), MediaType: "image/jpeg", Width: 320, Height: 240,
				Size: 20_000, CreatedAt: now}))
		}
		if i < 10 {
			_, err := c.filters.Create(c.t.Context(), anna, fleet.Filter{Name: fmt.Sprintf("filter-%d", i),
				Query: fmt.Sprintf("version<2.%d tag:lab,t%d presence:online", i, i)})
			check(err)
		}
	}
}
