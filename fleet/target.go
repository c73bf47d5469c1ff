package fleet

import (
	"context"
	"sync"
	"time"

	"fleetd/internal/bounded"
)

// A target is what the gate must know of a device to judge a call.
type Target struct {
	Device    Device
	Inventory *Inventory // shared by equal devices; nil before the first listing
	Offers    ToolSet    // of this device alone: what inventory holds
	readAt    time.Time
}

// targetTTL bounds how long a change made behind fleetd's back goes unnoticed;
// changes made through it are forgotten here at once.
const targetTTL = 15 * time.Second

// maxTargetInventories bounds the inventories kept. A fleet has one per
// firmware build; a hostile device offers another at every connection, of up
// to a megabyte.
const maxTargetInventories = 256

// Targets keeps what calls need to know of devices in memory, so that a call
// costs no read.
type Targets struct {
	devices     DeviceStore
	inventories InventoryStore

	mu          sync.RWMutex
	targets     map[DeviceID]*Target
	inventoryOf *bounded.Cache[string, *Inventory]
}

// NewTargets returns an empty cache over the stores.
func NewTargets(devices DeviceStore, inventories InventoryStore) *Targets {
	return &Targets{devices: devices, inventories: inventories,
		targets: make(map[DeviceID]*Target), inventoryOf: bounded.New[string, *Inventory](maxTargetInventories)}
}

// Forget drops what is known of a device, after it changed.
func (t *Targets) Forget(id DeviceID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.targets, id)
}

// Get returns what is known of the device, and reads it again if that is older than
// [targetTTL].
func (t *Targets) Get(ctx context.Context, id DeviceID, now time.Time) (*Target, error) {
	t.mu.RLock()
	known := t.targets[id]
	t.mu.RUnlock()
	if known != nil && now.Sub(known.readAt) < targetTTL {
		return known, nil
	}
	ctx = WithoutScope(ctx) // principals share the cache
	d, err := t.devices.Device(ctx, id)
	if err != nil {
		return nil, err
	}
	return t.add(ctx, d, now)
}

// Latest returns the device as it was last read, however long ago; nil if it is
// not in memory.
func (t *Targets) Latest(id DeviceID) *Target {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.targets[id]
}

// Device returns the device as calls are judged: as it was some seconds ago, if
// something else than fleetd changed it since.
func (t *Targets) Device(ctx context.Context, id DeviceID) (Device, error) {
	known, err := t.Get(ctx, id, time.Now().UTC())
	if err != nil {
		return Device{}, err
	}
	return known.Device, nil
}

// MayOn returns nil if the principal may do to the device what needs role need;
// see [Principal.MayOnDevice].
func (t *Targets) MayOn(ctx context.Context, by Principal, id DeviceID, need Role, act string) error {
	return by.MayOnDevice(ctx, t.Device, id, need, act)
}

// loadTTL leaves what Load returns enough time to be used by the calls for which
// it was loaded, so that these do not read device by device.
const loadTTL = targetTTL / 3

// Load returns many devices at once, for a fan-out: those that are unknown, or
// were read a while ago, are read.
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
	ctx = WithoutScope(ctx)
	devices, err := t.devices.DevicesByID(ctx, unknown)
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if loaded[d.ID], err = t.add(ctx, d, now); err != nil {
			return nil, err
		}
	}
	return loaded, nil
}

func (t *Targets) add(ctx context.Context, d Device, now time.Time) (*Target, error) {
	inv, err := t.inventory(ctx, d.InventoryID)
	if err != nil {
		return nil, err
	}
	tg := &Target{Device: d, Inventory: inv, readAt: now}
	tg.Offers = func(_ Device, tool string) bool { _, ok := inv.Tool(tool); return ok }
	t.mu.Lock()
	defer t.mu.Unlock()
	t.targets[d.ID] = tg
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

// Run forgets devices as events report their changes, until ctx ends.
func (t *Targets) Run(ctx context.Context, events *Events) error {
	for ctx.Err() == nil {
		sub := events.Subscribe(1024, nil, EventDevice, EventInventory)
		t.forgetAll() // what changed before the subscription
		t.follow(ctx, sub)
		sub.Close()
	}
	return nil
}

// follow returns when ctx ends or the subscription was lost to a burst.
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
}
