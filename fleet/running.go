package fleet

import (
	"sync"

	"github.com/google/uuid"
)

// runningCalls are the calls that devices work on, one per device at most.
type runningCalls struct {
	mu sync.Mutex
	of map[DeviceID]RunningCall
}

func (r *runningCalls) begin(device DeviceID, c RunningCall) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = make(map[DeviceID]RunningCall)
	}
	r.of[device] = c
}

func (r *runningCalls) end(device DeviceID, call uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of[device].ID == call {
		delete(r.of, device)
	}
}

// Running returns the call that runs on the device, if there is one.
func (s *Calls) Running(device DeviceID) (RunningCall, bool) {
	s.inFlight.mu.Lock()
	defer s.inFlight.mu.Unlock()
	c, ok := s.inFlight.of[device]
	return c, ok
}
