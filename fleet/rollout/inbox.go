package rollout

import (
	"sync"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// input is one input of the loop: an observation about a device or a deployment, a boot poll
// that waits for a reply, or a function to run.
type input struct {
	device     fleet.DeviceID
	deployment uuid.UUID
	seen       campaign.Observation
	poll       *pollRequest
	reporter   fleet.DeviceID // job: the reporting device
	epoch      int64          // get: of the connection at that time
	do         func(*loop)
}

// inbox queues inputs without ever blocking the sender. It never drops evidence, which accumulates
// here while the database is away. Only newer progress of the same kind replaces older progress.
type inbox struct {
	mu       sync.Mutex
	inputs   []input
	progress map[uuid.UUID]int // index of a deployment's latest progress, if nothing came after it
	reload   bool              // campaigns changed
	signal   chan struct{}     // has room for one
}

func newInbox() *inbox {
	return &inbox{progress: make(map[uuid.UUID]int), signal: make(chan struct{}, 1)}
}

func (b *inbox) put(in input) {
	b.mu.Lock()
	b.add(in)
	b.mu.Unlock()
	b.notify()
}

func (b *inbox) add(in input) {
	if !isProgress(in.seen) {
		delete(b.progress, in.deployment)
	} else if at, ok := b.progress[in.deployment]; ok && supersedes(in, b.inputs[at]) {
		b.inputs[at] = in
		return
	} else {
		b.progress[in.deployment] = len(b.inputs)
	}
	b.inputs = append(b.inputs, in)
}

func (b *inbox) wake() {
	b.mu.Lock()
	b.reload = true
	b.mu.Unlock()
	b.notify()
}

func (b *inbox) notify() {
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// drain returns all inputs, in order, and whether campaigns changed.
func (b *inbox) drain() (inputs []input, reload bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	inputs, reload = b.inputs, b.reload
	b.inputs, b.reload = nil, false
	clear(b.progress)
	return inputs, reload
}

// clear discards all inputs: another engine will read the rows.
func (b *inbox) clear() {
	inputs, _ := b.drain()
	for _, in := range inputs {
		if in.poll != nil {
			in.poll.answer(nil)
		}
	}
}
