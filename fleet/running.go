package fleet

import (
	"encoding/json"
	"sync"

	"github.com/google/uuid"
)

// A RunningCall is a call that was sent to a device, which has not answered yet.
type RunningCall struct {
	ID        uuid.UUID
	Tool      string
	Actor     Principal
	arguments json.RawMessage // as sent
}

// Asks reports whether a question that the device passes on can be this call's:
// a call with another one is not where it came from.
func (c RunningCall) Asks(question string) bool {
	var args struct{ Question *string }
	return json.Unmarshal(c.arguments, &args) != nil || args.Question == nil || *args.Question == question
}

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
