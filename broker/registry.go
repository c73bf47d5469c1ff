package broker

import (
	"hash/maphash"
	"sync"
	"time"

	"fleetd/fleet"
)

const registryShards = 64

// A registry contains every device that is connected or was recently.
type registry struct {
	seed   maphash.Seed
	shards [registryShards]registryShard
}

type registryShard struct {
	mu      sync.RWMutex
	devices map[fleet.DeviceID]*device
}

func (r *registry) init() {
	r.seed = maphash.MakeSeed()
	for i := range r.shards {
		r.shards[i].devices = make(map[fleet.DeviceID]*device)
	}
}

func (r *registry) shard(id fleet.DeviceID) *registryShard {
	return &r.shards[maphash.String(r.seed, string(id))%registryShards]
}

// hold returns the entry of the device, creating it if needed, and prevents it from being
// forgotten until release.
func (r *registry) hold(id fleet.DeviceID) *device {
	s := r.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.devices[id]
	if d == nil {
		d = newDevice(id)
		s.devices[id] = d
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holders++
	return d
}

// connection returns the device's connection, or nil if it has none.
func (r *registry) connection(id fleet.DeviceID) *connection {
	s := r.shard(id)
	s.mu.RLock()
	d := s.devices[id]
	s.mu.RUnlock()
	if d == nil {
		return nil
	}
	return d.connection()
}

// forget drops devices that disconnected before the given time. Late answers to their calls will
// be unmatched.
func (r *registry) forget(before time.Time) (n int) {
	for i := range r.shards {
		n += r.shards[i].forget(before)
	}
	return n
}

func (s *registryShard) forget(before time.Time) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, d := range s.devices {
		if d.goneBefore(before) {
			delete(s.devices, id)
			n++
		}
	}
	return n
}

// connections returns all established connections.
func (r *registry) connections() (all []*connection) {
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.RLock()
		for _, d := range s.devices {
			if c := d.connection(); c != nil {
				all = append(all, c)
			}
		}
		s.mu.RUnlock()
	}
	return all
}
