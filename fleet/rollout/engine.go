package rollout

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// Calls makes tool calls; [call.Service] does.
type Calls interface {
	Make(ctx context.Context, r call.Request) (fleet.Call, error)
}

// Link checks the connections of devices; the broker does.
type Link interface {
	// Ping returns the epoch of the connection over which the device answered.
	Ping(ctx context.Context, id fleet.DeviceID) (epoch int64, err error)
	// Epoch returns the epoch of the current connection, and false without one.
	Epoch(id fleet.DeviceID) (int64, bool)
}

// Presence reports which devices are reachable; [fleet.Presences] does.
type Presence interface {
	State(id fleet.DeviceID) (presence fleet.Presence, since time.Time, evidence fleet.Reason)
}

// Conversations reports which devices are in a conversation that must not be interrupted yet;
// [call.Interruptions] does.
type Conversations interface {
	Wait(device fleet.DeviceID, began, now time.Time) (call.ConversationWait, bool)
}

// Downloads serves images; [firmware.Downloads] does.
type Downloads interface {
	Revoke(deployments ...uuid.UUID)
	Room() int
}

// A Leader calls run while this process may carry campaigns out, as the only one in the
// database. The ctx of run ends when the process no longer may; Lead calls run again when it
// may once more. Lead returns when run has returned or ctx has ended.
type Leader interface {
	Lead(ctx context.Context, run func(ctx context.Context) error) error
}

type alwaysLeads struct{}

func (alwaysLeads) Lead(ctx context.Context, run func(ctx context.Context) error) error {
	return run(ctx)
}

// A Register stores the builds that devices report, and their reports on jobs.
type Register interface {
	// Stored returns when all reports of the devices so far are stored.
	Stored(ctx context.Context, ids ...fleet.DeviceID) error
	// Runs records the build that a device reported when it was queried.
	Runs(id fleet.DeviceID, elfSHA256, version string)
}

// Options configures [Engine]. Those without a default are required.
type Options struct {
	Store       campaign.RolloutStore
	Inventories fleet.InventoryStore
	Quarantines campaign.QuarantineStore
	Calls       Calls
	Link        Link
	Presence    Presence
	Downloads   Downloads
	Register    Register // may be nil
	// Conversations delays notifications until conversations end. With nil nothing waits.
	Conversations Conversations
	// Authority returns the current rights of a campaign's maker and starter. With nil they
	// keep the rights that they had when they acted.
	Authority fleet.Authority
	// Leader decides when this process may carry campaigns out. With nil it always may.
	Leader Leader
	// Rollback returns the devices that an aborted campaign updated to their previous builds,
	// or records why it does not. The engine calls it again after an error.
	Rollback func(ctx context.Context, campaign uuid.UUID) error
	// Limits returns which images must not be used now, and why. With nil all may be used.
	Limits func(ctx context.Context, images []firmware.Image) (firmware.Limits, error)
	// PublicURL is the address from which devices fetch images.
	PublicURL string
	Events    *fleet.Events // nil: no events are published
	Log       *slog.Logger  // nil: silent

	Zone             *time.Location            // of devices without one. Default: UTC
	Timers           campaign.DeploymentTimers // Default: campaign.DefaultTimers
	Tick             time.Duration             // interval of checks of the time. Default: 1s
	MaxDispatchBatch int                       // devices notified in one transaction. Default: 256
	MaxChecks        int                       // devices whose health is checked at the same time. Default: 64
	RetryPause       time.Duration             // between tries of a health check. Default: 3s
	Now              func() time.Time          // Default: time.Now
}

func (o *Options) fill() {
	o.Authority = campaign.KeptRights(o.Authority)
	if o.Leader == nil {
		o.Leader = alwaysLeads{}
	}
	if o.Zone == nil {
		o.Zone = time.UTC
	}
	if o.Timers == (campaign.DeploymentTimers{}) {
		o.Timers = campaign.DefaultTimers
	}
	if o.Tick == 0 {
		o.Tick = time.Second
	}
	if o.MaxDispatchBatch == 0 {
		o.MaxDispatchBatch = 256
	}
	if o.MaxChecks == 0 {
		o.MaxChecks = 64
	}
	if o.RetryPause == 0 {
		o.RetryPause = 3 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Events == nil {
		o.Events = new(fleet.Events)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Engine carries campaigns out. Any goroutine may call its methods, before and after Run; none
// but Poll blocks.
type Engine struct {
	o      Options
	inbox  *inbox
	index  index
	stuck  atomic.Bool   // the store does not accept the engine's changes
	checks chan struct{} // places for health checks

	// underWay are the upgrade calls of an ended lead, by deployment. They occupy the lines of their
	// devices until the next lead ends them. Only lead and the functions that it calls access the map.
	underWay map[uuid.UUID]upgradeCall
}

// upgradeCall is a call that lasts until its attempt is over.
type upgradeCall struct {
	attempt int
	end     chan struct{} // closed when the attempt is over
}

// New returns an engine that does nothing until Run.
func New(o Options) *Engine {
	o.fill()
	return &Engine{o: o, inbox: newInbox(), checks: make(chan struct{}, o.MaxChecks),
		underWay: make(map[uuid.UUID]upgradeCall)}
}

// leadAgain is the pause before the engine tries to lead again.
const leadAgain = time.Second

// Run waits until this process may carry campaigns out, and then does so until ctx ends. After
// that, [call.Service.Shutdown] ends the calls under way.
func (e *Engine) Run(ctx context.Context) error {
	defer e.followReleases(ctx)()
	for ctx.Err() == nil {
		err := e.o.Leader.Lead(ctx, e.lead)
		if ctx.Err() != nil {
			break
		}
		e.o.Log.Warn("campaigns are not carried out by this process now; trying again", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(leadAgain):
		}
	}
	return nil
}

// lead loads the rows and works until ctx ends: after that another process may lead.
func (e *Engine) lead(ctx context.Context) error {
	l := newLoop(ctx, e)
	e.index.open()
	defer func() {
		e.index.close()
		e.inbox.clear()
		e.stuck.Store(false)
		l.leaveCalls()
	}()
	if err := l.load(ctx); err != nil {
		return err
	}
	e.endCalls()
	return l.run(ctx)
}

// leaveCalls passes the calls of attempts under way to the next lead.
func (l *loop) leaveCalls() {
	for id, d := range l.byID {
		if d.attemptEnd != nil {
			l.e.underWay[id] = upgradeCall{d.Attempt, d.attemptEnd}
		}
	}
}

// adoptCall returns the channel that ends the attempt's call if an earlier lead made that call,
// else nil.
func (e *Engine) adoptCall(d *campaign.Deployment) chan struct{} {
	c, ok := e.underWay[d.ID]
	if !ok || c.attempt != d.Attempt {
		return nil
	}
	delete(e.underWay, d.ID)
	return c.end
}

// endCalls ends the calls whose attempts are over by now.
func (e *Engine) endCalls() {
	for _, c := range e.underWay {
		close(c.end)
	}
	clear(e.underWay)
}

// ConversationEnded makes the engine re-examine a device that waits for the end of its
// conversation. It returns immediately.
func (e *Engine) ConversationEnded(id fleet.DeviceID) {
	if e.index.waits(id) {
		e.inbox.put(input{do: func(l *loop) { l.conversationEnded(id) }})
	}
}

// Wake makes the engine re-read the campaigns because one changed.
func (e *Engine) Wake() { e.inbox.wake() }

func (e *Engine) now() time.Time { return e.o.Now().UTC() }

// followReleases wakes the engine when an image or release changes: it may have been revoked.
func (e *Engine) followReleases(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			e.watchReleases(ctx)
		}
	}()
	return func() { cancel(); <-done }
}

func (e *Engine) watchReleases(ctx context.Context) {
	sub := e.o.Events.Subscribe(64, nil, fleet.EventRelease)
	defer sub.Close()
	for {
		select {
		case _, ok := <-sub.C:
			e.inbox.put(input{do: func(l *loop) { l.images.forget() }})
			e.inbox.wake()
			if !ok {
				time.Sleep(100 * time.Millisecond) // closed: too slow, or fleetd is stopping
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
