package campaign

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// WindowOpen is [fleet.WindowOpen].
func WindowOpen(ws []Window, zone *time.Location, now time.Time, need time.Duration) bool {
	return fleet.WindowOpen(ws, zone, now, need)
}

// NextWindow is [fleet.NextWindow].
func NextWindow(ws []Window, zone *time.Location, now time.Time, need time.Duration) (time.Time, bool) {
	return fleet.NextWindow(ws, zone, now, need)
}

// JitterFor spreads the devices of a campaign over a span. It returns a delay less than max,
// always the same one for the same device.
func JitterFor(campaign uuid.UUID, device fleet.DeviceID, max time.Duration) time.Duration {
	if max <= 0 {
		return 0
	}
	return time.Duration(stableHash(campaign, device) % uint64(max))
}

// stableHash orders and spreads devices within a campaign, in a way that no device is always the first.
func stableHash(campaign uuid.UUID, device fleet.DeviceID) uint64 {
	sum := sha256.Sum256(append(campaign[:], device...))
	return binary.BigEndian.Uint64(sum[:])
}
