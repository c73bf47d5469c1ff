package fleet

import (
	"context"
	"sync"
	"time"

	"fleetd/internal/bounded"
)

// A Target is the data about a device that the gate needs to judge a call.
type Target struct {
	Device    Device
	Inventory *Inventory // shared by equal devices; nil before the first listing
	Offers    ToolSet    // answers from Inventory, for this device only
	readAt    time.Time
}

// targetTTL is how long a change that bypasses fleetd can go unnoticed. Changes made through
// fleetd drop the cached device at once.
const targetTTL = 15 * time.Second

// maxTargetInventories is the maximum number of cached inventories. A fleet has one per
// firmware build; a hostile device offers another at every connection, of up to a megabyte.
const maxTargetInventories = 256

// Targets caches the data about devices that calls need, so that a call needs no read.
type Targets struct {
	devices     DeviceStore
	inventories InventoryStore

	mu          sync.RWMutex
	targets     map[DeviceID]*Target
	inventoryOf *bounded.Cache[string, *Inventory]

	// A device that changed while it was read must not be cached as it was before.
	reads     int                // under way
	changes   int64              // number of the latest
	changed   map[DeviceID]int64 // devices that changed since there were no reads: number of the change
	forgotten int64              // number of the latest change of all devices
}

// NewTargets returns an empty cache over the stores.
func NewTargets(devices DeviceStore, inventories InventoryStore) *Targets {
	return &Targets{devices: devices, inventories: inventories, targets: make(map[DeviceID]*Target),
		inventoryOf: bounded.New[string, *Inventory](maxTargetInventories), changed: make(map[DeviceID]int64)}
}

// Forget drops a changed device from the cache. A read that is under way does not put it back.
func (t *Targets) Forget(id DeviceID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.targets, id)
	if t.changes++; t.reads > 0 {
		t.changed[id] = t.changes
	}
}

// begin returns the number of the latest change before a read. The read ends with end.
func (t *Targets) begin() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reads++
	return t.changes
}

func (t *Targets) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reads--; t.reads == 0 {
		clear(t.changed)
	}
}

// Get returns the device from the cache, or reads it again if the entry is older than
// [targetTTL].
func (t *Targets) Get(ctx context.Context, id DeviceID, now time.Time) (*Target, error) {
	t.mu.RLock()
	known := t.targets[id]
	t.mu.RUnlock()
	if known != nil && now.Sub(known.readAt) < targetTTL {
		return known, nil
	}
	return t.read(ctx, id, now)
}

func (t *Targets) read(ctx context.Context, id DeviceID, now time.Time) (*Target, error) {
	since := t.begin()
	defer t.end()
	ctx = WithoutScope(ctx) // principals share the cache
	d, err := t.devices.Device(ctx, id)
	if err != nil {
		return nil, err
	}
	return t.add(ctx, d, now, since)
}

// Renewed returns the device as it is now, if the target was cached before now.
func (t *Targets) Renewed(ctx context.Context, known *Target, now time.Time) (*Target, error) {
	if !known.readAt.Before(now) {
		return known, nil
	}
	return t.read(ctx, known.Device.ID, now)
}

// Latest returns the device as last read, however long ago; nil if it is not in memory.
func (t *Targets) Latest(id DeviceID) *Target {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.targets[id]
}

// Device returns the device that calls are judged by. It may be some seconds old if something
// other than fleetd changed the device.
func (t *Targets) Device(ctx context.Context, id DeviceID) (Device, error) {
	known, err := t.Get(ctx, id, time.Now().UTC())
	if err != nil {
		return Device{}, err
	}
	return known.Device, nil
}

// MayOn returns nil if the principal may do an act on the device that needs role need; see
// [Principal.MayOnDevice].
func (t *Targets) MayOn(ctx context.Context, by Principal, id DeviceID, need Role, act string) error {
	return by.MayOnDevice(ctx, t.Device, id, need, act)
}

// loadTTL is the age after which Load reads a device again. It leaves the calls of a fan-out
// enough time to use the loaded devices, so that they do not read them one by one.
const loadTTL = targetTTL / 3

// Load returns many devices at once, for a fan-out. It reads those that are not cached or
// older than loadTTL.
func (t *Targets) Load(ctx context.Context, ids []DeviceID, now time.Time) (map[DeviceID]*Target, error) {
	loaded := make(map[DeviceID]*Target, len(ids))
	var unknown []DeviceID
	t.mu.RLock()
	for _, id := range ids {
		if known := t.targets[id]; known != nil && now.Sub(known.readAt) < loadTTL {
			loaded[id] = known
		} else {
			unknown = append(unknown, id)
		}
	}
	t.mu.RUnlock()
	if len(unknown) == 0 {
		return loaded, nil
	}
	since := t.begin()
	defer t.end()
	ctx = WithoutScope(ctx)
	devices, err := t.devices.DevicesByID(ctx, unknown)
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if loaded[d.ID], err = t.add(ctx, d, now, since); err != nil {
			return nil, err
		}
	}
	return loaded, nil
}

// add caches a device that was read after the change with number since, unless it changed again.
func (t *Targets) add(ctx context.Context, d Device, now time.Time, since int64) (*Target, error) {
	inv, err := t.inventory(ctx, d.InventoryID)
	if err != nil {
		return nil, err
	}
	tg := &Target{Device: d, Inventory: inv, readAt: now}
	tg.Offers = func(_ Device, tool string) bool { _, ok := inv.Tool(tool); return ok }
	t.mu.Lock()
	defer t.mu.Unlock()
	if max(t.changed[d.ID], t.forgotten) <= since {
		t.targets[d.ID] = tg
	}
	return tg, nil
}

func (t *Targets) inventory(ctx context.Context, id string) (*Inventory, error) {
	if id == "" {
		return nil, nil
	}
	if inv, ok := t.inventoryOf.Get(id); ok {
		return inv, nil
	}
	inv, err := t.inventories.Inventory(ctx, id)
	if err != nil {
		return nil, err
	}
	t.inventoryOf.Add(id, inv)
	return inv, nil
}

// Run drops devices from the cache when events report their changes, until ctx ends.
func (t *Targets) Run(ctx context.Context, events *Events) error {
	for ctx.Err() == nil {
		sub := events.Subscribe(1024, nil, EventDevice, EventInventory)
		t.forgetAll() // devices may have changed before the subscription
		t.follow(ctx, sub)
		sub.Close()
	}
	return nil
}

// follow drops changed devices until ctx ends or a burst of events ends the subscription.
func (t *Targets) follow(ctx context.Context, sub *Subscription) {
	for {
		select {
		case e, ok := <-sub.C:
			if !ok {
				return
			}
			t.Forget(e.Device)
		case <-ctx.Done():
			return
		}
	}
}

func (t *Targets) forgetAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.targets)
	t.changes++
	t.forgotten = t.changes
}
