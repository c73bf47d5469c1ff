package campaign

import (
	"crypto/sha256"
	"encoding/binary"
	"fleetd/fleet"
	"time"

	"github.com/google/uuid"
)

// windowHorizon is how far ahead a window is looked for: one that opens once a
// year is found.
const windowHorizon = 400 * 24 * time.Hour

// WindowOpen reports whether a dispatch at the given time falls into a window,
// and whether what takes as long as need is over before the window ends. zone
// is the device's, for windows in [DeviceZone]. No windows are always open.
func WindowOpen(ws []Window, zone *time.Location, now time.Time, need time.Duration) bool {
	if len(ws) == 0 {
		return true
	}
	for _, w := range ws {
		if w.open(zone, now, need) {
			return true
		}
	}
	return false
}

// NextWindow returns the next time at which [WindowOpen] holds: now, or when a
// window opens. It returns false if no window is long enough or none opens
// within 400 days.
func NextWindow(ws []Window, zone *time.Location, now time.Time, need time.Duration) (time.Time, bool) {
	if WindowOpen(ws, zone, now, need) {
		return now, true
	}
	next := now.Add(windowHorizon)
	found := false
	for _, w := range ws {
		if need > w.Duration {
			continue
		}
		if at, ok := w.firstOpening(zone, now); ok && at.Before(next) {
			next, found = at, true
		}
	}
	return next, found
}

// open looks for an opening that lies so that now and now+need are inside.
func (w Window) open(zone *time.Location, now time.Time, need time.Duration) bool {
	if need > w.Duration {
		return false
	}
	at, ok := w.firstOpening(zone, now.Add(need-w.Duration))
	return ok && !at.After(now)
}

// JitterFor spreads the devices of a campaign over a span: the same device
// always gets the same delay, less than max.
func JitterFor(campaign uuid.UUID, device fleet.DeviceID, max time.Duration) time.Duration {
	if max <= 0 {
		return 0
	}
	return time.Duration(stableHash(campaign, device) % uint64(max))
}

// stableHash orders and spreads devices within a campaign: no device is always
// the first.
func stableHash(campaign uuid.UUID, device fleet.DeviceID) uint64 {
	sum := sha256.Sum256(append(campaign[:], device...))
	return binary.BigEndian.Uint64(sum[:])
}
