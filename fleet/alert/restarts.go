package alert

import (
	"sync"
	"time"

	"fleetd/fleet"
)

// maxRestarts bounds the restarts that are remembered of one device.
const maxRestarts = 100

// Restarts remembers when devices restarted: they poll at each boot, and at no
// other time. It is memory alone, bounded per device; after a start of fleetd it
// knows what happened since. The zero value is ready.
type Restarts struct {
	mu sync.Mutex
	at map[fleet.DeviceID][]int64 // Unix seconds, oldest first
}

// Observe notes the evidence that a device restarted. It is quick.
func (r *Restarts) Observe(id fleet.DeviceID, e fleet.Evidence) {
	if e.Kind != fleet.EvidenceBootPoll {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == nil {
		r.at = make(map[fleet.DeviceID][]int64)
	}
	list := append(r.at[id], e.At.Unix())
	r.at[id] = list[max(0, len(list)-maxRestarts):]
}

// Often lists the devices that restarted at least count times since then, and
// forgets what is older than keep.
func (r *Restarts) Often(count int, since time.Time, keep time.Duration) (often []fleet.DeviceID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := since.Add(-keep).Unix()
	for id, list := range r.at {
		n := 0
		for _, at := range list {
			if at >= since.Unix() {
				n++
			}
		}
		if n >= count {
			often = append(often, id)
		}
		if list[len(list)-1] < oldest {
			delete(r.at, id)
		}
	}
	return often
}
