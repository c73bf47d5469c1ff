package fleet

import (
	"cmp"
	"context"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fleetd/fleet/internal/writebehind"
)

// PresenceOptions configures [Presences]. Store is required.
type PresenceOptions struct {
	Store  PresenceStore
	Log    *slog.Logger
	Events *Events // nil: no events are published
	Node   string  // this process, as its connections name it
	// Tap sees all evidence about devices as watchers do, in order for each
	// device. It is called under a lock: it must not block, nor call back.
	Tap func(DeviceID, Evidence)

	Now         func() time.Time // default: time.Now
	WriteEvery  time.Duration    // how long changes are gathered. Default: 250ms
	SeenEvery   time.Duration    // how often a device's last-seen time is stored. Default: 30s
	SampleEvery time.Duration    // how often the fleet is counted. Default: 1m
}

// Presences knows which devices can be reached, from the evidence that the
// broker and the boot polls bring. It answers from memory and writes behind.
//
// A connection's end counts only if it is the newest of its device: ends of
// older ones, which often arrive after the device is back, change nothing.
type Presences struct {
	opts PresenceOptions
	// writer holds changes that events and watchers already know. Devices and lists are read
	// from the store, after Settle. A kill ends every connection, and the next start marks all
	// devices offline: a kill loses history that only an event named, and the latest last-seen times.
	writer   *writebehind.Buffer[DeviceID, *Connection] // nil: the owning connection stays
	changes  atomic.Int64                               // of presence, so far
	settled  atomic.Int64                               // of them, that readers need not wait for
	cleared  atomic.Bool                                // of what a former process left behind
	online   atomic.Int64                               // devices that are connected and well
	silent   atomic.Int64                               // that are connected and do not answer
	watchers presenceWatchers
	seed     maphash.Seed
	shards   [presenceShards]presenceShard
}

const presenceShards = 64

type presenceShard struct {
	mu      sync.Mutex
	devices map[DeviceID]*reachability
}

// reachability is what memory holds per device. Fleets are large: it is kept
// at some 100 bytes, times as Unix milliseconds.
type reachability struct {
	presence Presence
	code     string // of the evidence, and its one parameter
	detail   any    // string, or Reason
	since    int64
	epoch    int64 // of the newest connection
	lastSeen int64
	stored   int64 // lastSeen, as the store knows it
}

// evidence is what the presence was concluded from.
func (r *reachability) evidence() Reason {
	reason := Because(r.code)
	for _, name := range PresenceReasons[r.code] {
		reason = reason.With(name, r.detail)
	}
	return reason
}

func (r *reachability) connected() bool {
	return r.presence == PresenceOnline || r.presence == PresenceUnresponsive
}

// NewPresences makes the service. Nothing is stored until Run.
func NewPresences(opts PresenceOptions) *Presences {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.WriteEvery = cmp.Or(opts.WriteEvery, 250*time.Millisecond)
	opts.SeenEvery = cmp.Or(opts.SeenEvery, 30*time.Second)
	opts.SampleEvery = cmp.Or(opts.SampleEvery, time.Minute)
	p := &Presences{opts: opts, seed: maphash.MakeSeed()}
	for i := range p.shards {
		p.shards[i].devices = make(map[DeviceID]*reachability)
	}
	p.writer = writebehind.New(&writebehind.Buffer[DeviceID, *Connection]{Away: ErrUnavailable,
		What: "presence", Write: p.save, Every: opts.WriteEvery, Batch: 1000, Limit: 1_000_000, Log: opts.Log,
		Merge: func(older, newer *Connection) *Connection { return cmp.Or(newer, older) },
	})
	return p
}

// Connected notes a new connection. If the device had one, that one is over.
func (p *Presences) Connected(c Connection) {
	p.with(c.Device, func(r *reachability) {
		if c.Epoch <= r.epoch {
			return // a newer connection was faster
		}
		if r.connected() {
			p.notify(c.Device, p.evidence(EvidenceConnectionLost, Cause{Because(CauseReplaced), "replaced by a newer connection"}))
		}
		r.epoch = c.Epoch
		r.lastSeen = c.At.UnixMilli()
		p.notify(c.Device, p.evidence(EvidenceConnect, Cause{Text: c.RemoteAddr}))
		p.change(c.Device, r, PresenceOnline, PresenceConnected, c.RemoteAddr, &c)
	})
}

// Disconnected notes the end of a connection. clean says that the device sent
// an MQTT DISCONNECT.
func (p *Presences) Disconnected(c Connection, clean bool, cause Cause) {
	p.with(c.Device, func(r *reachability) {
		if c.Epoch != r.epoch || !r.connected() {
			return
		}
		cause.Text = CleanText(cause.Text, 120)
		kind, code := EvidenceConnectionLost, PresenceLost
		switch {
		case c.Transport == "ws" && (clean || cause.Reason.Is(CauseConversationOver)):
			kind, code, cause = EvidenceDisconnect, PresenceTalked, Cause{}
		case clean && cause.Text != "":
			kind, code = EvidenceDisconnect, PresenceLeft
		case clean:
			kind, code = EvidenceDisconnect, PresenceDisconnected
		case cause.Text != "":
			code = PresenceBroke
		}
		p.notify(c.Device, p.evidence(kind, cause))
		p.change(c.Device, r, PresenceOffline, code, cause.detail(), nil)
	})
}

// Unresponsive notes that the device did not answer over its connection.
func (p *Presences) Unresponsive(c Connection, cause Cause) {
	p.with(c.Device, func(r *reachability) {
		if c.Epoch == r.epoch && r.presence == PresenceOnline {
			p.change(c.Device, r, PresenceUnresponsive, PresenceSilent, cause.detail(), nil)
		}
	})
}

// Responded notes an answer to a probe or call: the device is well.
func (p *Presences) Responded(id DeviceID) {
	p.with(id, func(r *reachability) {
		p.seen(id, r)
		if r.presence == PresenceUnresponsive {
			p.change(id, r, PresenceOnline, PresenceAnswered, "", nil)
		}
	})
}

// Seen notes any sign of life over the connection. It does not make an
// unresponsive device well: the MQTT task of a device pings while the rest hangs.
func (p *Presences) Seen(id DeviceID) {
	p.with(id, func(r *reachability) { p.seen(id, r) })
}

// Polled notes a boot poll by the device, which names the build it runs. Devices
// poll only when they start, so it is evidence of a restart; it says nothing of
// the MQTT connection.
func (p *Presences) Polled(id DeviceID, at time.Time, elfSHA256 string) {
	p.with(id, func(r *reachability) {
		r.lastSeen = max(r.lastSeen, at.UnixMilli())
		p.notify(id, Evidence{At: at, Kind: EvidenceBootPoll, ELF: elfSHA256})
	})
}

// Observed passes other evidence about a device, such as an upload, to those
// who watch it.
func (p *Presences) Observed(id DeviceID, e Evidence) {
	p.with(id, func(*reachability) { p.notify(id, e) })
}

// State returns the presence of a device, since when, and what it was
// concluded from. It returns "" for a device of which nothing was heard since
// the start of the process: the store knows how it was left.
func (p *Presences) State(id DeviceID) (presence Presence, since time.Time, evidence Reason) {
	s := p.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.devices[id]
	if r == nil || r.presence == "" {
		return "", time.Time{}, Reason{}
	}
	return r.presence, time.UnixMilli(r.since).UTC(), r.evidence()
}

// IsConnected reports whether the device has a connection.
func (p *Presences) IsConnected(id DeviceID) bool {
	presence, _, _ := p.State(id)
	return presence == PresenceOnline || presence == PresenceUnresponsive
}

// Counts returns how many devices are connected and well, and how many are
// connected but do not answer.
func (p *Presences) Counts() (online, unresponsive int) {
	return int(p.online.Load()), int(p.silent.Load())
}

// count moves one device from one presence to another in what [Presences.Counts] returns.
func (p *Presences) count(from, to Presence) {
	add := func(presence Presence, n int64) {
		switch presence {
		case PresenceOnline:
			p.online.Add(n)
		case PresenceUnresponsive:
			p.silent.Add(n)
		}
	}
	add(from, -1)
	add(to, 1)
}

// Watch delivers what is observed of a device from now on, in order: ends of
// connections, boot polls, connects. stop ends it and closes the channel. A
// watcher that leaves more than 64 observations unread misses the later ones.
func (p *Presences) Watch(id DeviceID) (evidence <-chan Evidence, stop func()) {
	return p.watchers.add(id)
}

// readTimeout bounds how long a reader waits for changes to be stored.
const readTimeout = 500 * time.Millisecond

// Settle stores what memory knows of the device, or of all if id is "", so that
// what is read next is one whole: presence, transport and last-seen time of one
// moment, in rows and filters alike. While changes pour in, or the store is
// away, it returns after a moment with some left.
func (p *Presences) Settle(ctx context.Context, id DeviceID) {
	changes := p.changes.Load()
	if !p.cleared.Load() || id == "" && changes == p.settled.Load() {
		return
	}
	wait, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var err error
	if id != "" {
		err = p.writer.Sync(wait, id)
	} else if err = p.writer.Settle(wait); err == nil {
		p.settled.Store(changes)
	}
	if err != nil && ctx.Err() == nil {
		p.opts.Log.Debug("presence read before it was all stored", "err", err)
	}
}

// Recover turns offline what a former process left online: no connection can
// exist yet. Call it before anything is read or connects; [Presences.Run] does
// it otherwise.
func (p *Presences) Recover(ctx context.Context) error {
	n, err := p.opts.Store.ResetPresence(ctx, "", Because(PresenceUnwatched), p.opts.Now().UTC())
	if err == nil {
		p.cleared.Store(true)
		p.opts.Log.Debug("presence reset", "count", n)
	}
	return err
}

// Run resets what a former process left behind, then stores changes and
// samples until ctx ends, and what is left after that.
func (p *Presences) Run(ctx context.Context) error {
	if !p.cleared.Load() {
		p.reset(ctx)
	}
	var wg sync.WaitGroup
	wg.Go(func() { p.writer.Run(ctx) })
	wg.Go(func() { p.sample(ctx) })
	wg.Wait()
	return nil
}

// reset must happen before the first change is written, and tries until it does.
func (p *Presences) reset(ctx context.Context) {
	for wait := p.opts.WriteEvery; ; wait = min(2*wait, 5*time.Second) {
		err := p.Recover(ctx)
		if err == nil {
			return
		}
		p.opts.Log.Error("presence not reset; trying again", "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

func (p *Presences) sample(ctx context.Context) {
	tick := time.NewTicker(p.opts.SampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := p.opts.Store.SavePresenceSample(ctx, p.opts.Now().UTC()); err != nil && ctx.Err() == nil {
				p.opts.Log.Warn("presence not sampled", "err", err)
			}
		}
	}
}

func (p *Presences) shard(id DeviceID) *presenceShard {
	return &p.shards[maphash.String(p.seed, string(id))%presenceShards]
}

// with runs f on the device's state, under its shard's lock: f must not block.
func (p *Presences) with(id DeviceID, f func(*reachability)) {
	s := p.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.devices[id]
	if r == nil {
		r = new(reachability)
		s.devices[id] = r
	}
	f(r)
}

// notify must run under the lock of the device's shard.
func (p *Presences) notify(id DeviceID, e Evidence) {
	p.watchers.notify(id, e)
	if p.opts.Tap != nil {
		p.opts.Tap(id, e)
	}
}

func (p *Presences) evidence(kind EvidenceKind, cause Cause) Evidence {
	return Evidence{At: p.opts.Now().UTC(), Kind: kind, Detail: cause.Text, Reason: cause.Reason}
}

// change sets the presence, publishes and stores it. A reconnect without a gap
// is no change of presence, but the store must learn the connection.
func (p *Presences) change(id DeviceID, r *reachability, to Presence, code string, detail any,
	c *Connection) {
	now := p.opts.Now()
	changed := r.presence != to
	if changed {
		p.count(r.presence, to)
		r.presence, r.since = to, now.UnixMilli()
	}
	r.code, r.detail = code, detail
	r.stored = r.lastSeen
	p.writer.Put(id, c)
	p.changes.Add(1)
	if changed && p.opts.Events != nil {
		p.opts.Events.Publish(Event{Kind: EventPresence, At: now.UTC(), Device: id, Presence: to})
	}
}

func (p *Presences) seen(id DeviceID, r *reachability) {
	r.lastSeen = p.opts.Now().UnixMilli()
	if r.presence != "" && r.lastSeen-r.stored >= p.opts.SeenEvery.Milliseconds() {
		r.stored = r.lastSeen
		p.writer.Put(id, nil)
	}
}

// save stores the devices as they are now: the batch only names them.
func (p *Presences) save(ctx context.Context, batch map[DeviceID]*Connection) error {
	changes := make([]PresenceChange, 0, len(batch))
	for id, c := range batch {
		p.with(id, func(r *reachability) {
			changes = append(changes, PresenceChange{
				Device: id, Presence: r.presence, Since: time.UnixMilli(r.since).UTC(), Evidence: r.evidence(),
				LastSeen: time.UnixMilli(r.lastSeen).UTC(), Connection: c,
			})
		})
	}
	return p.opts.Store.SavePresence(ctx, changes)
}

// watchBuffer is far more than a reboot brings: four observations.
const watchBuffer = 64

// presenceWatchers are the few who wait for evidence about single devices. The
// count keeps the many observations without a watcher off the lock.
type presenceWatchers struct {
	count    atomic.Int64
	mu       sync.Mutex
	byDevice map[DeviceID][]chan Evidence
}

func (w *presenceWatchers) add(id DeviceID) (<-chan Evidence, func()) {
	c := make(chan Evidence, watchBuffer)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byDevice == nil {
		w.byDevice = make(map[DeviceID][]chan Evidence)
	}
	w.byDevice[id] = append(w.byDevice[id], c)
	w.count.Add(1)
	return c, sync.OnceFunc(func() { w.remove(id, c) })
}

func (w *presenceWatchers) remove(id DeviceID, c chan Evidence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := slices.DeleteFunc(w.byDevice[id], func(other chan Evidence) bool { return other == c })
	if w.byDevice[id] = rest; len(rest) == 0 {
		delete(w.byDevice, id)
	}
	w.count.Add(-1)
	close(c)
}

// notify never blocks.
func (w *presenceWatchers) notify(id DeviceID, e Evidence) {
	if w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.byDevice[id] {
		select {
		case c <- e:
		default:
		}
	}
}
