package call

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// ApprovalsOptions configures [Approvals]. Fields without a default are required.
type ApprovalsOptions struct {
	Store   ApprovalStore
	Calls   *Service
	FanOuts *FanOuts
	Events  *fleet.Events
	Log     *slog.Logger     // nil: silent
	Now     func() time.Time // nil: time.Now
	Sweep   time.Duration    // between two searches for expired approvals. Default: 5s
	// Observe receives each end of an approval, for metrics. Nil: not called.
	Observe func(ApprovalState)
}

// Approvals lets people decide about calls and fan-outs that a policy makes wait for an approval.
type Approvals struct {
	o       ApprovalsOptions
	waiting atomic.Int64 // at the last count
}

// NewApprovals returns the service; [Approvals.Run] ends expired approvals.
func NewApprovals(o ApprovalsOptions) *Approvals {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() }
	}
	if o.Observe == nil {
		o.Observe = func(ApprovalState) {}
	}
	o.Sweep = cmp.Or(o.Sweep, 5*time.Second)
	return &Approvals{o: o}
}

// Get returns an approval, or [fleet.ErrNotFound], also if the principal may not see one of its
// devices.
func (s *Approvals) Get(ctx context.Context, by fleet.Principal, id uuid.UUID) (Approval, error) {
	a, err := s.o.Store.Approval(ctx, id)
	if err != nil {
		return Approval{}, err
	}
	if seen, err := s.sees(ctx, by, a); err != nil || !seen {
		return Approval{}, cmp.Or(err, fmt.Errorf("approval %s: %w", id, fleet.ErrNotFound))
	}
	return a, nil
}

// List returns a page of approvals, newest first. The page is shorter than its limit if the
// principal may not see some of the approvals.
func (s *Approvals) List(ctx context.Context, by fleet.Principal, f ApprovalFilter) (fleet.Page[Approval], error) {
	page, err := s.o.Store.Approvals(ctx, f)
	if err != nil || !by.Hides() {
		return page, err
	}
	all := page.Items
	page.Items = nil
	for _, a := range all {
		seen, err := s.sees(ctx, by, a)
		if err != nil {
			return fleet.Page[Approval]{}, err
		}
		if seen {
			page.Items = append(page.Items, a)
		}
	}
	return page, nil
}

// Waiting returns how many approvals wait, for all people together. It reads no database: the
// count is at most a few seconds old.
func (s *Approvals) Waiting() int { return int(s.waiting.Load()) }

// WaitingFor returns how many waiting approvals the principal may see, for a badge: at most
// [fleet.MaxLimit], and 0 if the database fails.
func (s *Approvals) WaitingFor(ctx context.Context, by fleet.Principal) int {
	n := s.Waiting()
	if n == 0 || !by.Hides() {
		return n
	}
	page, err := s.List(ctx, by, ApprovalFilter{States: []ApprovalState{ApprovalWaiting}, Limit: fleet.MaxLimit})
	if err != nil {
		return 0
	}
	return len(page.Items)
}

// Targets returns the devices of an approval, sorted.
func (s *Approvals) Targets(ctx context.Context, a Approval) ([]fleet.DeviceID, error) {
	if a.Subject == ApprovalOfCall {
		return []fleet.DeviceID{a.Device}, nil
	}
	targets, err := s.o.Store.ApprovalTargets(ctx, a.SubjectID)
	ids := make([]fleet.DeviceID, len(targets))
	for i, t := range targets {
		ids[i] = t.Device
	}
	return ids, err
}

// Now returns the device's current description of a call's tool, and whether the approval would
// be refused because of it or because of the device's firmware.
func (s *Approvals) Now(ctx context.Context, a Approval) (tool fleet.Tool, what Stale, stale bool, err error) {
	t, err := s.o.Calls.readTarget(ctx, Request{Device: a.Device, Tool: a.Tool, now: s.o.Now()})
	if err != nil {
		return fleet.Tool{}, "", false, err
	}
	what, stale = a.build().differs(s.o.Calls.gate.build(t))
	return t.tool, what, stale, nil
}

func (s *Approvals) sees(ctx context.Context, by fleet.Principal, a Approval) (bool, error) {
	if !by.Hides() {
		return true, nil
	}
	err := s.eachTarget(ctx, a, func(d fleet.Device) error {
		if !by.Sees(d) {
			return fleet.ErrNotFound
		}
		return nil
	})
	if errors.Is(err, fleet.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// eachTarget calls do for each device of an approval, until do fails.
func (s *Approvals) eachTarget(ctx context.Context, a Approval, do func(fleet.Device) error) error {
	ids, err := s.Targets(ctx, a)
	if err != nil {
		return err
	}
	for page := range slices.Chunk(ids, fanOutPage) {
		known, err := s.o.Calls.o.Targets.Load(ctx, page, s.o.Now())
		if err != nil {
			return err
		}
		for _, id := range page {
			t := known[id]
			if t == nil {
				return fmt.Errorf("device %s: %w", id, fleet.ErrNotFound)
			}
			if err := do(t.Device); err != nil {
				return err
			}
		}
	}
	return nil
}

// May returns nil if the principal may decide about the approval: it has the role operator on
// every device, is not a model, and is neither the asker nor linked to the asker by a token
// that one of them made.
func (s *Approvals) May(ctx context.Context, by fleet.Principal, a Approval) error {
	err := s.eachTarget(ctx, a, func(d fleet.Device) error { return by.MayOn(d, fleet.RoleOperator, "decide_approval") })
	if err != nil {
		return err
	}
	if by.Kind != fleet.KindOperator && by.Kind != fleet.KindProgram {
		return fleet.Refuse(fleet.ErrForbidden, "person_needed", "actor", by.Name)
	}
	line, _, err := s.o.Store.PrincipalLine(ctx, by)
	if err != nil {
		return err
	}
	if by.Same(a.AskedBy) || slices.ContainsFunc(line, func(id string) bool { return slices.Contains(a.AskedLine, id) }) {
		return fleet.Refuse(fleet.ErrForbidden, "own_approval", "actor", by.Name, "asker", a.AskedBy.Name)
	}
	return nil
}

// mayApprove is [Approvals.May] for an approval: the principal must also be allowed to call the
// tool.
func (s *Approvals) mayApprove(ctx context.Context, by fleet.Principal, a Approval) error {
	if !by.Scope.AllowsTool(a.Tool) {
		return fleet.Refuse(fleet.ErrForbidden, "tool_not_allowed", "actor", by.Name, "tool", a.Tool)
	}
	return s.May(ctx, by, a)
}

// Approve lets a call or fan-out go on. It returns once the decision is recorded; the call's
// outcome follows as an [fleet.EventCall].
func (s *Approvals) Approve(ctx context.Context, by fleet.Principal, id uuid.UUID, reason string) (Approval, error) {
	d, a, err := s.begin(ctx, by, id, ApprovalApproved, reason, s.mayApprove)
	if err != nil {
		return Approval{}, err
	}
	asker, err := s.principalNow(ctx, a.AskedBy)
	switch {
	case errors.Is(err, fleet.ErrActorGone):
		return Approval{}, s.stale(ctx, a, d, StaleAsker)
	case err != nil:
		return Approval{}, err
	}
	if a.Subject == ApprovalOfFanOut {
		err = s.approveFanOut(ctx, asker, a, d)
	} else {
		err = s.approveCall(ctx, asker, a, d)
	}
	if err != nil {
		return Approval{}, err
	}
	return s.decided(ctx, a.ID)
}

// Deny refuses a call or fan-out.
func (s *Approvals) Deny(ctx context.Context, by fleet.Principal, id uuid.UUID, reason string) (Approval, error) {
	d, _, err := s.begin(ctx, by, id, ApprovalDenied, reason, s.May)
	if err != nil {
		return Approval{}, err
	}
	d.Code = CodeApprovalDenied
	return s.end(ctx, d)
}

// Withdraw ends an approval on behalf of its asker.
func (s *Approvals) Withdraw(ctx context.Context, by fleet.Principal, id uuid.UUID, reason string) (Approval, error) {
	d, _, err := s.begin(ctx, by, id, ApprovalWithdrawn, reason, s.asked)
	if err != nil {
		return Approval{}, err
	}
	d.Code = CodeApprovalWithdrawn
	return s.end(ctx, d)
}

// asked returns nil for the asker and for the principal that made the asker's token, but not
// for the asker's other tokens.
func (s *Approvals) asked(ctx context.Context, by fleet.Principal, a Approval) error {
	line, _, err := s.o.Store.PrincipalLine(ctx, by)
	if err != nil {
		return err
	}
	if !by.Same(a.AskedBy) && (len(line) == 0 || !slices.Contains(a.AskedLine, line[0])) {
		return fleet.Refuse(fleet.ErrForbidden, "not_the_asker", "actor", by.Name, "asker", a.AskedBy.Name)
	}
	return nil
}

// begin reads an approval for a decision, and checks that the principal may decide.
func (s *Approvals) begin(ctx context.Context, by fleet.Principal, id uuid.UUID, to ApprovalState, reason string,
	may func(context.Context, fleet.Principal, Approval) error) (ApprovalDecision, Approval, error) {
	by, err := s.principalNow(ctx, by)
	d := ApprovalDecision{ID: id, State: to, By: by, At: s.o.Now()}
	if err != nil {
		return d, Approval{}, err
	}
	if d.Reason, err = fleet.CleanLine("reason", reason, fleet.MaxReasonLength); err != nil {
		return d, Approval{}, err
	}
	a, err := s.Get(ctx, by, id)
	if err != nil {
		return d, a, err
	}
	if err := may(ctx, by, a); err != nil {
		return d, a, err
	}
	if state := a.StateAt(d.At); state != ApprovalWaiting {
		return d, a, notWaiting(a, state)
	}
	return d, a, nil
}

// principalNow reads a principal's current rights: a recorded approval has the asker's name and
// role, but neither scope nor tools.
func (s *Approvals) principalNow(ctx context.Context, p fleet.Principal) (fleet.Principal, error) {
	if s.o.Calls.o.Authority != nil {
		return s.o.Calls.principalNow(ctx, p)
	}
	now, err := s.o.Store.PrincipalNow(ctx, p, s.o.Now())
	if errors.Is(err, fleet.ErrNotFound) {
		err = fleet.ActorGone(p)
	}
	return now, err
}

func notWaiting(a Approval, state ApprovalState) error {
	return fleet.Refuse(fleet.ErrConflict, "approval_not_waiting", "state", fleet.Because("state."+string(state)), "actor",
		a.DecidedBy.Name)
}

// end records a decision after which no call is made.
func (s *Approvals) end(ctx context.Context, d ApprovalDecision) (Approval, error) {
	if err := s.o.Store.Decide(context.WithoutCancel(ctx), d); err != nil {
		return Approval{}, err
	}
	return s.decided(ctx, d.ID)
}

// stale expires an outdated approval and returns the conflict.
func (s *Approvals) stale(ctx context.Context, a Approval, d ApprovalDecision, what Stale) error {
	d.State, d.By, d.Reason, d.Code, d.Stale = ApprovalExpired, systemActor, "", CodeApprovalStale, what
	if _, err := s.end(ctx, d); err != nil {
		return err
	}
	return what.refused(a.Tool)
}

// decided announces the end of an approval and returns its record.
func (s *Approvals) decided(ctx context.Context, id uuid.UUID) (Approval, error) {
	a, err := s.o.Store.Approval(context.WithoutCancel(ctx), id)
	if err != nil {
		return a, err
	}
	s.ended(ctx, a)
	s.count(ctx)
	return a, nil
}

// ended announces the end of an approval, and the end of the wait of its call or fan-out.
func (s *Approvals) ended(ctx context.Context, a Approval) {
	s.o.Observe(a.State)
	s.o.Calls.announceApproval(&a)
	if a.Subject == ApprovalOfFanOut {
		s.o.FanOuts.announce(a.SubjectID)
		return
	}
	if c, err := s.o.Calls.Get(fleet.WithoutScope(context.WithoutCancel(ctx)), a.SubjectID); err == nil {
		if c.State.Final() && a.State != ApprovalApproved {
			s.o.Calls.o.Observe(&c)
		}
		s.o.Calls.announce(&c)
	}
}

func (s *Approvals) count(ctx context.Context) {
	if n, err := s.o.Store.WaitingApprovals(context.WithoutCancel(ctx), s.o.Now()); err == nil {
		s.waiting.Store(int64(n))
	}
}

// approveCall sends the call through the gate once more, then continues it.
func (s *Approvals) approveCall(ctx context.Context, asker fleet.Principal, a Approval, d ApprovalDecision) error {
	c, err := s.o.Calls.Get(fleet.WithoutScope(ctx), a.SubjectID)
	if err != nil {
		return err
	}
	now, err := s.o.Calls.targetsNow(ctx, []fleet.DeviceID{c.Device}, c.Tool)
	if err != nil {
		return err
	}
	if what, stale := a.build().differs(now[0].Build); stale {
		return s.stale(ctx, a, d, what)
	}
	digest := ApprovalDigest(asker, now, c.Tool, c.Arguments, a.Picture, a.Interrupt, c.WaitUntil,
		a.PolicyVersion)
	named := []ApprovalTarget{{a.Device, a.build()}}
	shown := ApprovalDigest(a.AskedBy, named, a.Tool, a.Arguments, a.Picture, a.Interrupt, a.WaitUntil,
		a.PolicyVersion)
	if digest != a.Digest || shown != a.Digest || !asker.Same(c.Actor) {
		return s.stale(ctx, a, d, StaleCall)
	}
	arguments, err := s.o.Calls.trueArguments(c.ID, c.Arguments, c.Sealed)
	if err != nil {
		return err
	}
	var wait time.Duration
	if c.WaitUntil != nil { // the time that the decision took does not prolong the wait
		wait = max(0, c.WaitUntil.Sub(s.o.Now()))
	}
	err = s.o.Calls.resume(ctx, c, Request{Actor: asker, Device: c.Device, Tool: c.Tool, Arguments: arguments,
		Picture: a.Picture, Interrupt: a.Interrupt, OfflineWait: wait,
		grant: &grant{a.PolicyVersion, a.build(), d.By}}, func(c *fleet.Call) error {
		d.Call = c
		return s.o.Store.Decide(context.WithoutCancel(ctx), d)
	})
	var stale *staleError
	if errors.As(err, &stale) {
		return s.stale(ctx, a, d, stale.what)
	}
	return err
}

// build returns the tool and firmware that the approval of a call names.
func (a Approval) build() ToolBuild {
	if len(a.Builds) == 0 {
		return ToolBuild{}
	}
	return a.Builds[0].ToolBuild
}

// A staleError means that an approval is outdated.
type staleError struct{ what Stale }

func (e *staleError) Error() string { return fmt.Sprintf("the approval is stale: %q", e.what) }

// approveFanOut starts the fan-out. Each of its calls goes through the gate.
func (s *Approvals) approveFanOut(ctx context.Context, asker fleet.Principal, a Approval, d ApprovalDecision) error {
	f, err := s.o.FanOuts.Get(ctx, a.SubjectID)
	if err != nil {
		return err
	}
	named, err := s.o.Store.ApprovalTargets(ctx, f.ID)
	if err != nil {
		return err
	}
	targets := make([]fleet.DeviceID, len(named))
	for i, t := range named {
		targets[i] = t.Device
	}
	now, err := s.o.Calls.targetsNow(ctx, targets, f.Tool)
	if err != nil {
		return err
	}
	for i, t := range named {
		if what, stale := t.Build.differs(now[i].Build); stale {
			return s.stale(ctx, a, d, what)
		}
	}
	digest := ApprovalDigest(asker, now, f.Tool, f.Arguments, "", f.interrupts(), nil, f.PolicyVersion)
	shown := ApprovalDigest(a.AskedBy, named, a.Tool, a.Arguments, "", a.Interrupt, nil, a.PolicyVersion)
	if digest != a.Digest || shown != a.Digest || !slices.Equal(countBuilds(named), a.Builds) {
		return s.stale(ctx, a, d, StaleCall)
	}
	current, err := s.o.Calls.policyVersion(ctx, asker, targets, f.Tool, f.Arguments)
	if err != nil {
		return err
	}
	if current != a.PolicyVersion {
		return s.stale(ctx, a, d, StaleCall)
	}
	if err := s.o.Store.Decide(context.WithoutCancel(ctx), d); err != nil {
		return err
	}
	if f, err = s.o.FanOuts.Get(context.WithoutCancel(ctx), f.ID); err != nil {
		return err
	}
	s.o.FanOuts.launch(f, nil)
	return nil
}

// Run expires approvals until ctx ends.
func (s *Approvals) Run(ctx context.Context) error {
	tick := time.NewTicker(s.o.Sweep)
	defer tick.Stop()
	for failing := false; ; {
		expired, err := s.o.Store.ExpireApprovals(ctx, s.o.Now())
		if err != nil && ctx.Err() == nil && !failing {
			s.o.Log.Error("approvals that have expired are not ended yet; trying again", "err", err)
		}
		failing = err != nil
		for _, a := range expired {
			s.ended(ctx, a)
		}
		s.count(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// announceApproval publishes an event about an approval.
func (s *Service) announceApproval(a *Approval) {
	s.o.Events.Publish(fleet.Event{Kind: fleet.EventApproval, At: s.o.Now(), Device: a.Device, Subject: a.ID.String()})
}

// policyVersion returns the version of the policy that judges these calls now.
func (s *Service) policyVersion(ctx context.Context, asker fleet.Principal, devices []fleet.DeviceID, tool string,
	arguments []byte) (int64, error) {
	for _, id := range devices {
		t, err := s.o.Targets.Get(ctx, id, s.o.Now())
		if errors.Is(err, fleet.ErrNotFound) {
			continue
		}
		if err != nil {
			return 0, err
		}
		listed, _ := t.Inventory.Tool(tool)
		return s.gate.policy.Judge(&Proposal{Principal: asker, Device: &t.Device, Tool: listed, Arguments: arguments,
			At: s.o.Now(), Preview: true}).Version, nil
	}
	return 0, nil
}

// targetsNow returns the current tool and firmware of devices, in the same order. It reads
// cached devices again first.
func (s *Service) targetsNow(ctx context.Context, ids []fleet.DeviceID, tool string) ([]ApprovalTarget, error) {
	named := make([]ApprovalTarget, len(ids))
	for i, id := range ids {
		s.o.Targets.Forget(id)
		named[i].Device = id
	}
	for at := range slices.Chunk(named, fanOutPage) {
		page := make([]fleet.DeviceID, len(at))
		for i, t := range at {
			page[i] = t.Device
		}
		known, err := s.o.Targets.Load(ctx, page, s.o.Now())
		if err != nil {
			return nil, err
		}
		for i, t := range at {
			if now := known[t.Device]; now != nil {
				at[i].Build = s.gate.build(targetOf(now, tool))
			}
		}
	}
	return named, nil
}

// resume continues a call that waited for its approval. The gate judges the call once more,
// decide records the end of the wait with the gate's result, and only then does the call join
// the device's line. An error means that the call was not sent: a [staleError] before decide,
// another error after it.
func (s *Service) resume(ctx context.Context, c fleet.Call, r Request, decide func(*fleet.Call) error) error {
	r.now = s.o.Now()
	if err := s.enter(); err != nil {
		return err
	}
	a := &attempt{calls: s, asked: r, call: &c, wire: r.Arguments, shown: c.Arguments, wait: wait{kind: approvalWait}}
	if err := a.approved(ctx, decide); err != nil {
		a.leave()
		s.running.Done()
		return err
	}
	if !c.State.Final() {
		go a.send()
		return nil
	}
	defer s.running.Done()
	if err := a.finish(); err != nil { // no effect if the gate's refusal is on record
		s.o.Log.Error("outcome of an approved call not stored", "call", c.ID, "device", c.Device, "err", err)
	}
	return nil
}

// approved takes the call through the steps of [Service.resume].
func (a *attempt) approved(ctx context.Context, decide func(*fleet.Call) error) (err error) {
	r := a.asked
	if a.target, err = a.calls.readTarget(ctx, r); err != nil {
		return err
	}
	if a.call.State != fleet.CallPendingApproval {
		return fleet.Refuse(fleet.ErrConflict, "approval_not_waiting", "state", fleet.Because("state."+string(a.call.State)), "actor", "")
	}
	a.call.State = fleet.CallPending
	switch no := a.admit(ctx, r); {
	case no == nil && r.OfflineWait > 0:
		a.waitFor(deviceWait, fleet.Reason{})
	case no == nil:
	case no.err.Code == CodeApprovalStale:
		return &staleError{no.stale}
	default:
		a.close(no.state, &no.err)
	}
	if err := decide(a.call); err != nil {
		if rowRefused(err) || errors.Is(err, fleet.ErrNotStored) {
			return err
		}
		if !a.call.State.Final() { // the decision may be on record, but the call was not made
			a.neverSent()
		}
		return a.unsettled(err)
	}
	_ = a.queue(a.calls.o.Interruptions.talk(r, r.now, r.now)) // the call has a record: an error is its outcome
	if !a.call.Waits.Is("") {
		a.calls.announce(a.call)
	}
	return nil
}
