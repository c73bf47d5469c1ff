package api

import (
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
	"time"

	"fleetd/fleet"
)

// Limits of what a client that connects again may have missed.
const (
	keptEvents = 4096
	keptBytes  = 8 << 20
	// feedIdle is how long events are kept after the last stream has ended.
	feedIdle = 2 * time.Minute
)

// streamed are the kinds of events that streams send.
var streamed = []fleet.EventKind{fleet.EventPresence, fleet.EventDevice, fleet.EventInventory, fleet.EventCall,
	fleet.EventSnapshot, fleet.EventFanOut, fleet.EventCampaign, fleet.EventDeployed, fleet.EventRelease,
	fleet.EventVitals, fleet.EventJob, fleet.EventConfig, fleet.EventCoreDump, fleet.EventApproval, fleet.EventAlert}

// An eventFeed numbers the events of the fleet while there are streams, and for a while afterwards. It
// keeps the latest ones, so that a client that lost its stream receives what it missed. The ids of
// another feed, of another process or another leader, are not its own.
type eventFeed struct {
	events *fleet.Events

	mu      sync.Mutex
	source  *fleet.Subscription // nil while the feed does not run
	name    string
	last    uint64      // number of the latest event
	kept    []feedEvent // oldest first
	bytes   int         // of kept, about
	readers map[*feedReader]struct{}
	idle    *time.Timer
}

type feedEvent struct {
	id string
	fleet.Event
}

// size returns about how much memory the event needs.
func (e *feedEvent) size() int {
	n := 256 + len(e.Subject)
	if e.Call != nil {
		n += 1024 + len(e.Call.Arguments) + len(e.Call.Result)
	}
	return n
}

// A feedReader receives the events of one stream.
type feedReader struct {
	feed *eventFeed
	c    chan feedEvent // closed when the reader is too slow
	want func(*fleet.Event) bool
	gone bool // under feed.mu
}

// A position is where a stream begins.
type position struct {
	missed []feedEvent // since the client's latest id
	reset  bool        // what the client missed is not known
	id     string      // of the latest event
}

func newEventFeed(events *fleet.Events) *eventFeed {
	return &eventFeed{events: events, readers: make(map[*feedReader]struct{})}
}

// join begins to read after the event with the id that a client received last; "" for none.
func (f *eventFeed) join(after string, want func(*fleet.Event) bool) (*feedReader, position) {
	r := &feedReader{feed: f, c: make(chan feedEvent, eventBuffer), want: want}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers[r] = struct{}{} // from now on the feed does not stop
	if f.idle != nil {
		f.idle.Stop()
		f.idle = nil
	}
	if f.source == nil {
		f.start()
	}
	p := position{id: f.id(f.last)}
	if after == "" {
		return r, p
	}
	from, ok := f.number(after)
	if !ok || from > f.last || from+uint64(len(f.kept)) < f.last {
		p.reset = true
		return r, p
	}
	for _, e := range f.kept[len(f.kept)-int(f.last-from):] {
		if want(&e.Event) {
			p.missed = append(p.missed, e)
		}
	}
	return r, p
}

// start makes the feed run. The caller holds f.mu, which is free while start subscribes: publishers call
// f.add.
func (f *eventFeed) start() {
	f.mu.Unlock()
	source := f.events.Subscribe(0, f.add, streamed...)
	f.mu.Lock()
	if f.source != nil { // another stream was faster
		go source.Close()
		return
	}
	f.source, f.name, f.last, f.kept, f.bytes = source, rand.Text()[:12], 0, nil, 0
}

// add numbers and keeps an event, and passes it to the readers. Publishers call it, as the question which
// events the subscription wants; it wants none for its channel.
func (f *eventFeed) add(published *fleet.Event) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.source == nil {
		return false
	}
	f.last++
	e := feedEvent{f.id(f.last), *published}
	f.kept, f.bytes = append(f.kept, e), f.bytes+e.size()
	for len(f.kept) > keptEvents || f.bytes > keptBytes && len(f.kept) > 0 {
		f.bytes -= f.kept[0].size()
		f.kept[0] = feedEvent{}
		f.kept = f.kept[1:]
	}
	for r := range f.readers {
		if !r.want(published) {
			continue
		}
		select {
		case r.c <- e:
		default:
			f.drop(r)
		}
	}
	return false
}

// drop ends a reader. The caller holds f.mu.
func (f *eventFeed) drop(r *feedReader) {
	if !r.gone {
		r.gone = true
		close(r.c)
		delete(f.readers, r)
	}
}

// leave ends the stream. After the last one the feed runs on for a while.
func (r *feedReader) leave() {
	f := r.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(r)
	if len(f.readers) == 0 && f.idle == nil {
		f.idle = time.AfterFunc(feedIdle, f.stop)
	}
}

// stop ends the feed if it has no readers.
func (f *eventFeed) stop() {
	f.mu.Lock()
	source := f.source
	if len(f.readers) > 0 {
		source = nil
	} else {
		f.source, f.kept, f.idle = nil, nil, nil
	}
	f.mu.Unlock()
	if source != nil {
		source.Close()
	}
}

// reached returns the id of the latest event if the reader has received all events so far.
func (r *feedReader) reached() (id string, ok bool) {
	r.feed.mu.Lock()
	defer r.feed.mu.Unlock()
	return r.feed.id(r.feed.last), len(r.c) == 0 && !r.gone
}

func (f *eventFeed) id(n uint64) string { return f.name + "-" + strconv.FormatUint(n, 10) }

// number returns the number in an id of this feed.
func (f *eventFeed) number(id string) (uint64, bool) {
	name, number, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(number, 10, 64)
	return n, err == nil && name == f.name
}
