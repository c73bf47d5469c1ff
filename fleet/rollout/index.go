package rollout

import (
	"sync"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// index is the part of the loop's state that senders of evidence see: the devices about which
// the loop expects evidence. Any other device costs one map lookup.
type index struct {
	mu      sync.RWMutex
	loading bool                   // rows are being read: all evidence counts
	devices map[fleet.DeviceID]int // deployments; nil while no engine works here
	of      map[uuid.UUID]fleet.DeviceID
	queued  map[fleet.DeviceID]int // deployments that wait to be notified
}

func (x *index) open() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.loading = true
	x.devices, x.of, x.queued = make(map[fleet.DeviceID]int), make(map[uuid.UUID]fleet.DeviceID),
		make(map[fleet.DeviceID]int)
}

func (x *index) loaded() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.loading = false
}

func (x *index) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.loading, x.devices, x.of, x.queued = false, nil, nil, nil
}

// deviceOf returns the device of the deployment; false if the engine needs no evidence of it.
func (x *index) deviceOf(deployment uuid.UUID) (fleet.DeviceID, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	id, ok := x.of[deployment]
	return id, ok || x.loading
}

func (x *index) has(id fleet.DeviceID) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.loading || x.devices[id] > 0
}

// waits reports whether the device waits to be notified of an image: the reply to its boot poll
// may be an offer.
func (x *index) waits(id fleet.DeviceID) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.queued[id] > 0
}

func (x *index) setWaiting(id fleet.DeviceID, waits bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.queued == nil:
	case waits:
		x.queued[id]++
	case x.queued[id] > 1:
		x.queued[id]--
	default:
		delete(x.queued, id)
	}
}

func (x *index) add(d *deployment) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.devices != nil {
		x.devices[d.Device]++
		x.of[d.ID] = d.Device
	}
}

func (x *index) remove(d *deployment) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.devices == nil {
		return
	}
	delete(x.of, d.ID)
	if x.devices[d.Device]--; x.devices[d.Device] <= 0 {
		delete(x.devices, d.Device)
	}
}
