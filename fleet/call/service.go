package call

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/redaction"
	"fleetd/internal/bounded"
)

// Limits of a call.
const (
	MaxTimeout       = 5 * time.Minute
	MaxArgumentBytes = 3 << 10 // stock firmware handles requests below about 4 KB (protocol 4.9)
	// MaxProgramArgumentBytes is the limit for plug-ins and endpoints.
	MaxProgramArgumentBytes = 256 << 10

	queueTimeout  = time.Minute
	recordTimeout = 5 * time.Second // a device that acts long after the button was pressed surprises who pressed it
	stopGrace     = 2 * time.Second
)

// URLMaker makes one-time URLs for the url arguments of calls.
type URLMaker interface {
	UploadURL(ctx context.Context, device fleet.DeviceID, call uuid.UUID, ttl time.Duration) (string, error)
	PreviewURL(ctx context.Context, device fleet.DeviceID, call uuid.UUID, picture string, ttl time.Duration) (string,
		error)
	CoreDumpURL(ctx context.Context, device fleet.DeviceID, call uuid.UUID, ttl time.Duration) (string, error)
}

// A Watcher reports the observations of a device, in order, until stop is called.
type Watcher interface {
	Watch(id fleet.DeviceID) (seen <-chan fleet.Evidence, stop func())
}

// Options configures [Service]. All fields but Policy, Pins, Quarantines, Approvals, Encoder, Interruptions,
// Running, Authority, Held, Log, Now and Observe are required.
type Options struct {
	Store   Store
	Targets *fleet.Targets
	Policy  Policy // nil: the policy allows everything
	Pins    Pins
	// Quarantines withhold tools from models. Nil: none does.
	Quarantines Quarantines
	// Redaction keeps values under its rules out of the records. Nil: none.
	Redaction *redaction.Service
	// Approvals stores calls that wait for an approval. Nil: these calls are refused.
	Approvals ApprovalStore
	Link      fleet.Link
	// Settled returns when it is known whether the device is connected, or ctx ends: after a start its
	// connection may be known later than the first calls are made. Nil: it is always known.
	Settled func(ctx context.Context, id fleet.DeviceID)
	Encoder Encoder // nil: previews do not show the message
	Watcher Watcher
	URLs    URLMaker
	// Interruptions decides which calls wait for the end of a conversation. Nil: no call waits.
	Interruptions *Interruptions
	// Running returns the build that a device runs according to its latest boot poll; approvals
	// name it. If Running is nil or returns two empty texts, the build on record counts.
	Running func(id fleet.DeviceID) (elf, version string)
	// Authority reads a principal's current rights before a call that has waited is sent. Nil:
	// the principal keeps the rights that it had at the request.
	Authority fleet.Authority
	// Held reports whether no other process can serve the fleet now. A call is sent only then.
	// Nil: always true.
	Held    func() bool
	Events  *fleet.Events
	Log     *slog.Logger
	Now     func() time.Time
	Observe func(*fleet.Call) // receives every outcome, for metrics
	// OrderAnswered receives the answer to an order of a campaign that an earlier process sent, and whose
	// [FirmwareOrder] ended with that process. Nil: only the call's record has the answer.
	OrderAnswered func(ctx context.Context, order fleet.Call, answer fleet.Answer)
}

// Service makes tool calls and records each of them. It is the only gate through which people,
// programs, models and campaigns reach devices.
//
// A call is sent at most once. If fleetd cannot know the outcome, the call becomes unknown or
// timed_out; sending it again needs a new request.
type Service struct {
	o         Options
	gate      gate
	settler   *settler  // completes records whose writes failed
	deadlines deadlines // of sent calls
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

// New returns the service. Call [Service.Shutdown] before closing its store.
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
	if o.Quarantines == nil {
		o.Quarantines = noQuarantines{}
	}
	if o.Held == nil {
		o.Held = func() bool { return true }
	}
	life, stop := context.WithCancelCause(context.Background())
	s := &Service{o: o, life: life, stop: stop, quit: make(chan struct{})}
	s.settler = newSettler(o.Store, o.Log, s.announce)
	s.deadlines.life, s.deadlines.latest = life, bounded.New[time.Duration, deadline](maxDeadlines)
	s.gate = newGate(o)
	return s
}

// Make makes a call and waits for its outcome. A refusal, an offline device, and a device that
// does not answer are outcomes, not errors. An error means that the call has no record, or that
// its outcome is not recorded yet; fleetd then completes the record as soon as the database
// allows. The call goes on if ctx ends. Make returns at once if the call needs an approval
// (state [fleet.CallPendingApproval]), waits for its device ([fleet.CallPendingDevice]), or
// waits for the end of a conversation; see [fleet.Call.Waits].
func (s *Service) Make(ctx context.Context, r Request) (fleet.Call, error) {
	return s.carry(ctx, r, true)
}

// Start makes a call and returns its record at once, which is final only if the call was not
// sent. The outcome follows as an [fleet.EventCall] and in the record.
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

// Interrupt sends a call that waits for the end of a conversation now. The call's record names
// the principal. If the call does not wait, Interrupt returns [fleet.ErrConflict].
func (s *Service) Interrupt(ctx context.Context, by fleet.Principal, id uuid.UUID) (fleet.Call, error) {
	c, err := s.mayEndWait(ctx, by, id, "interrupt_call")
	if err == nil && !s.waiting.interrupt(id, by) {
		err = doesNotWait(c)
	}
	return c, err
}

// principalNow returns the principal with its current rights, or [fleet.ErrActorGone].
func (s *Service) principalNow(ctx context.Context, p fleet.Principal) (fleet.Principal, error) {
	if s.o.Authority == nil {
		return p, nil
	}
	return s.o.Authority.PrincipalNow(ctx, p)
}

// LastArguments returns the arguments that the actor last used for the tool on
// any device, or nil. It omits values that the record has only as digests.
func (s *Service) LastArguments(ctx context.Context, actor fleet.Principal, tool string) (json.RawMessage, error) {
	last, err := s.o.Store.LastArguments(ctx, actor, tool)
	return redaction.Without(last), err
}

// Shutdown refuses new calls, gives running calls a moment to end, and closes the rest as
// canceled or unknown, except calls that wait for their devices. It returns when all are on
// record, or after [settleGrace] without a database.
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

// announce publishes an event about a call. It copies the record, because pages read it while
// the call goes on.
func (s *Service) announce(c *fleet.Call) {
	if !s.o.Events.Wanted(fleet.EventCall) {
		return
	}
	record := *c
	s.o.Events.Publish(fleet.Event{Kind: fleet.EventCall, At: s.o.Now(), Device: c.Device, Call: &record})
}

// Pins store the descriptions of tools that administrators approved for models.
type Pins interface {
	// Pinned reports whether the tool is pinned.
	Pinned(tool string) bool
	// Differs reports whether the tool of an inventory is pinned to another description.
	Differs(inventory string, tool fleet.Tool) bool
}

// noPins belongs to a fleet without pinned tools.
type noPins struct{}

func (noPins) Pinned(string) bool              { return false }
func (noPins) Differs(string, fleet.Tool) bool { return false }

// Quarantines withhold from models the tools of programs that changed unexplained, and definitions of
// tools that wait for a person.
type Quarantines interface {
	// Holds reports whether the tool of a device's inventory is in quarantine.
	Holds(device fleet.DeviceID, inventory string, tool fleet.Tool) bool
	// Waits reports whether it is because its definition waits for a person on all devices.
	Waits(inventory string, tool fleet.Tool) bool
}

type noQuarantines struct{}

func (noQuarantines) Holds(fleet.DeviceID, string, fleet.Tool) bool { return false }
func (noQuarantines) Waits(string, fleet.Tool) bool                 { return false }

// everything is the policy of a fleet without one: it allows everything.
type everything struct{}

func (everything) Judge(*Proposal) Verdict { return Verdict{Decision: DecisionAllow} }

// Cancel cancels a call that waits for its device or for the end of a conversation. The principal
// must have made the call, or be an operator who may call its tool. Cancel returns the call with
// its outcome, or [fleet.ErrConflict] if the call does not wait or was already sent.
func (s *Service) Cancel(ctx context.Context, by fleet.Principal, id uuid.UUID) (fleet.Call, error) {
	c, err := s.mayEndWait(ctx, by, id, "cancel_call")
	if err != nil {
		return c, err
	}
	over := s.waiting.withdraw(id, by)
	if over != nil {
		select {
		case <-over:
		case <-ctx.Done():
			return c, ctx.Err()
		}
		if c, err = s.Get(ctx, id); err != nil {
			return c, err
		}
	}
	if over == nil || c.State != fleet.CallCanceled {
		return c, doesNotWait(c)
	}
	return c, nil
}

// mayEndWait returns a call whose wait the principal may end.
func (s *Service) mayEndWait(ctx context.Context, by fleet.Principal, id uuid.UUID, act string) (fleet.Call, error) {
	if err := by.MaySomewhere(fleet.RoleOperator, act); err != nil {
		return fleet.Call{}, err
	}
	c, err := s.Get(ctx, id)
	if err != nil {
		return c, err
	}
	t, err := s.o.Targets.Get(ctx, c.Device, s.o.Now())
	if err != nil {
		return c, err
	}
	return c, by.MayEndWait(c, t.Device, act)
}

func doesNotWait(c fleet.Call) error {
	if c.State == fleet.CallPendingApproval {
		return fleet.Refuse(fleet.ErrConflict, "call_not_waiting.approval", "call", c.ID, "approval", c.Approval)
	}
	return fleet.Refuse(fleet.ErrConflict, "call_not_waiting", "call", c.ID, "state", fleet.Because("state."+string(c.State)))
}

// Resume continues the calls that waited for their devices in an earlier process. Call it
// before making the first call.
func (s *Service) Resume(ctx context.Context) error {
	waiting, err := s.o.Store.WaitingCalls(fleet.WithoutScope(ctx))
	if err != nil {
		return err
	}
	for _, w := range waiting {
		c := w.Call
		arguments, unreadable := s.trueArguments(c.ID, c.Arguments, c.Sealed)
		r := Request{Actor: c.Actor, Device: c.Device, Tool: c.Tool, Arguments: arguments, Timeout: c.Timeout,
			Interrupt: w.Interrupt, Picture: w.Picture, OfflineWait: c.WaitUntil.Sub(c.CreatedAt), now: c.CreatedAt}
		if c.Approval != uuid.Nil && s.o.Approvals != nil {
			approved, err := s.o.Approvals.Approval(fleet.WithoutScope(ctx), c.Approval)
			if err != nil {
				return err
			}
			r.grant = &grant{approved.PolicyVersion, approved.build(), approved.DecidedBy}
		}
		if err := s.enter(); err != nil {
			return err
		}
		a := &attempt{calls: s, asked: r, call: &c, wire: arguments, shown: c.Arguments,
			wait: wait{kind: deviceWait, wasAway: true}}
		if unreadable != nil {
			s.o.Log.Error("a call that waits for its device cannot be sent", "call", c.ID, "device", c.Device, "err", unreadable)
			a.close(fleet.CallCanceled, fleet.NewCallError(codeUnreadable))
			err := a.finish()
			s.running.Done()
			if err != nil {
				return err
			}
			continue
		}
		a.waitFor(deviceWait, fleet.Reason{})
		go a.send()
	}
	return nil
}
