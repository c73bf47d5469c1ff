package fleettest

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// A CallStore stores calls in memory. Fail, if set, is called before each write and can make
// it fail.
type CallStore struct {
	call.Store // methods that tests do not use panic
	Fail       func(op string) error

	mu    sync.Mutex
	calls map[uuid.UUID]fleet.Call
	waits map[uuid.UUID]call.Wait
}

func (s *CallStore) write(op string, c *fleet.Call) error {
	if s.Fail != nil {
		if err := s.Fail(op); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = make(map[uuid.UUID]fleet.Call)
	}
	record := *c
	record.Evidence = slices.Clone(c.Evidence)
	s.calls[c.ID] = record
	return nil
}

// InsertCall stores a new call.
func (s *CallStore) InsertCall(_ context.Context, c *fleet.Call) error { return s.write("insert", c) }

// MarkSent stores a call as sent.
func (s *CallStore) MarkSent(_ context.Context, c *fleet.Call) error { return s.write("sent", c) }

// FinishCall stores an outcome.
func (s *CallStore) FinishCall(_ context.Context, c *fleet.Call) error { return s.write("finish", c) }

// WaitForDevice stores a call that waits for its device.
func (s *CallStore) WaitForDevice(_ context.Context, c *fleet.Call, w call.Wait) error {
	if err := s.write("wait", c); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waits == nil {
		s.waits = make(map[uuid.UUID]call.Wait)
	}
	s.waits[c.ID] = w
	return nil
}

// SendWaiting stores a call that waited as sent.
func (s *CallStore) SendWaiting(ctx context.Context, c *fleet.Call) error {
	if known, err := s.Call(ctx, c.ID); err != nil || known.State.Final() {
		return cmp.Or(err, fleet.ErrConflict)
	}
	return s.write("send waiting", c)
}

// WaitingCalls returns the calls that wait for their devices.
func (s *CallStore) WaitingCalls(context.Context) (waiting []call.WaitingCall, err error) {
	for _, c := range s.All() {
		if c.State == fleet.CallPendingDevice {
			waiting = append(waiting, call.WaitingCall{Call: c, Wait: s.waits[c.ID]})
		}
	}
	return waiting, nil
}

// SettleCalls stores outcomes of calls that have none.
func (s *CallStore) SettleCalls(ctx context.Context, calls []*fleet.Call) error {
	for _, c := range calls {
		if known, err := s.Call(ctx, c.ID); err == nil && known.State.Final() {
			continue
		}
		if err := s.write("settle", c); err != nil {
			return err
		}
	}
	return nil
}

// Calls lists the calls of a device in a fan-out, newest first.
func (s *CallStore) Calls(_ context.Context, f call.Filter) (fleet.Page[fleet.Call], error) {
	var page fleet.Page[fleet.Call]
	for _, c := range slices.Backward(s.All()) {
		if c.Device == f.Device && c.FanOut == f.FanOut {
			page.Items = append(page.Items, c)
		}
	}
	return page, nil
}

// AddLateAnswer adds an answer to a call.
func (s *CallStore) AddLateAnswer(_ context.Context, id uuid.UUID, late fleet.LateAnswer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.calls[id]
	if !ok {
		return fleet.ErrNotFound
	}
	c.Late = &late
	s.calls[id] = c
	return nil
}

// Call returns a call.
func (s *CallStore) Call(_ context.Context, id uuid.UUID) (fleet.Call, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.calls[id]
	if !ok {
		return fleet.Call{}, fleet.ErrNotFound
	}
	return c, nil
}

// All returns every call, oldest first.
func (s *CallStore) All() []fleet.Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []fleet.Call
	for _, c := range s.calls {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b fleet.Call) int { return slices.Compare(a.ID[:], b.ID[:]) })
	return all
}

// Devices stores devices and inventories in memory, for reading.
type Devices struct {
	fleet.DeviceStore
	fleet.InventoryStore

	mu          sync.Mutex
	devices     map[fleet.DeviceID]fleet.Device
	inventories map[string]*fleet.Inventory
}

// Put adds or replaces a device.
func (s *Devices) Put(d fleet.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.devices == nil {
		s.devices = make(map[fleet.DeviceID]fleet.Device)
	}
	s.devices[d.ID] = d
}

// PutInventory adds an inventory.
func (s *Devices) PutInventory(inv fleet.Inventory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inventories == nil {
		s.inventories = make(map[string]*fleet.Inventory)
	}
	s.inventories[inv.ID] = &inv
}

// Device returns a device.
func (s *Devices) Device(_ context.Context, id fleet.DeviceID) (fleet.Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.devices[id]
	if !ok {
		return fleet.Device{}, fleet.ErrNotFound
	}
	return d, nil
}

// DevicesByID returns the devices that exist.
func (s *Devices) DevicesByID(ctx context.Context, ids []fleet.DeviceID) ([]fleet.Device, error) {
	var found []fleet.Device
	for _, id := range ids {
		if d, err := s.Device(ctx, id); err == nil {
			found = append(found, d)
		}
	}
	return found, nil
}

// Inventory returns an inventory.
func (s *Devices) Inventory(_ context.Context, id string) (*fleet.Inventory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	inv, ok := s.inventories[id]
	if !ok {
		return nil, fleet.ErrNotFound
	}
	return inv, nil
}

// Text returns the answer of a tool that replied with a text.
func Text(s string) fleet.Answer {
	result, _ := json.Marshal(map[string]any{"content": []any{map[string]any{"type": "text", "text": s}},
		"isError": false})
	return fleet.Answer{Result: result, Text: s}
}
