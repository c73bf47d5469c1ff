package fleet

import (
	"cmp"
	"context"
	"fmt"
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
	Events *Events // nil publishes no events
	Node   string  // this process, as its connections record it
	// Tap receives all evidence about devices, like a watcher, in order for each device. It
	// is called under a lock: it must not block, and must not call back.
	Tap func(DeviceID, Evidence)
	// Attached returns when connections that outlived the previous process have been adopted, or ctx
	// ends. The edges that it returns are silent and may hold others. Nil: no connection does.
	Attached func(ctx context.Context) (silent []string)

	Now         func() time.Time // default: time.Now
	WriteEvery  time.Duration    // how long changes are collected before they are written. Default: 250ms
	SeenEvery   time.Duration    // how often the last-seen time of a device that stays connected is stored. Default: 2m
	SampleEvery time.Duration    // how often the fleet is counted. Default: 1m
}

// Presences tracks which devices can be reached, from the evidence of the broker and the boot
// polls. It serves reads from memory and writes behind.
//
// The end of a connection counts only if it is the device's newest connection. The end of an
// older one, which often arrives after the device has reconnected, changes nothing.
type Presences struct {
	opts PresenceOptions
	// writer buffers changes that events and watchers have already delivered. Devices and
	// lists are read from the store, after Settle. If the process is killed, every connection
	// ends and the next start marks all devices offline: only the history behind published
	// events and the latest last-seen times are lost.
	writer   *writebehind.Buffer[DeviceID, *Connection] // nil leaves the owning connection unchanged
	changes  atomic.Int64                               // number of changes of presence
	settled  atomic.Int64                               // how many of them readers need not wait for
	cleared  atomic.Bool                                // whether the reset at start is done
	online   atomic.Int64                               // devices that are connected and responsive
	silent   atomic.Int64                               // devices that are connected and unresponsive
	unknown  atomic.Int64                               // devices at silent edges
	watchers presenceWatchers
	seed     maphash.Seed
	shards   [presenceShards]presenceShard
}

const presenceShards = 64

type presenceShard struct {
	mu      sync.Mutex
	devices map[DeviceID]*reachability
}

// reachability is the state of one device in memory. Fleets are large, so it needs only some
// 100 bytes; times are Unix milliseconds.
type reachability struct {
	presence Presence
	code     string // of the evidence; detail is its one parameter
	detail   any    // string, or Reason
	since    int64
	epoch    int64 // of the newest connection
	lastSeen int64
	stored   int64 // lastSeen as stored

	hidden *silentEdge // nil unless the edge that holds the connection is silent
}

// A silentEdge hides whether the devices that it holds are still connected.
type silentEdge struct {
	name  string
	since int64
}

// shown returns the presence and since when.
func (r *reachability) shown() (Presence, int64) {
	if r.hidden != nil {
		return PresenceUnknownEdge, r.hidden.since
	}
	return r.presence, r.since
}

// evidence returns the evidence for the presence.
func (r *reachability) evidence() Reason {
	if r.hidden != nil {
		return Because(PresenceEdgeSilent, "edge", r.hidden.name)
	}
	reason := Because(r.code)
	for _, name := range PresenceReasons[r.code] {
		reason = reason.With(name, r.detail)
	}
	return reason
}

func (r *reachability) connected() bool {
	return r.presence == PresenceOnline || r.presence == PresenceUnresponsive
}

// NewPresences returns the service. It stores nothing until Run.
func NewPresences(opts PresenceOptions) *Presences {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.WriteEvery = cmp.Or(opts.WriteEvery, 250*time.Millisecond)
	opts.SeenEvery = cmp.Or(opts.SeenEvery, 2*time.Minute)
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

// Connected records a new connection. It ends the device's previous connection.
func (p *Presences) Connected(c Connection) {
	p.with(c.Device, func(r *reachability) {
		if c.Epoch <= r.epoch {
			return // a newer connection is already recorded
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

// Adopted records a connection that outlived the process that admitted it, or the time in which its
// edge was lost. In the first case the device did not connect now, so nothing becomes part of its
// time line, but an event reaches those that wait for the device.
func (p *Presences) Adopted(c Connection) {
	p.with(c.Device, func(r *reachability) {
		if c.Epoch < r.epoch || c.Epoch == r.epoch && r.connected() {
			return
		}
		again := c.Epoch == r.epoch
		r.epoch, r.lastSeen = c.Epoch, p.opts.Now().UnixMilli()
		if again {
			p.notify(c.Device, p.evidence(EvidenceConnect, Cause{Text: c.RemoteAddr}))
			p.change(c.Device, r, PresenceOnline, PresenceConnected, c.RemoteAddr, &c)
			return
		}
		if was, _ := r.shown(); was != PresenceOnline && was != PresenceUnresponsive {
			p.count(was, PresenceOnline)
			r.presence, r.since, r.hidden = PresenceOnline, c.At.UnixMilli(), nil
			p.publish(c.Device, p.opts.Now(), PresenceOnline)
		}
		r.code, r.detail, r.stored = PresenceConnected, c.RemoteAddr, r.lastSeen
		p.writer.Put(c.Device, &c)
		p.changes.Add(1)
	})
}

func (p *Presences) publish(id DeviceID, at time.Time, presence Presence) {
	if p.opts.Events != nil {
		p.opts.Events.Publish(Event{Kind: EventPresence, At: at.UTC(), Device: id, Presence: presence})
	}
}

// connectedNow returns the devices with a connection.
func (p *Presences) connectedNow() (ids []DeviceID) {
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		for id, r := range s.devices {
			if r.connected() {
				ids = append(ids, id)
			}
		}
		s.mu.Unlock()
	}
	return ids
}

// Disconnected records the end of a connection. clean reports that the device sent an MQTT
// DISCONNECT.
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

// Unresponsive records that the device did not answer over its connection.
func (p *Presences) Unresponsive(c Connection, cause Cause) {
	p.with(c.Device, func(r *reachability) {
		if c.Epoch == r.epoch && r.presence == PresenceOnline && r.hidden == nil {
			p.change(c.Device, r, PresenceUnresponsive, PresenceSilent, cause.detail(), nil)
		}
	})
}

// EdgeSilent records that the edge that holds a connection is silent: the device may be connected
// or not. Nothing becomes part of its time line.
func (p *Presences) EdgeSilent(c Connection, since time.Time) {
	p.with(c.Device, func(r *reachability) {
		if c.Epoch == r.epoch && r.connected() && r.hidden == nil {
			p.hide(c, r, &silentEdge{c.Node, since.UnixMilli()})
		}
	})
}

// EdgeHeard ends [Presences.EdgeSilent]: the edge held the connection all the time.
func (p *Presences) EdgeHeard(c Connection) {
	p.with(c.Device, func(r *reachability) {
		if c.Epoch == r.epoch && r.hidden != nil {
			p.hide(c, r, nil)
		}
	})
}

func (p *Presences) hide(c Connection, r *reachability, by *silentEdge) {
	was, _ := r.shown()
	r.hidden = by
	now, _ := r.shown()
	p.count(was, now)
	p.writer.Put(c.Device, &c)
	p.changes.Add(1)
	p.publish(c.Device, p.opts.Now(), now)
}

// EdgeGone sets the devices to offline that the previous process left at a silent edge and that no
// edge has presented since.
func (p *Presences) EdgeGone(ctx context.Context, edge string) error {
	if !p.cleared.Load() {
		return fmt.Errorf("presence has not been reset yet: %w", ErrUnavailable)
	}
	now, lost := p.opts.Now(), Because(CauseEdgeLost)
	gone, err := p.opts.Store.LoseEdge(ctx, edge, p.connectedNow(), Because(PresenceBroke, "detail", lost), now.UTC())
	for _, id := range gone {
		p.publish(id, now, PresenceOffline)
	}
	return err
}

// Responded records an answer to a probe or call: the device is responsive.
func (p *Presences) Responded(id DeviceID) {
	p.with(id, func(r *reachability) {
		p.seen(id, r)
		if r.presence == PresenceUnresponsive {
			p.change(id, r, PresenceOnline, PresenceAnswered, "", nil)
		}
	})
}

// Seen records any sign of life over the connection. It does not make an unresponsive device
// responsive, because the device's MQTT task still pings while the rest hangs.
func (p *Presences) Seen(id DeviceID) {
	p.with(id, func(r *reachability) { p.seen(id, r) })
}

// Polled records a boot poll of the device with the build that it reported. Devices poll only
// when they start, so a poll is evidence of a restart; it does not prove anything about the
// MQTT connection.
func (p *Presences) Polled(id DeviceID, at time.Time, elfSHA256 string) {
	p.with(id, func(r *reachability) {
		r.lastSeen = max(r.lastSeen, at.UnixMilli())
		p.notify(id, Evidence{At: at, Kind: EvidenceBootPoll, ELF: elfSHA256})
	})
}

// Observed passes other evidence about a device, such as an upload, to its watchers.
func (p *Presences) Observed(id DeviceID, e Evidence) {
	p.with(id, func(*reachability) { p.notify(id, e) })
}

// State returns the presence of a device, its start and its evidence. It returns "" if the
// device has sent nothing since the process started; its last presence is in the store.
func (p *Presences) State(id DeviceID) (presence Presence, since time.Time, evidence Reason) {
	s := p.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.devices[id]
	if r == nil || r.presence == "" {
		return "", time.Time{}, Reason{}
	}
	presence, at := r.shown()
	return presence, time.UnixMilli(at).UTC(), r.evidence()
}

// IsConnected reports whether the device has a connection, as far as is known.
func (p *Presences) IsConnected(id DeviceID) bool {
	presence, _, _ := p.State(id)
	return presence == PresenceOnline || presence == PresenceUnresponsive
}

// Counts returns the numbers of connected devices that are responsive and unresponsive, and of those
// whose edge is silent.
func (p *Presences) Counts() (online, unresponsive, unknown int) {
	return int(p.online.Load()), int(p.silent.Load()), int(p.unknown.Load())
}

// count moves one device from one presence to another in the counts of [Presences.Counts].
func (p *Presences) count(from, to Presence) {
	add := func(presence Presence, n int64) {
		switch presence {
		case PresenceOnline:
			p.online.Add(n)
		case PresenceUnresponsive:
			p.silent.Add(n)
		case PresenceUnknownEdge:
			p.unknown.Add(n)
		}
	}
	add(from, -1)
	add(to, 1)
}

// Watch delivers the observations about a device from now on, in order: ends of connections,
// boot polls, connects. stop ends it and closes the channel. If a watcher leaves more than 64
// observations unread, it misses the later ones.
func (p *Presences) Watch(id DeviceID) (evidence <-chan Evidence, stop func()) {
	return p.watchers.add(id)
}

// readTimeout is how long a reader waits for changes to be stored.
const readTimeout = 500 * time.Millisecond

// Settle stores the device's presence from memory, or that of all devices if id is "". The
// next read then has presence, transport and last-seen time of one moment, in rows and
// filters alike. If many changes arrive or the store is unavailable, Settle returns after a
// short time with some changes unstored.
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

// Recover sets devices that a previous process left online to offline, since no connection
// can exist yet, except at the edges that are silent. Call it before the first read or connection;
// otherwise [Presences.Run] does it.
func (p *Presences) Recover(ctx context.Context, silent ...string) error {
	n, err := p.opts.Store.ResetPresence(ctx, p.connectedNow(), silent, Because(PresenceUnwatched), p.opts.Now().UTC())
	if err == nil {
		p.cleared.Store(true)
		p.opts.Log.Debug("presence reset", "count", n)
	}
	return err
}

// Run resets the presence left by a previous process, then stores changes and samples until
// ctx ends, and finally stores the remaining changes.
func (p *Presences) Run(ctx context.Context) error {
	if !p.cleared.Load() {
		var silent []string
		if p.opts.Attached != nil {
			silent = p.opts.Attached(ctx)
		}
		p.reset(ctx, silent)
	}
	var wg sync.WaitGroup
	wg.Go(func() { p.writer.Run(ctx) })
	wg.Go(func() { p.sample(ctx) })
	wg.Wait()
	return nil
}

// reset retries until it succeeds. It must happen before the first change is written.
func (p *Presences) reset(ctx context.Context, silent []string) {
	for wait := p.opts.WriteEvery; ; wait = min(2*wait, 5*time.Second) {
		err := p.Recover(ctx, silent...)
		if err == nil {
			return
		}
		p.opts.Log.Error("could not reset presence; retrying", "err", err)
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
				p.opts.Log.Warn("could not sample presence", "err", err)
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

// notify passes evidence to the watchers and the tap. The caller holds the lock of the
// device's shard.
func (p *Presences) notify(id DeviceID, e Evidence) {
	p.watchers.notify(id, e)
	if p.opts.Tap != nil {
		p.opts.Tap(id, e)
	}
}

func (p *Presences) evidence(kind EvidenceKind, cause Cause) Evidence {
	return Evidence{At: p.opts.Now().UTC(), Kind: kind, Detail: cause.Text, Reason: cause.Reason}
}

// change sets, publishes and stores the presence. A reconnect without a gap does not change
// the presence, but the store must get the new connection.
func (p *Presences) change(id DeviceID, r *reachability, to Presence, code string, detail any,
	c *Connection) {
	now := p.opts.Now()
	was, _ := r.shown()
	if was != to {
		p.count(was, to)
	}
	if r.presence != to {
		r.since = now.UnixMilli()
	}
	r.presence, r.hidden = to, nil
	r.code, r.detail = code, detail
	r.stored = r.lastSeen
	p.writer.Put(id, c)
	p.changes.Add(1)
	if was != to {
		p.publish(id, now, to)
	}
}

func (p *Presences) seen(id DeviceID, r *reachability) {
	r.lastSeen = p.opts.Now().UnixMilli()
	if r.presence != "" && r.lastSeen-r.stored >= p.opts.SeenEvery.Milliseconds() {
		r.stored = r.lastSeen
		p.writer.Put(id, nil)
	}
}

// save stores the current state of the devices; the batch only names them.
func (p *Presences) save(ctx context.Context, batch map[DeviceID]*Connection) error {
	changes := make([]PresenceChange, 0, len(batch))
	for id, c := range batch {
		p.with(id, func(r *reachability) {
			presence, since := r.shown()
			changes = append(changes, PresenceChange{
				Device: id, Presence: presence, Since: time.UnixMilli(since).UTC(), Evidence: r.evidence(),
				LastSeen: time.UnixMilli(r.lastSeen).UTC(), Connection: c,
			})
		})
	}
	return p.opts.Store.SavePresence(ctx, changes)
}

// watchBuffer is far more than the four observations of a reboot.
const watchBuffer = 64

// presenceWatchers holds the few watchers of single devices. The count spares most
// observations, which have no watcher, the lock.
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

// notify delivers evidence to the device's watchers. It never blocks.
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
