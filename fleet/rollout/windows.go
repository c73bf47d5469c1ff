package rollout

import (
	"context"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// need returns how long the upgrade of a device is expected to take, which must fit into the
// rest of a window.
func need(d *deployment) time.Duration { return campaign.ExpectedDuration(d.ImageSize) }

// followWindows pauses a campaign when no device's window is open, and resumes it when one is.
func (l *loop) followWindows(ctx context.Context, c *openCampaign) error {
	paused := c.State == campaign.Paused && c.PauseReason == campaign.PausedByWindow
	if len(c.Plan.Windows) == 0 && !paused {
		return nil
	}
	minute := l.now.Truncate(time.Minute)
	if minute.Equal(c.windowsAt) && c.Revision == c.windowsFor {
		return nil // windows open on the minute, and a search for one that never opens is slow
	}
	open, next := l.anyWindow(c)
	c.windowsAt, c.windowsFor = minute, c.Revision
	switch {
	case open && paused:
		return l.change(ctx, c, "", func(row *campaign.Campaign) {
			row.State, row.PauseReason, row.Reason = campaign.Running, "", fleet.Reason{}
		})
	case open || c.State != campaign.Running || c.open() == c.active:
		return nil
	}
	reason := fleet.Because(campaign.ReasonNoWindow)
	if !next.IsZero() {
		reason = fleet.Because(campaign.ReasonNextWindowOpens, "opens_at", next)
	}
	return l.pause(ctx, c, campaign.PausedByWindow, reason)
}

// anyWindow reports whether the window of any device is open, else when the first one opens.
func (l *loop) anyWindow(c *openCampaign) (open bool, next time.Time) {
	zones := c.zones
	if len(zones) == 0 {
		zones = map[*time.Location]int{l.o.Zone: 1}
	}
	for zone := range zones {
		at, ok := campaign.NextWindow(c.Plan.Windows, zone, l.now, 0)
		switch {
		case ok && !at.After(l.now):
			return true, at
		case ok && (next.IsZero() || at.Before(next)):
			next = at
		}
	}
	return false, next
}

// zoneOf returns the device's time zone, and stores it for the windows of the campaign.
func (l *loop) zoneOf(d *deployment, device fleet.Device) *time.Location {
	if d.zone == nil {
		d.zone = l.o.Zone
		if device.TimeZone != "" {
			if zone, err := l.zones.load(device.TimeZone); err == nil {
				d.zone = zone
			}
		}
		d.camp.zones[d.zone]++
	}
	return d.zone
}

// learnZones reads the time zones of all waiting devices if windows follow them.
func (l *loop) learnZones(ctx context.Context, c *openCampaign) error {
	if !c.byDeviceTime() {
		return nil
	}
	var unknown []*deployment
	for _, d := range c.held {
		if d.zone == nil && d.State == campaign.DeploymentQueued {
			unknown = append(unknown, d)
		}
	}
	for chunk := range slices.Chunk(unknown, saveBatch) {
		devices, err := l.devices(ctx, chunk)
		if err != nil {
			return err
		}
		for _, d := range chunk {
			l.zoneOf(d, devices[d.Device])
		}
	}
	return nil
}

// windowOpen reports whether the device may be notified now. The jitter spreads the devices
// over at most the first half of the window, so that all devices get their turn in it.
func (l *loop) windowOpen(d *deployment, zone *time.Location) bool {
	return campaign.WindowOpen(d.camp.Plan.Windows, zone, l.now, need(d)) &&
		l.now.Sub(l.openedAt(d, zone)) >= windowJitter(d)
}

// openedAt returns when the open window began, as far as the jitter needs it.
func (l *loop) openedAt(d *deployment, zone *time.Location) time.Time {
	most := windowJitter(d)
	if most == 0 {
		return l.now
	}
	before := l.now.Add(-most)
	if campaign.WindowOpen(d.camp.Plan.Windows, zone, before, 0) {
		return before
	}
	at, ok := campaign.NextWindow(d.camp.Plan.Windows, zone, before, 0)
	if !ok || at.After(l.now) {
		return l.now
	}
	return at
}

// nextTurn returns when the window of the device opens, including its jitter; false if never.
func (l *loop) nextTurn(d *deployment, zone *time.Location) (time.Time, bool) {
	if campaign.WindowOpen(d.camp.Plan.Windows, zone, l.now, need(d)) {
		return l.openedAt(d, zone).Add(windowJitter(d)), true
	}
	at, ok := campaign.NextWindow(d.camp.Plan.Windows, zone, l.now, need(d))
	return at.Add(windowJitter(d)), ok
}

func windowJitter(d *deployment) time.Duration {
	most := d.camp.Plan.Jitter
	for _, w := range d.camp.Plan.Windows {
		most = min(most, max(0, (w.Duration-need(d))/2))
	}
	if len(d.camp.Plan.Windows) == 0 {
		return 0 // the delay counts from the start of the wave
	}
	return campaign.JitterFor(d.Campaign, d.Device, most)
}

// zoneCache caches time zones by name: reading one opens a file.
type zoneCache map[string]*time.Location

func (z *zoneCache) load(name string) (*time.Location, error) {
	if zone, ok := (*z)[name]; ok {
		return zone, nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, err
	}
	if *z == nil || len(*z) > 1000 {
		*z = make(zoneCache)
	}
	(*z)[name] = zone
	return zone, nil
}
