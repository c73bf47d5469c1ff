package fleet

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// EventKind names what an [Event] is about.
type EventKind string

const (
	EventPresence  EventKind = "presence"   // a device's presence changed
	EventDevice    EventKind = "device"     // a device's facts, name, tags, hold or enrolment changed, or it is new
	EventInventory EventKind = "inventory"  // a device listed other tools than before
	EventCall      EventKind = "call"       // a call was created or changed state
	EventSnapshot  EventKind = "snapshot"   // a picture arrived
	EventFanOut    EventKind = "fanout"     // a fan-out progressed or changed state
	EventCampaign  EventKind = "campaign"   // a campaign progressed or changed state
	EventDeployed  EventKind = "deployment" // a device's part in a campaign changed; Subject is the campaign
	EventRelease   EventKind = "release"    // an image or release is new or changed state
	EventVitals    EventKind = "vitals"     // a device reported its vitals, or started again
	EventJob       EventKind = "job"        // a device's job progressed; Subject is the job
	EventConfig    EventKind = "config"     // a device reported its configuration
	EventCoreDump  EventKind = "core_dump"  // a core dump arrived or was deleted; Subject is its id
	EventApproval  EventKind = "approval"   // an approval is asked for or was decided; Subject is its id
	EventAlert     EventKind = "alert"      // an alert opened, ended, was acknowledged or changed; Subject is its id
	// a conversation began or ended, or its record changed; Subject is its id
	EventConversation EventKind = "conversation"
	// lines of a device's log came, or its following began or ended; Subject is the device
	EventLog EventKind = "log"
)

// An Event notifies live views of a change. It is a hint to look, not a record:
// a slow reader loses its subscription and reads again from the store.
type Event struct {
	Kind     EventKind
	At       time.Time
	Device   DeviceID // "" for fan-outs
	Presence Presence // EventPresence
	Call     *Call    // EventCall; shared, do not change
	Subject  string   // id of the snapshot, fan-out, campaign, image, release or conversation
	Hold     HoldChange
}

// A HoldChange says of an [EventDevice] that it is about a hold.
type HoldChange string

const (
	HoldBegan HoldChange = "held"
	HoldEnded HoldChange = "released" // by a person; a hold that runs out makes no event
)

// Events hands each published event to every subscriber. The zero value is ready.
type Events struct {
	mu     sync.RWMutex
	subs   map[*Subscription]struct{}
	closed bool
	kinds  atomic.Pointer[[]EventKind] // that subscriptions are about; with a "" if one is about all
}

// A Subscription receives events on C until it is closed, by its owner or
// because it fell more than its buffer behind.
type Subscription struct {
	C      <-chan Event
	c      chan Event
	want   func(*Event) bool
	kinds  []EventKind
	events *Events
	once   sync.Once
}

// Subscribe starts a subscription with room for buffer unread events. want
// reports whether it wants an event, nil for all; it must be quick. Kinds are
// those that it may want, none for all: events that are costly to make are not
// made unless they may be wanted.
func (b *Events) Subscribe(buffer int, want func(*Event) bool, kinds ...EventKind) *Subscription {
	c := make(chan Event, buffer)
	s := &Subscription{C: c, c: c, want: want, kinds: kinds, events: b}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		close(c)
		return s
	}
	if b.subs == nil {
		b.subs = make(map[*Subscription]struct{})
	}
	b.subs[s] = struct{}{}
	b.noteKinds()
	return s
}

// noteKinds is called with mu held.
func (b *Events) noteKinds() {
	var kinds []EventKind
	for s := range b.subs {
		if kinds = append(kinds, s.kinds...); len(s.kinds) == 0 {
			kinds = append(kinds, "")
		}
	}
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	b.kinds.Store(&kinds)
}

// Publish hands e to every subscriber that wants it. It never blocks.
func (b *Events) Publish(e Event) {
	var slow []*Subscription
	b.mu.RLock()
	for s := range b.subs {
		if len(s.kinds) > 0 && !slices.Contains(s.kinds, e.Kind) || s.want != nil && !s.want(&e) {
			continue
		}
		select {
		case s.c <- e:
		default:
			slow = append(slow, s)
		}
	}
	b.mu.RUnlock()
	for _, s := range slow {
		s.Close()
	}
}

// Wanted reports whether a subscriber may want events of the kind.
func (b *Events) Wanted(kind EventKind) bool {
	kinds := b.kinds.Load()
	return kinds != nil && len(*kinds) > 0 && ((*kinds)[0] == "" || slices.Contains(*kinds, kind))
}

// Close ends every subscription, and all later ones at once.
func (b *Events) Close() {
	b.mu.Lock()
	subs := b.subs
	b.subs, b.closed = nil, true
	b.noteKinds()
	b.mu.Unlock()
	for s := range subs {
		s.once.Do(func() { close(s.c) })
	}
}

// Close ends the subscription; C is closed.
func (s *Subscription) Close() {
	s.events.mu.Lock()
	delete(s.events.subs, s)
	s.events.noteKinds()
	s.events.mu.Unlock()
	s.once.Do(func() { close(s.c) })
}
