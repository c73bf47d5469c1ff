package server

import (
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/web/i18n"
)

// aheadClock is a clock that a test sets forward.
type aheadClock struct{ ahead atomic.Int64 }

func (c *aheadClock) now() time.Time          { return time.Now().UTC().Add(time.Duration(c.ahead.Load())) }
func (c *aheadClock) forward(d time.Duration) { c.ahead.Add(int64(d)) }

// open returns the open alert of a kind, and its text on pages.
func (d *testServer) open(kind alert.Kind) (found alert.Alert, says string) {
	for _, a := range d.Alerts.Current(testOperator) {
		if a.Kind == kind {
			found, says = a, i18n.Because(i18n.English, time.UTC, "alert.what.", a.Reason())
		}
	}
	return found, says
}

// Most of a fleet leaves, fleetd restarts meanwhile, and the devices return: over real
// connections, with the alerts' clock set forward in place of waiting.
func TestAlertOfAFleetThatLeaves(t *testing.T) {
	t.Parallel()
	var clock aheadClock
	d := startTestServer(t, func(c *Config) { c.alertNow = clock.now })
	quick := func(devices int, seed uint64) sim.Options {
		return sim.Options{Devices: devices, Seed: seed, TimeScale: 0.01, BootDelay: time.Millisecond}
	}
	d.simulate(quick(4, 1))
	_, leave := d.simulateFor(quick(20, 2))
	online := func(n int) func() bool {
		return func() bool { got, _, _ := d.Presences.Counts(); return got == n }
	}
	d.eventually("24 devices online", online(24))
	clock.forward(30 * time.Second)
	d.eventually("presence counts", func() bool { return !d.Alerts.Settling() })

	fell := clock.now()
	leave()
	d.eventually("4 devices online", online(4))
	d.eventually("the broker's count was seen", func() bool {
		clock.forward(200 * time.Millisecond) // some seconds a second: the condition must last for 15
		a, _ := d.open(alert.OnlineDropped)
		return a.Kind != ""
	})
	a, says := d.open(alert.OnlineDropped)
	if after := a.Began.Sub(fell); after < 0 || after > 10*time.Second {
		t.Errorf("the alert began %s after the fall", after)
	}
	var stats struct {
		Presence struct{ Online, Offline, Unresponsive int }
	}
	d.rest("GET", "/stats", nil, &stats)
	if a.Devices != stats.Presence.Offline || a.Severity != alert.Bad ||
		says != "20 of 24 devices are offline: 17% are online, down from 100%" {
		t.Errorf("%s %d %q, beside %+v", a.Severity, a.Devices, says, stats.Presence)
	}

	d.restart()
	d.eventually("4 devices online again", online(4))
	d.simulate(quick(20, 2))
	d.eventually("24 devices online again", online(24))
	over := regexp.MustCompile(`^20 devices were offline from \d\d:\d\d(:\d\d)? to \d\d:\d\d(:\d\d)?; all are back$`)
	d.eventually("the alert says that all are back", func() bool {
		_, says = d.open(alert.OnlineDropped)
		return over.MatchString(says)
	})
	clock.forward(31 * time.Second)
	d.eventually("presence counts, as all are back", func() bool { return !d.Alerts.Settling() })
	clock.forward(5 * time.Minute)
	d.eventually("the alert ends", func() bool { return d.Alerts.Count(alert.OnlineDropped) == 0 })
	for _, again := range d.Alerts.Current(testOperator) {
		if again.Kind != alert.DiskLow { // the disk of the machine that runs the test
			t.Errorf("after all that: %+v", again)
		}
	}
}

// Devices that lose their connection again and again cause an alert, although they are
// online most of the time.
func TestAlertOfDevicesThatFlap(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	d.simulate(sim.Options{Devices: 6, Seed: 1, TimeScale: 0.01, BootDelay: time.Millisecond})
	d.simulate(sim.Options{Devices: 6, Seed: 2, TimeScale: 0.01, BootDelay: time.Millisecond,
		Faults: []sim.Fault{{Kind: sim.FaultFlap, Rate: 1, Delay: 300 * time.Millisecond}}})
	var found alert.Alert
	d.eventually("an alert of all that flap", func() bool {
		found, _ = d.open(alert.Flapping)
		return found.Devices == 6
	})
	if found.Severity != alert.Bad {
		t.Errorf("half of the fleet flaps, and that is a %s", found.Severity)
	}
	q, err := fleet.ParseQuery(found.Query)
	if n, count := d.Devices.CountDevices(t.Context(), q); err != nil || count != nil || n != 6 {
		t.Errorf("its link %q finds %d devices: %v, %v", found.Query, n, err, count)
	}
}
