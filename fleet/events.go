package fleet

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// EventKind is the subject of an [Event].
type EventKind string

const (
	EventPresence  EventKind = "presence"   // a device's presence changed
	EventDevice    EventKind = "device"     // a device is new, or its facts, name, tags, hold or enrolment changed
	EventInventory EventKind = "inventory"  // a device's tools changed
	EventCall      EventKind = "call"       // a call was created or changed state
	EventSnapshot  EventKind = "snapshot"   // a picture arrived
	EventFanOut    EventKind = "fanout"     // a fan-out progressed or changed state
	EventCampaign  EventKind = "campaign"   // a campaign progressed or changed state
	EventDeployed  EventKind = "deployment" // a device's part in a campaign changed; Subject is the campaign
	EventRelease   EventKind = "release"    // an image or release is new or changed state
	EventVitals    EventKind = "vitals"     // a device reported its vitals, or restarted
	EventJob       EventKind = "job"        // a device's job progressed; Subject is the job
	EventConfig    EventKind = "config"     // a device reported its configuration
	EventCoreDump  EventKind = "core_dump"  // a core dump arrived or was deleted; Subject is its id
	EventApproval  EventKind = "approval"   // an approval was requested or decided; Subject is its id
	EventAlert     EventKind = "alert"      // an alert opened, ended, was acknowledged or changed; Subject is its id
	// a conversation began or ended, or its record changed; Subject is its id
	EventConversation EventKind = "conversation"
	// lines of a device's log arrived, or following the log began or ended; Subject is the
	// device
	EventLog EventKind = "log"
)

// An Event notifies live pages of a change. It is a hint to read again, not a record: a slow
// subscriber loses its subscription and reads from the store.
type Event struct {
	Kind     EventKind
	At       time.Time
	Device   DeviceID // "" for events about no device, such as fan-outs
	Presence Presence // EventPresence
	Call     *Call    // EventCall; shared, do not change
	Subject  string   // id of the snapshot, fan-out, campaign, image, release or conversation
	Hold     HoldChange
}

// A HoldChange marks an [EventDevice] as a change of a hold.
type HoldChange string

const (
	HoldBegan HoldChange = "held"
	HoldEnded HoldChange = "released" // released by a person; an expiring hold makes no event
)

// Events delivers each published event to every subscriber. The zero value is ready to use.
type Events struct {
	mu     sync.RWMutex
	subs   map[*Subscription]struct{}
	closed bool
	kinds  atomic.Pointer[[]EventKind] // kinds of all subscriptions; "" is in the list if one has every kind
}

// A Subscription receives events on C until its owner closes it, or until its buffer
// overflows.
type Subscription struct {
	C      <-chan Event
	c      chan Event
	want   func(*Event) bool
	kinds  []EventKind
	events *Events
	once   sync.Once
}

// Subscribe starts a subscription with a buffer of unread events. want reports whether the
// subscriber wants an event and must return quickly; nil wants all. kinds are the kinds of
// events it may want, none for all; publishers do not build expensive events of a kind that
// no subscriber may want.
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

// noteKinds updates kinds. The caller holds mu.
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

// Publish delivers e to every subscriber that wants it. It never blocks.
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

// Close ends every subscription, including those made later.
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

// Close ends the subscription and closes C.
func (s *Subscription) Close() {
	s.events.mu.Lock()
	delete(s.events.subs, s)
	s.events.noteKinds()
	s.events.mu.Unlock()
	s.once.Do(func() { close(s.c) })
}
