package call

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/internal/bounded"
)

// Limits of a call.
const (
	MaxTimeout       = 5 * time.Minute
	MaxArgumentBytes = 3 << 10 // stock firmware handles requests below about 4 KB (protocol 4.9)
	queueTimeout     = time.Minute
	recordTimeout    = 5 * time.Second // a device that acts long after the button was pressed surprises who pressed it
	stopGrace        = 2 * time.Second
)

// A CallRequest asks for one tool call.
type Request struct {
	Actor     fleet.Principal
	Device    fleet.DeviceID
	Tool      string
	Arguments json.RawMessage // a JSON object; nil is {}
	Timeout   time.Duration   // 0 takes the tool's default
	FanOut    uuid.UUID
	// UnlessOffline makes the request fail with [fleet.ErrOffline], and leave no
	// record, while the device is not connected.
	UnlessOffline bool
	// OfflineWait is how long the call may wait until its device is back, if that is not
	// connected. 0: not at all. See [fleet.CallPendingDevice].
	OfflineWait time.Duration
	// Interrupt does not wait for the end of a conversation; see [Interruptions].
	Interrupt bool
	// UnlessTalking makes the request fail with [ErrTalking], and leave no record,
	// while it would have to wait for the end of a conversation: the caller does.
	// Outwaited is the conversation for which it has waited long enough.
	UnlessTalking bool
	Outwaited     uuid.UUID
	// Withdraw, once closed, withdraws a call that was not sent; one that was sent
	// goes on. May be nil.
	Withdraw <-chan struct{}
	Purpose  string         // why, as the caller says; at most [MaxPurposeBytes]. Who approves reads it
	Picture  string         // [fleet.ToolPreviewImage]: blob key of the picture to show
	Firmware *FirmwareOrder // [fleet.ToolUpgradeFirmware]: only campaigns have one
	Mandate  *Mandate       // of a campaign: on whose behalf it calls

	now     time.Time
	preview bool // nothing is to be called
	again   bool // judged before, and counted
	grant   *grant
	// approval of the fan-out, or of the call itself
	approval uuid.UUID
	// stalled, if set, sees each failure to store the outcome that is tried again.
	stalled func(error)
}

func (r Request) isFanOut() bool { return r.FanOut != uuid.Nil }

// mayAsk reports whether the call can wait for a person: one of a campaign or of
// fleetd cannot, and one of a fan-out is part of what was asked for, or not.
func (r Request) mayAsk() bool {
	return r.Firmware == nil && r.Actor.Kind != fleet.KindCampaign && r.Actor.Kind != fleet.KindSystem &&
		(r.preview || !r.isFanOut())
}

// URLMaker makes one-time addresses for the url arguments of calls.
type URLMaker interface {
	UploadURL(ctx context.Context, device fleet.DeviceID, call uuid.UUID, ttl time.Duration) (string, error)
	PreviewURL(ctx context.Context, device fleet.DeviceID, call uuid.UUID, picture string, ttl time.Duration) (string,
		error)
	CoreDumpURL(ctx context.Context, device fleet.DeviceID, call uuid.UUID, ttl time.Duration) (string, error)
}

// A Watcher reports what is observed about a device, in order, until stop.
type Watcher interface {
	Watch(id fleet.DeviceID) (seen <-chan fleet.Evidence, stop func())
}

// CallsOptions configures [Service]. All but Policy, Pins, Approvals, Encoder, Running,
// Authority, Held, Log, Now and Observe are required.
type Options struct {
	Store   Store
	Targets *fleet.Targets
	Policy  Policy // nil: what role, hold and tool allow is allowed
	Pins    Pins
	// Approvals keeps calls that wait for a person. Nil: such calls are refused.
	Approvals ApprovalStore
	Link      fleet.Link
	Encoder   Encoder // nil: previews do not show what would be sent
	Watcher   Watcher
	URLs      URLMaker
	// Interruptions says which calls wait for the end of a conversation. Nil: none.
	Interruptions *Interruptions
	// Running returns the build that a device runs, as its latest boot poll said: an
	// approval names it. Nil, or two empty texts: what is on record.
	Running func(id fleet.DeviceID) (elf, version string)
	// Authority reads again what a principal may do, before a call that has waited is
	// sent. Nil: it may do what it could when it asked.
	Authority fleet.Authority
	// Held reports whether no other process can serve the fleet meanwhile: only then
	// is a call sent. Nil: none can.
	Held    func() bool
	Events  *fleet.Events
	Log     *slog.Logger
	Now     func() time.Time
	Observe func(*fleet.Call) // sees every outcome, for metrics
}

// Calls makes tool calls and keeps the record of each: the one gate through
// which people, programs, models and campaigns reach devices.
//
// A call is made at most once. What fleetd cannot know it calls unknown or
// timed_out, and never sends again without a new request.
type Service struct {
	o         Options
	gate      gate
	settler   *settler  // completes records whose writes failed
	deadlines deadlines // of calls that were sent
	inFlight  runningCalls
	waiting   waitingCalls

	running sync.WaitGroup
	mu      sync.Mutex
	stopped bool
	quit    chan struct{} // closed when fleetd stops
	stop    context.CancelCauseFunc
	life    context.Context // ends when Shutdown gives up waiting
}

var errStopping = errors.New("fleetd is stopping")

// NewCalls returns the service. Call [Service.Shutdown] before closing its store.
func New(o Options) *Service {
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observe == nil {
		o.Observe = func(*fleet.Call) {}
	}
	if o.Policy == nil {
		o.Policy = everything{}
	}
	if o.Pins == nil {
		o.Pins = noPins{}
	}
	if o.Held == nil {
		o.Held = func() bool { return true }
	}
	life, stop := context.WithCancelCause(context.Background())
	s := &Service{o: o, life: life, stop: stop, quit: make(chan struct{})}
	s.settler = newSettler(o.Store, o.Log, s.announce)
	s.deadlines.life, s.deadlines.latest = life, bounded.New[time.Duration, deadline](maxDeadlines)
	s.gate = gate{policy: o.Policy, pins: o.Pins, running: o.Running, digests: fleet.NewToolDigests(),
		schemas: bounded.New[schemaKey, *jsonschema.Resolved](maxSchemas), passed: bounded.New[passed, struct{}](maxPassed)}
	return s
}

// Make makes a call and waits for its outcome. A refusal, a device that is
// offline, or one that does not answer is an outcome, not an error: an error
// means that there is no record of the call, or none of its outcome yet: then
// fleetd completes the record as soon as the database allows. The call goes on
// if ctx ends meanwhile. A call that needs an approval is returned at once, in
// the state [fleet.CallPendingApproval]; so is one that waits for its device
// ([fleet.CallPendingDevice]) or for the end of a conversation, with [fleet.Call.Waits].
func (s *Service) Make(ctx context.Context, r Request) (fleet.Call, error) {
	return s.carry(ctx, r, true)
}

// Start makes a call and returns its record at once, final only if it was not
// sent. The outcome comes as an [fleet.EventCall] and in the record.
func (s *Service) Start(ctx context.Context, r Request) (fleet.Call, error) {
	return s.carry(ctx, r, false)
}

// Get returns one call, or [fleet.ErrNotFound].
func (s *Service) Get(ctx context.Context, id uuid.UUID) (fleet.Call, error) {
	c, err := s.o.Store.Call(ctx, id)
	s.waiting.show(&c)
	return c, err
}

// List returns a page of calls, newest first.
func (s *Service) List(ctx context.Context, f Filter) (fleet.Page[fleet.Call], error) {
	page, err := s.o.Store.Calls(ctx, f)
	for i := range page.Items {
		s.waiting.show(&page.Items[i])
	}
	return page, err
}

// Interrupt sends a call that waits for the end of a conversation now. The call's
// record keeps who asked for that. A call that does not wait is
// [fleet.ErrConflict].
func (s *Service) Interrupt(ctx context.Context, by fleet.Principal, id uuid.UUID) (fleet.Call, error) {
	c, err := s.mayEndWait(ctx, by, id, "interrupt_call")
	if err == nil && !s.waiting.interrupt(id, by) {
		err = doesNotWait(c)
	}
	return c, err
}

// principalNow returns the principal as it may act now, or [fleet.ErrActorGone].
func (s *Service) principalNow(ctx context.Context, p fleet.Principal) (fleet.Principal, error) {
	if s.o.Authority == nil {
		return p, nil
	}
	return s.o.Authority.PrincipalNow(ctx, p)
}

// LastArguments returns the arguments that the actor last used for the tool on
// any device, or nil.
func (s *Service) LastArguments(ctx context.Context, actor fleet.Principal, tool string) (json.RawMessage, error) {
	return s.o.Store.LastArguments(ctx, actor, tool)
}

// Shutdown refuses new calls, gives those in flight a moment to end, and
// closes the rest as canceled or unknown, but for those that wait until their
// devices are back. It returns when all are on record, or
// after [settleGrace] without a database.
func (s *Service) Shutdown() {
	s.mu.Lock()
	if !s.stopped {
		close(s.quit)
	}
	s.stopped = true
	s.mu.Unlock()
	grace := time.AfterFunc(stopGrace, func() { s.stop(errStopping) })
	defer grace.Stop()
	s.running.Wait()
	s.settler.close()
}

// enter counts a call as running, unless fleetd is stopping.
func (s *Service) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return fleet.Refuse(fleet.ErrUnavailable, "stopping")
	}
	if s.settler.full() {
		return fleet.Refuse(fleet.ErrUnavailable, "database_unavailable")
	}
	s.running.Add(1)
	return nil
}

// callIDSlack is how far the time in a call's id may lie from its creation.
const callIDSlack = time.Minute

// newCallID makes the id of a call made now. [uuid.NewV7] never goes back: once
// the clock was set back, its ids carry a time that lies ahead, for as long as
// the clock was wrong, and the store finds a call's partition by that time.
func newCallID(now time.Time) uuid.UUID {
	id := uuid.Must(uuid.NewV7())
	if seconds, nanoseconds := id.Time().UnixTime(); now.Sub(time.Unix(seconds, nanoseconds)).Abs() > callIDSlack {
		var at [8]byte
		binary.BigEndian.PutUint64(at[:], uint64(now.UnixMilli())<<16)
		copy(id[:6], at[:])
	}
	return id
}

// announce publishes an event about a call. The record is copied: views read it
// while the call goes on.
func (s *Service) announce(c *fleet.Call) {
	if !s.o.Events.Wanted(fleet.EventCall) {
		return
	}
	record := *c
	s.o.Events.Publish(fleet.Event{Kind: fleet.EventCall, At: s.o.Now(), Device: c.Device, Call: &record})
}

// Pins know how administrators saw the tools that models call.
type Pins interface {
	// Differs reports whether the tool of an inventory is pinned to another
	// description.
	Differs(inventory string, tool fleet.Tool) bool
}

// noPins is for a fleet that pins no tool.
type noPins struct{}

func (noPins) Differs(string, fleet.Tool) bool { return false }

// everything is the policy of a fleet without one.
type everything struct{}

func (everything) Judge(*Proposal) Verdict { return Verdict{Decision: DecisionAllow} }
