package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Limits of a fan-out.
const (
	DefaultInFlight   = 64
	MaxInFlight       = 2000
	MaxFanOutDevices  = 100_000
	fanOutPage        = 1000
	fanOutAnnounce    = 250 * time.Millisecond
	previewSampleSize = 5
)

// A FanOutRequest asks for the same call to many devices: those of a query, or
// those listed.
type FanOutRequest struct {
	Actor       Actor
	Query       string
	Devices     []DeviceID // instead of Query
	Tool        string
	Arguments   json.RawMessage
	Timeout     time.Duration
	MaxInFlight int // 0 takes DefaultInFlight
}

// A FanOutPreview says what a fan-out would do, before it does.
type FanOutPreview struct {
	Matched  int
	Targets  int
	Offline  int // of the targets: their calls will end offline unless they come back first
	UserOnly bool
	Skipped  []SkippedDevices // by reason, most first
}

// SkippedDevices groups devices left out for the same reason.
type SkippedDevices struct {
	Reason string // a code such as "device_held"
	Count  int
	Sample []DeviceID
}

// FanOuts makes the same call to many devices, each at most once, and goes on
// after a restart from what is on record.
type FanOuts struct {
	FanOutStore
	calls   *Calls
	devices DeviceStore
	events  *Events
	log     *slog.Logger
	now     func() time.Time

	mu      sync.Mutex
	life    context.Context // nil before Run
	cancels map[uuid.UUID]context.CancelFunc
	running sync.WaitGroup
}

// NewFanOuts returns the service; [FanOuts.Run] carries its fan-outs out.
func NewFanOuts(store FanOutStore, devices DeviceStore, calls *Calls, events *Events, log *slog.Logger) *FanOuts {
	return &FanOuts{FanOutStore: store, calls: calls, devices: devices, events: events, log: log,
		now: func() time.Time { return time.Now().UTC() }, cancels: make(map[uuid.UUID]context.CancelFunc)}
}

// Run resumes what was running when fleetd stopped, and carries out fan-outs
// until ctx ends. Calls in flight then are left to [Calls.Shutdown].
func (s *FanOuts) Run(ctx context.Context) error {
	s.mu.Lock()
	s.life = ctx
	s.mu.Unlock()
	open, err := s.RunningFanOuts(ctx)
	if err != nil {
		return err
	}
	for _, f := range open {
		s.log.Info("fan-out resumed", "fanout", f.ID, "tool", f.Tool)
		s.launch(f)
	}
	<-ctx.Done()
	s.running.Wait()
	return nil
}

// Preview resolves the audience of a fan-out and says who would be left out
// and why. It changes nothing.
func (s *FanOuts) Preview(ctx context.Context, r FanOutRequest) (FanOutPreview, error) {
	if err := r.check(); err != nil {
		return FanOutPreview{}, err
	}
	p, _, err := s.resolve(ctx, r)
	return p, err
}

// Create puts a fan-out and its audience on record and starts it.
func (s *FanOuts) Create(ctx context.Context, r FanOutRequest) (FanOut, error) {
	if err := r.check(); err != nil { // and fill in what was left out
		return FanOut{}, err
	}
	p, targets, err := s.resolve(ctx, r)
	if err != nil {
		return FanOut{}, err
	}
	if p.Targets == 0 {
		return FanOut{}, Errorf(ErrInvalid, "empty_audience", "no device would be called: %d match, all of them are left out", p.Matched)
	}
	f := FanOut{ID: uuid.Must(uuid.NewV7()), Actor: r.Actor, Query: r.Query, Tool: r.Tool, Arguments: r.Arguments,
		MaxInFlight: r.MaxInFlight, Timeout: r.Timeout, State: FanOutRunning, Targets: p.Targets,
		Skipped: p.Matched - p.Targets, CreatedAt: s.now()}
	if err := s.CreateFanOut(ctx, &f, targets); err != nil {
		return FanOut{}, err
	}
	s.launch(f)
	s.announce(f.ID)
	return f, nil
}

// Cancel ends a fan-out: what was sent runs to its outcome, the rest is not sent.
func (s *FanOuts) Cancel(ctx context.Context, by Actor, id uuid.UUID) error {
	if err := by.May(RoleOperator, "canceling a fan-out"); err != nil {
		return err
	}
	f, err := s.FanOut(ctx, id)
	if err != nil {
		return err
	}
	if f.State != FanOutRunning {
		return Errorf(ErrConflict, "not_running", "the fan-out is %s already", f.State)
	}
	if err := s.FinishFanOut(ctx, by, id, FanOutCanceled, s.now()); err != nil {
		return err
	}
	s.mu.Lock()
	if cancel := s.cancels[id]; cancel != nil {
		cancel()
	}
	s.mu.Unlock()
	s.announce(id)
	return nil
}

func (r *FanOutRequest) check() error {
	if err := r.Actor.May(RoleOperator, "a fan-out"); err != nil {
		return err
	}
	if r.MaxInFlight == 0 {
		r.MaxInFlight = DefaultInFlight
	}
	if r.MaxInFlight < 1 || r.MaxInFlight > MaxInFlight {
		return Errorf(ErrInvalid, "invalid_max_in_flight", "at most %d calls can be in flight at once, and at least 1", MaxInFlight)
	}
	if OwnsURL(r.Tool) && r.Tool != ToolSnapshot {
		return Errorf(ErrInvalid, "not_for_many", "%s takes a picture per call; make it from the device's page", r.Tool)
	}
	if len(r.Arguments) == 0 {
		r.Arguments = json.RawMessage("{}")
	}
	return checkRequest(CallRequest{Tool: r.Tool, Arguments: r.Arguments, Timeout: r.Timeout})
}

// resolve finds the audience of a checked request, and judges each device as
// the gate will.
func (s *FanOuts) resolve(ctx context.Context, r FanOutRequest) (FanOutPreview, []FanOutTarget, error) {
	ids, err := s.audience(ctx, r)
	if err != nil {
		return FanOutPreview{}, nil, err
	}
	p := FanOutPreview{}
	skipped := map[string]*SkippedDevices{}
	var targets []FanOutTarget
	for page := range slices.Chunk(ids, fanOutPage) {
		known, err := s.calls.o.Targets.load(ctx, page, s.now())
		if err != nil {
			return FanOutPreview{}, nil, err
		}
		for _, id := range page {
			t := known[id]
			if t == nil {
				continue // an id that names no device
			}
			target := FanOutTarget{Device: id, Reason: s.reason(t, r)}
			targets = append(targets, target)
			p.count(t, target.Reason, skipped, r.Tool)
		}
	}
	p.Skipped = sortSkipped(skipped)
	return p, targets, nil
}

func (s *FanOuts) audience(ctx context.Context, r FanOutRequest) ([]DeviceID, error) {
	ids := slices.Clone(r.Devices)
	if len(ids) == 0 {
		q, err := ParseQuery(r.Query)
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
		return nil, Errorf(ErrInvalid, "audience_too_large", "%d devices match; a fan-out takes %d", len(ids), MaxFanOutDevices)
	}
	return ids, nil
}

// reason asks the gate, as the call itself will; "" lets the device in.
func (s *FanOuts) reason(t *target, r FanOutRequest) string {
	request := CallRequest{Actor: r.Actor, Device: t.device.ID, Tool: r.Tool, Arguments: r.Arguments, FanOut: uuid.Max, now: s.now()}
	if r.Tool == ToolSnapshot {
		args, err := withURL(r.Arguments, "http://fleetd.invalid/")
		if err != nil {
			return "invalid_arguments"
		}
		request.Arguments = args
	}
	if no := s.calls.gate.check(t, request); no != nil {
		return no.err.Code
	}
	return ""
}

func (p *FanOutPreview) count(t *target, reason string, skipped map[string]*SkippedDevices, tool string) {
	p.Matched++
	if listed, ok := t.inventory.Tool(tool); ok && listed.UserOnly() {
		p.UserOnly = true
	}
	if reason == "" {
		p.Targets++
		if t.device.Presence != PresenceOnline && t.device.Presence != PresenceUnresponsive {
			p.Offline++
		}
		return
	}
	group := skipped[reason]
	if group == nil {
		group = &SkippedDevices{Reason: reason}
		skipped[reason] = group
	}
	if group.Count++; len(group.Sample) < previewSampleSize {
		group.Sample = append(group.Sample, t.device.ID)
	}
}

func sortSkipped(groups map[string]*SkippedDevices) []SkippedDevices {
	var out []SkippedDevices
	for _, reason := range slices.Sorted(maps.Keys(groups)) {
		out = append(out, *groups[reason])
	}
	slices.SortStableFunc(out, func(a, b SkippedDevices) int { return b.Count - a.Count })
	return out
}

// launch starts carrying a fan-out out, unless fleetd is not up yet (Run will
// find it on record) or is stopping.
func (s *FanOuts) launch(f FanOut) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == nil || s.life.Err() != nil || s.cancels[f.ID] != nil {
		return
	}
	ctx, cancel := context.WithCancel(s.life)
	s.cancels[f.ID] = cancel
	s.running.Go(func() {
		defer cancel()
		s.carryOut(ctx, f)
		s.mu.Lock()
		delete(s.cancels, f.ID)
		s.mu.Unlock()
	})
}

// carryOut calls every waiting target and closes the fan-out. When ctx ends it
// stops sending and leaves the record as it is.
func (s *FanOuts) carryOut(ctx context.Context, f FanOut) {
	live, stopLive := context.WithCancel(ctx)
	defer stopLive()
	go s.announceWhile(live, f.ID)
	if err := s.callAll(ctx, f); err != nil {
		if ctx.Err() == nil {
			s.log.Error("fan-out stopped; it goes on at the next start", "fanout", f.ID, "err", err)
		}
		return
	}
	system := Actor{Kind: ActorSystem, Name: "fleetd"}
	if err := s.FinishFanOut(context.WithoutCancel(ctx), system, f.ID, FanOutCompleted, s.now()); err != nil {
		s.log.Error("end of fan-out not stored", "fanout", f.ID, "err", err)
	}
	s.announce(f.ID)
}

// callAll feeds the waiting targets to as many workers as calls may be in flight.
func (s *FanOuts) callAll(ctx context.Context, f FanOut) error {
	targets := make(chan DeviceID)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var workers sync.WaitGroup
	for range min(f.MaxInFlight, f.Targets) {
		workers.Go(func() {
			for id := range targets {
				if err := s.callOne(f, id); err != nil {
					fail(err)
				}
			}
		})
	}
	err := s.feed(ctx, f, targets)
	close(targets)
	workers.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func (s *FanOuts) feed(ctx context.Context, f FanOut, targets chan<- DeviceID) error {
	after := DeviceID("")
	for {
		page, err := s.PendingTargets(ctx, f.ID, after, fanOutPage)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, id := range page {
			select {
			case targets <- id:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		after = page[len(page)-1]
	}
}

func (s *FanOuts) callOne(f FanOut, id DeviceID) error {
	_, err := s.calls.Call(context.Background(), CallRequest{Actor: f.Actor, Device: id, Tool: f.Tool,
		Arguments: f.Arguments, Timeout: f.Timeout, FanOut: f.ID})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// announceWhile tells live views of the progress a few times a second.
func (s *FanOuts) announceWhile(ctx context.Context, id uuid.UUID) {
	tick := time.NewTicker(fanOutAnnounce)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.announce(id)
		case <-ctx.Done():
			return
		}
	}
}

func (s *FanOuts) announce(id uuid.UUID) {
	s.events.Publish(Event{Kind: EventFanOut, At: s.now(), Subject: id.String()})
}
