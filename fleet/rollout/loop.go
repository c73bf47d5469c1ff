package rollout

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

const (
	refreshEvery = 5 * time.Second         // how often campaigns are re-read without an event
	lazyEvery    = 2500 * time.Millisecond // how often the progress of downloads is stored
	stormPause   = 5 * time.Second         // after a timer that changed nothing
	inputsAtOnce = 5000                    // inputs handled before their results are stored
)

// loop is the running engine: one goroutine owns all its memory. Each turn receives evidence,
// stores its consequences, acts on what is stored, judges, and only then notifies further devices.
// So memory and rows agree within a turn, and no device is notified while the database is away.
type loop struct {
	e    *Engine
	o    *Options
	now  time.Time       // of the turn
	life context.Context // ends with this engine

	campaigns map[uuid.UUID]*openCampaign
	order     []*openCampaign // oldest first
	byID      map[uuid.UUID]*deployment
	byDevice  map[fleet.DeviceID][]*deployment
	timers    timers

	inputs []input
	dirty  []*deployment
	lazy   []*deployment
	polls  []*pollRequest // of queued devices: the reply may be an offer
	failed []*deployment  // an attempt failed in this turn

	images      images
	limitsOf    map[string]firmware.Limits // by image, of the turn
	limitsTurn  int
	inventories inventories
	zones       zoneCache
	offers      offerLog
	turns       int
	startedAt   time.Time
	settled     bool // the fleet has had time to reconnect since startedAt
	reload      bool
	again       bool // more work is due immediately
	refreshedAt time.Time
	lazyAt      time.Time
}

func newLoop(ctx context.Context, e *Engine) *loop {
	now := e.now()
	return &loop{e: e, o: &e.o, life: ctx, now: now, startedAt: now, campaigns: make(map[uuid.UUID]*openCampaign),
		byID:     make(map[uuid.UUID]*deployment),
		byDevice: make(map[fleet.DeviceID][]*deployment), offers: make(offerLog)}
}

// run works until ctx ends.
func (l *loop) run(ctx context.Context) error {
	tick := time.NewTicker(l.o.Tick)
	defer tick.Stop()
	for ctx.Err() == nil {
		l.turn(ctx)
		if l.again {
			continue
		}
		due := l.alarm()
		select {
		case <-ctx.Done():
		case <-l.e.inbox.signal:
		case <-tick.C:
		case <-due.C:
		}
		due.Stop()
	}
	return ctx.Err()
}

// alarm returns a timer that fires when the next deployment is due.
func (l *loop) alarm() *time.Timer {
	wait := l.o.Tick
	if at, ok := l.timers.next(); ok {
		wait = min(wait, max(at.Sub(l.e.now()), time.Millisecond))
	}
	return time.NewTimer(wait)
}

// turn runs one round of the engine. After an error of the store it waits, or leaves the
// campaign for the next turn; only the end of ctx ends the turn early.
func (l *loop) turn(ctx context.Context) {
	l.now, l.again = l.e.now(), false
	l.turns++
	l.takeInputs()
	l.fireTimers(ctx)
	l.giveUpSilent()
	l.save(ctx)
	l.refresh(ctx)
	for _, c := range l.order {
		l.steer(ctx, c)
	}
	l.save(ctx)
	l.dispatch(ctx)
	l.announce()
}

// takeInputs handles the inputs since the last turn, a bounded number at a time.
func (l *loop) takeInputs() {
	inputs, reload := l.e.inbox.drain()
	l.inputs = append(l.inputs, inputs...)
	l.reload = l.reload || reload
	n := min(len(l.inputs), inputsAtOnce)
	for _, in := range l.inputs[:n] {
		l.takeInput(in)
	}
	l.inputs = l.inputs[n:]
	if len(l.inputs) == 0 {
		l.inputs = nil
	} else {
		l.again = true
	}
}

func (l *loop) takeInput(in input) {
	switch {
	case in.do != nil:
		in.do(l)
	case in.poll != nil:
		l.observePoll(in)
	case in.device != "":
		l.observeDevice(in.device, in.seen)
	default:
		if d := l.byID[in.deployment]; d != nil {
			if in.seen.Kind == fleet.EvidenceGet {
				d.epoch = in.epoch
			}
			if in.reporter != "" && !d.mayReport(in.reporter) {
				return
			}
			l.observe(d, in.seen)
		}
	}
}
