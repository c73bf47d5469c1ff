package call

import (
	"sync"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// runningCalls are the calls that devices are executing, at most one per device.
type runningCalls struct {
	mu sync.Mutex
	of map[fleet.DeviceID]fleet.RunningCall
}

func (r *runningCalls) begin(device fleet.DeviceID, c fleet.RunningCall) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = make(map[fleet.DeviceID]fleet.RunningCall)
	}
	r.of[device] = c
}

func (r *runningCalls) end(device fleet.DeviceID, call uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of[device].ID == call {
		delete(r.of, device)
	}
}

// Running returns the call that runs on the device, if any.
func (s *Service) Running(device fleet.DeviceID) (fleet.RunningCall, bool) {
	s.inFlight.mu.Lock()
	defer s.inFlight.mu.Unlock()
	c, ok := s.inFlight.of[device]
	return c, ok
}
