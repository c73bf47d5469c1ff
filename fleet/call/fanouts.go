package call

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// Limits of a fan-out.
const (
	DefaultInFlight  = 64
	MaxInFlight      = 2000
	MaxFanOutDevices = 100_000
	fanOutPage       = 1000
	fanOutAnnounce   = 250 * time.Millisecond

	// MaxOfflineWait limits how long a fan-out waits for devices.
	MaxOfflineWait     = 24 * time.Hour
	DefaultOfflineWait = 15 * time.Minute // if a request wants to wait but gives no duration
)

// A FanOutRequest requests the same call to many devices: the devices of a query, or a list.
type FanOutRequest struct {
	// ID is the id of the fan-out, so that its requester recognises it after a restart. Default: a new one.
	ID          uuid.UUID
	Actor       fleet.Principal
	Query       string
	Devices     []fleet.DeviceID // instead of Query
	RetryOf     uuid.UUID        // instead of both: the devices that failed in this fan-out
	Tool        string
	Arguments   json.RawMessage
	Timeout     time.Duration
	MaxInFlight int // 0: DefaultInFlight
	// OfflineWait is how long to wait for disconnected devices. 0: their calls end as offline
	// at once.
	OfflineWait time.Duration
	Interrupt   bool   // see [FanOut.Interrupt]; a language model cannot request it
	Purpose     string // reason given by the caller, for the approver; at most [MaxPurposeBytes]
	// Confirm is the number of targets. If the tool makes a visit to each device necessary,
	// [FanOuts.Create] refuses any other number; for other tools it is ignored.
	Confirm int
}

// A FanOutPreview is what a fan-out would do.
type FanOutPreview struct {
	Matched      int
	Targets      int
	Offline      int // of the targets: currently disconnected
	Talking      int // of the targets: in a conversation that must not be interrupted
	NeedApproval int // of the targets: if there are any, the fan-out waits for an approval
	UserOnly     bool
	Effect       fleet.ToolEffect       // on each device
	Skipped      []fleet.SkippedDevices // by reason, most first

	verdict Verdict // of the first target that needs an approval
}

// NeedsConfirm reports whether [FanOutRequest.Confirm] must be the number of targets: the
// devices would stay away until a person visits each of them.
func (p FanOutPreview) NeedsConfirm() bool { return p.Effect == fleet.EffectLeaves && p.Targets > 0 }

// MustType reports whether an operator must type the number of targets first.
func (p FanOutPreview) MustType() bool { return p.UserOnly || p.Effect != fleet.EffectNone }

// FanOutDevices finds the devices of a fan-out, as [fleet.Devices] does.
type FanOutDevices interface {
	DeviceIDs(ctx context.Context, q fleet.Query) ([]fleet.DeviceID, error)
	DevicesByID(ctx context.Context, ids []fleet.DeviceID) ([]fleet.Device, error)
}

// FanOutsOptions configures [FanOuts]. Fields without a default are required.
type FanOutsOptions struct {
	Store   FanOutStore
	Devices FanOutDevices
	Calls   *Service
	// Approvals stores fan-outs that wait for an approval. Nil: devices whose calls need an
	// approval are excluded.
	Approvals ApprovalStore
	Presence  interface{ IsConnected(id fleet.DeviceID) bool }
	Events    *fleet.Events // presence events too
	Log       *slog.Logger  // nil: silent
	// Grace is how long after a start to wait for devices that were connected before it.
	// Default: 1m
	Grace time.Duration
}

// FanOuts makes the same call to many devices, to each at most once. After a restart it
// continues from the records.
type FanOuts struct {
	store     FanOutStore
	calls     *Service
	approvals ApprovalStore
	devices   FanOutDevices
	presence  interface{ IsConnected(id fleet.DeviceID) bool }
	events    *fleet.Events
	log       *slog.Logger
	grace     time.Duration
	now       func() time.Time

	mu      sync.Mutex
	life    context.Context // nil before Run
	started time.Time       // of Run
	runs    map[uuid.UUID]*fanOutRun
	running sync.WaitGroup
}

// NewFanOuts returns the service; [FanOuts.Run] runs its fan-outs.
func NewFanOuts(o FanOutsOptions) *FanOuts {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &FanOuts{store: o.Store, calls: o.Calls, approvals: o.Approvals, devices: o.Devices, presence: o.Presence,
		events: o.Events,
		log:    o.Log,
		grace:  cmp.Or(o.Grace, time.Minute), now: func() time.Time { return time.Now().UTC() },
		runs: make(map[uuid.UUID]*fanOutRun)}
}

// Run resumes the fan-outs that were running when fleetd stopped, and runs fan-outs until ctx
// ends. [Service.Shutdown] then handles the calls in flight.
func (s *FanOuts) Run(ctx context.Context) error {
	s.mu.Lock()
	s.life, s.started = ctx, s.now()
	s.mu.Unlock()
	var open []FanOut
	err := s.untilStored(ctx, func(ctx context.Context) (err error) {
		open, err = s.store.RunningFanOuts(ctx)
		return err
	}, func(err error) { s.log.Error("fan-outs of the last run wait for the database", "err", err) })
	if err != nil && ctx.Err() == nil {
		return err
	}
	for _, f := range open {
		s.log.Info("fan-out resumed", "fanout", f.ID, "tool", f.Tool)
		s.launch(f, nil)
	}
	<-ctx.Done()
	s.mu.Lock()
	s.life = nil // nothing starts any more that s.running would not count
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// Preview resolves the audience of a fan-out and returns which devices would be excluded, and
// why. It changes nothing.
func (s *FanOuts) Preview(ctx context.Context, r FanOutRequest) (FanOutPreview, error) {
	if err := r.check(); err != nil {
		return FanOutPreview{}, err
	}
	ctx = fleet.WithScope(ctx, r.Actor)
	p, _, err := s.resolve(ctx, r)
	return p, err
}

// Create records a fan-out with its audience, and starts it.
func (s *FanOuts) Create(ctx context.Context, r FanOutRequest) (FanOut, error) {
	if err := r.check(); err != nil { // and fill in defaults
		return FanOut{}, err
	}
	ctx = fleet.WithScope(ctx, r.Actor)
	p, targets, err := s.resolve(ctx, r)
	if err != nil {
		return FanOut{}, err
	}
	if p.Targets == 0 {
		return FanOut{}, fleet.Refuse(fleet.ErrInvalid, "empty_audience.call", "matched", p.Matched)
	}
	if p.NeedsConfirm() && r.Confirm != p.Targets {
		return FanOut{}, fleet.Refuse(fleet.ErrInvalid, "confirmation_required", "tool", r.Tool, "effect", p.Effect,
			"targets", p.Targets).At("confirm")
	}
	f := FanOut{ID: cmp.Or(r.ID, uuid.Must(uuid.NewV7())), Actor: r.Actor, Query: r.Query, Tool: r.Tool,
		MaxInFlight: r.MaxInFlight, Timeout: r.Timeout, OfflineWait: r.OfflineWait,
		Interrupt: r.Interrupt && !r.Actor.Kind.IsModel(), State: FanOutRunning, Targets: p.Targets,
		Skipped: p.Matched - p.Targets, CreatedAt: s.now(), RetryOf: r.RetryOf}
	f.Arguments, _, f.Sealed = s.calls.redacted(f.ID, r.Tool, r.Arguments)
	if p.NeedApproval > 0 {
		return s.ask(ctx, f, targets, r, p.verdict)
	}
	if err := s.store.CreateFanOut(ctx, &f, targets); err != nil {
		if !errors.Is(err, fleet.ErrNotStored) && !rowRefused(err) {
			s.withdraw(f)
		}
		return FanOut{}, err
	}
	s.launch(f, called(targets))
	s.announce(f.ID)
	return f, nil
}

// ask records a fan-out that waits for its approval.
func (s *FanOuts) ask(ctx context.Context, f FanOut, targets []FanOutTarget, r FanOutRequest, v Verdict) (FanOut,
	error) {
	a := newApproval(v, r.Actor, r.Purpose, f.CreatedAt)
	a.Subject, a.SubjectID, a.Query, a.Targets = ApprovalOfFanOut, f.ID, f.Query, f.Targets
	a.Tool, a.Arguments, a.Interrupt = f.Tool, f.Arguments, f.interrupts()
	var named []ApprovalTarget
	for _, t := range targets {
		if t.Reason == "" {
			named = append(named, ApprovalTarget{t.Device, t.Build})
		}
	}
	a.Builds = countBuilds(named)
	a.Digest = ApprovalDigest(r.Actor, named, f.Tool, f.Arguments, "", a.Interrupt, nil, v.Version)
	f.State, f.Approval, f.PolicyVersion = FanOutPendingApproval, a.ID, v.Version
	var err error
	if a.AskedLine, a.Person, err = s.approvals.PrincipalLine(ctx, a.AskedBy); err != nil {
		return FanOut{}, err
	}
	if err := s.approvals.AskForFanOut(ctx, &f, targets, a); err != nil {
		if !errors.Is(err, fleet.ErrNotStored) && !rowRefused(err) {
			s.withdraw(f)
		}
		return FanOut{}, err
	}
	s.announce(f.ID)
	s.calls.announceApproval(a)
	return f, nil
}

// called returns the devices that no reason excludes.
func called(targets []FanOutTarget) []fleet.DeviceID {
	ids := make([]fleet.DeviceID, 0, len(targets))
	for _, t := range targets {
		if t.Reason == "" {
			ids = append(ids, t.Device)
		}
	}
	return ids
}

// Get returns one fan-out, or [fleet.ErrNotFound].
func (s *FanOuts) Get(ctx context.Context, id uuid.UUID) (FanOut, error) {
	return s.store.FanOut(ctx, id)
}

// List returns a page of fan-outs, newest first.
func (s *FanOuts) List(ctx context.Context, limit int, cursor string) (fleet.Page[FanOut], error) {
	return s.store.FanOuts(ctx, limit, cursor)
}

// Running returns the fan-outs that have not ended.
func (s *FanOuts) Running(ctx context.Context) ([]FanOut, error) { return s.store.RunningFanOuts(ctx) }

// Answers groups the devices by their answers, largest group first.
func (s *FanOuts) Answers(ctx context.Context, id uuid.UUID, limit int) ([]FanOutAnswer, error) {
	return s.store.Answers(ctx, id, limit)
}

// Skipped counts the excluded devices by reason.
func (s *FanOuts) Skipped(ctx context.Context, id uuid.UUID) ([]fleet.DeviceCount, error) {
	return s.store.SkippedTargets(ctx, id)
}

// Cancel ends a fan-out: calls that were sent run to their outcome, the others are not sent.
func (s *FanOuts) Cancel(ctx context.Context, by fleet.Principal, id uuid.UUID) error {
	var f FanOut
	read := func(ctx context.Context) (err error) {
		f, err = s.Get(ctx, id)
		return err
	}
	if err := by.MaySomewhere(fleet.RoleOperator, "cancel_fanout"); err != nil {
		return err
	}
	if err := read(fleet.WithScope(ctx, by)); err != nil {
		return err
	}
	if err := by.MayOnAll(ctx, read, fleet.RoleOperator, "cancel_fanout"); err != nil {
		return err
	}
	if err := by.MayAsMaker(f.Actor, "cancel_fanout"); err != nil {
		return err
	}
	if !f.Open() {
		s.halt(id) // an earlier cancellation may have been stored without confirmation
		return fleet.Refuse(fleet.ErrConflict, "not_running", "state", fleet.Because("state."+string(f.State)))
	}
	if err := s.store.FinishFanOut(ctx, by, id, FanOutCanceled, s.now()); err != nil {
		if !rowRefused(err) {
			s.haltIfEnded(id)
		}
		return err
	}
	s.halt(id)
	s.announce(id)
	if f.State == FanOutPendingApproval {
		s.events.Publish(fleet.Event{Kind: fleet.EventApproval, At: s.now(), Subject: f.Approval.String()})
	}
	return nil
}

func (r *FanOutRequest) check() error {
	if err := r.Actor.MaySomewhere(fleet.RoleOperator, "make_fanout"); err != nil {
		return err
	}
	if r.MaxInFlight == 0 {
		r.MaxInFlight = DefaultInFlight
	}
	if r.MaxInFlight < 1 || r.MaxInFlight > MaxInFlight {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_max_in_flight.fanout", "limit", MaxInFlight)
	}
	if r.OfflineWait < 0 || r.OfflineWait > MaxOfflineWait {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_offline_wait", "limit", MaxOfflineWait.Milliseconds(),
			"limit_ms", MaxOfflineWait)
	}
	r.OfflineWait = r.OfflineWait.Truncate(time.Millisecond)
	if fleet.ForOneDevice(r.Tool) {
		return fleet.Refuse(fleet.ErrInvalid, "not_for_many", "tool", r.Tool)
	}
	if len(r.Arguments) == 0 {
		r.Arguments = json.RawMessage("{}")
	}
	return checkRequest(Request{Tool: r.Tool, Arguments: r.Arguments, Timeout: r.Timeout, Purpose: r.Purpose})
}

// resolve finds the audience of a checked request, and judges each device as the gate will.
func (s *FanOuts) resolve(ctx context.Context, r FanOutRequest) (FanOutPreview, []FanOutTarget, error) {
	ids, err := s.audience(ctx, r)
	if err != nil {
		return FanOutPreview{}, nil, err
	}
	p := FanOutPreview{Effect: fleet.EffectOf(r.Tool)}
	var skipped fleet.SkippedTally
	var targets []FanOutTarget
	for page := range slices.Chunk(ids, fanOutPage) {
		known, err := s.calls.o.Targets.Load(ctx, page, s.now())
		if err != nil {
			return FanOutPreview{}, nil, err
		}
		for _, id := range page {
			t := known[id]
			if t == nil || !r.Actor.Sees(t.Device) {
				continue // no such device, or not visible to the actor
			}
			offer := targetOf(t, r.Tool)
			reason, ask := s.reason(offer, r)
			target := FanOutTarget{Device: id, Reason: reason}
			if reason == "" && s.approvals != nil {
				target.Build = s.calls.gate.build(offer)
			}
			if ask != nil {
				if p.NeedApproval++; p.NeedApproval == 1 {
					p.verdict = *ask
				}
			}
			targets = append(targets, target)
			p.count(offer, target.Reason, s.presence.IsConnected(id), &skipped)
			if _, talks := s.calls.o.Interruptions.Wait(id, s.now(), s.now()); talks && reason == "" &&
				Interrupts(r.Tool) && !r.Interrupt {
				p.Talking++
			}
		}
	}
	p.Skipped = skipped.Groups()
	return p, targets, nil
}

func (s *FanOuts) audience(ctx context.Context, r FanOutRequest) ([]fleet.DeviceID, error) {
	ids := slices.Clone(r.Devices)
	if r.RetryOf != uuid.Nil {
		first, err := s.store.FanOut(ctx, r.RetryOf)
		if err != nil {
			return nil, err
		}
		if first.Open() { // it may be about to call the same devices
			return nil, fleet.Refuse(fleet.ErrConflict, "fanout_open", "state", fleet.Because("state."+string(first.State)))
		}
		failed, err := s.Failed(ctx, r.RetryOf)
		if err != nil {
			return nil, err
		}
		ids = failed
	} else if len(ids) == 0 {
		q, err := fleet.ParseQuery(r.Query)
		if err != nil {
			return nil, err
		}
		if ids, err = s.devices.DeviceIDs(ctx, q); err != nil {
			return nil, err
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if len(ids) > MaxFanOutDevices {
		return nil, fleet.Refuse(fleet.ErrInvalid, "audience_too_large.fanout", "matched", len(ids), "limit", MaxFanOutDevices)
	}
	return ids, nil
}

// reason runs the gate's checks, as the call will. It returns "" if the device is included,
// with the verdict if that needs an approval.
func (s *FanOuts) reason(t target, r FanOutRequest) (string, *Verdict) {
	request := Request{Actor: r.Actor, Device: t.Device.ID, Tool: r.Tool, Arguments: r.Arguments, FanOut: uuid.Max,
		now: s.now(), preview: true}
	no := s.calls.gate.check(t, request)
	switch {
	case no == nil:
		return "", nil
	case no.ask != nil && s.approvals != nil:
		return "", no.ask
	}
	return no.err.Code, nil
}

func (p *FanOutPreview) count(t target, reason string, connected bool, skipped *fleet.SkippedTally) {
	p.Matched++
	if t.offered && t.tool.UserOnly() {
		p.UserOnly = true
	}
	if reason == "" {
		p.Targets++
		if !connected {
			p.Offline++
		}
		return
	}
	skipped.Add(reason, t.Device.ID)
}
