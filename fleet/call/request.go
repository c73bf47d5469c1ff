package call

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/origin"
	"fleetd/fleet/redaction"
)

// A Request describes one tool call to make.
type Request struct {
	Actor     fleet.Principal
	Device    fleet.DeviceID
	Tool      string
	Arguments json.RawMessage // a JSON object; nil is {}
	Timeout   time.Duration   // 0: the tool's default
	FanOut    uuid.UUID
	// UnlessOffline makes the request fail with [fleet.ErrOffline], without a record, while the
	// device is not connected.
	UnlessOffline bool
	// OfflineWait is how long the call may wait for a disconnected device to return. 0: not at
	// all. See [fleet.CallPendingDevice].
	OfflineWait time.Duration
	// Interrupt makes the call without waiting for the end of a conversation; see [Interruptions].
	Interrupt bool
	// UnlessTalking makes the request fail with [ErrTalking], without a record, if the call
	// would have to wait for the end of a conversation: the caller waits instead. Outwaited is
	// the conversation for which the caller has waited long enough.
	UnlessTalking bool
	Outwaited     uuid.UUID
	// Withdraw, once closed, cancels a call that was not sent yet. A board continues a sent call; a
	// plug-in or an endpoint is notified that the call is cancelled. May be nil.
	Withdraw <-chan struct{}
	// OnProgress receives what a plug-in or an endpoint reports while it works. May be nil.
	OnProgress func(fleet.Progress)
	Purpose    string         // reason given by the caller, for the approver; at most [MaxPurposeBytes]
	Picture    string         // [fleet.ToolPreviewImage]: blob key of the picture to show
	Firmware   *FirmwareOrder // [fleet.ToolUpgradeFirmware]; only campaigns set it
	Mandate    *Mandate       // on whose behalf a campaign calls

	now     time.Time
	preview bool // judge only, do not call
	again   bool // judged before, and counted
	grant   *grant
	// approval is the id of the approval of the fan-out or of the call.
	approval uuid.UUID
	// stalled, if set, receives each failure to store the outcome that is retried.
	stalled func(error)
}

func (r Request) isFanOut() bool { return r.FanOut != uuid.Nil }

// mayAsk reports whether the call can wait for an approval. Calls of campaigns and of fleetd
// cannot; a call of a fan-out is either covered by the fan-out's approval or not allowed.
func (r Request) mayAsk() bool {
	return r.Firmware == nil && r.Actor.Kind != fleet.KindCampaign && r.Actor.Kind != fleet.KindSystem &&
		(r.preview || !r.isFanOut())
}

// A Mandate says on whose behalf a campaign makes a call. Its principals have their current
// rights: the campaign reads them just before the call.
type Mandate struct {
	// Askers requested the campaign. Each must have role operator on the device.
	Askers []fleet.Principal
	// Author wrote the call into the plan, as a health check. The call is judged as if the
	// author made it. nil: the call is the campaign's.
	Author *fleet.Principal
}

// ReasonOnBehalf is the reason code that names the person behind a campaign's call.
const ReasonOnBehalf = "on_behalf"

// BehalfReasons are the codes of [fleet.EvidenceOnBehalf] with the names of their parameters.
var BehalfReasons = map[string][]string{ReasonOnBehalf: {"name"}}

// judged yields the principals whose kind, tools and policies decide about the call: its actor,
// and the author of a health check. The first refusal decides.
func (r *Request) judged(yield func(fleet.Principal) bool) {
	if yield(r.Actor) && r.Mandate != nil && r.Mandate.Author != nil {
		yield(*r.Mandate.Author)
	}
}

// operators yields the principals that need role operator on the device: the judged ones and the
// askers of the campaign.
func (r *Request) operators(yield func(fleet.Principal) bool) {
	for by := range r.judged {
		if !yield(by) {
			return
		}
	}
	if r.Mandate == nil {
		return
	}
	for _, by := range r.Mandate.Askers {
		if !yield(by) {
			return
		}
	}
}

// interrupts reports whether the call may interrupt a conversation. A language model cannot
// request that.
func (r Request) interrupts() bool {
	return r.Interrupt && Interrupts(r.Tool) && !r.Actor.Kind.IsModel()
}

// hasURL reports whether fleetd fills in a URL: a one-time link, or the image's URL for an upgrade.
func (r *Request) hasURL() bool { return r.Firmware != nil || fleet.OwnsURL(r.Tool) }

// mayWaitForDevice reports whether the actor's call may wait for its device to return. A
// conversation ends with its device's connection; campaigns and fan-outs do their own waiting.
func (r Request) mayWaitForDevice() bool {
	return r.Actor.Kind != fleet.KindVoice && r.Actor.Kind != fleet.KindCampaign && r.Actor.Kind != fleet.KindSystem &&
		!r.isFanOut()
}

// waitUntil returns the end of the wait, rounded to the precision of the store.
func (r Request) waitUntil() *time.Time {
	return new(r.now.Add(r.OfflineWait).Truncate(time.Millisecond))
}

// check begins the record of a call in memory, if the request can be recorded. If the caller
// waits for the end of conversations, check makes no record during one.
func (a *attempt) check(ctx context.Context, talk *ConversationWait) (err error) {
	r := a.asked
	if err := checkRequest(r); err != nil {
		return err
	}
	if a.target, err = a.calls.readTarget(ctx, r); err != nil {
		return err
	}
	if !r.Actor.Sees(a.target.Device) {
		return fmt.Errorf("device %s: %w", r.Device, fleet.ErrNotFound)
	}
	a.call, a.wire = newCall(r, origin.Of(ctx)), r.Arguments
	a.redact()
	if talk != nil && r.UnlessTalking {
		return ErrTalking
	}
	return nil
}

// checkRequest refuses requests that cannot be stored.
func checkRequest(r Request) error {
	switch {
	case r.Tool == "" || len(r.Tool) > 200:
		return fleet.Refuse(fleet.ErrInvalid, "invalid_tool.length", "limit", 200)
	case len(r.Arguments) > argumentLimit(r.Device):
		return fleet.Refuse(fleet.ErrInvalid, "arguments_too_large", "size", len(r.Arguments), "limit",
			argumentLimit(r.Device))
	case len(r.Arguments) > 0 && !json.Valid(r.Arguments):
		return fleet.Refuse(fleet.ErrInvalid, "invalid_arguments.not_json")
	case redaction.Contains(r.Arguments):
		return ErrRedacted
	case r.Firmware != nil && (r.Tool != fleet.ToolUpgradeFirmware || r.Firmware.URL == "" || r.Firmware.Timeout <= 0):
		return fleet.Refuse(fleet.ErrInvalid, "invalid_order", "tool", fleet.ToolUpgradeFirmware)
	case r.OfflineWait < 0 || r.OfflineWait > MaxCallOfflineWait:
		return fleet.Refuse(fleet.ErrInvalid, "invalid_offline_wait", "limit", MaxCallOfflineWait.Milliseconds(),
			"limit_ms", MaxCallOfflineWait).At("offline_wait_ms")
	case r.OfflineWait > 0 && !r.mayWaitForDevice():
		return fleet.Refuse(fleet.ErrForbidden, "wait_not_for_actor", "actor", r.Actor.Name)
	case r.Timeout < 0 || r.Timeout > MaxTimeout:
		return fleet.Refuse(fleet.ErrInvalid, "invalid_timeout", "limit_ms", MaxTimeout)
	}
	return checkPurpose(r.Purpose)
}

// argumentLimit returns the maximum number of bytes of the arguments of a call.
func argumentLimit(id fleet.DeviceID) int {
	if id.IsProgram() {
		return MaxProgramArgumentBytes
	}
	return MaxArgumentBytes
}

// checkPurpose limits the length of the caller's reason.
func checkPurpose(purpose string) error {
	if len(purpose) > MaxPurposeBytes {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_purpose", "limit", MaxPurposeBytes).At("purpose")
	}
	return nil
}

// A target is the device of a call and its tool.
type target struct {
	*fleet.Target
	tool    fleet.Tool
	offered bool // the device has the tool
}

func (s *Service) readTarget(ctx context.Context, r Request) (target, error) {
	t, err := s.o.Targets.Get(ctx, r.Device, r.now)
	if err != nil {
		return target{}, err
	}
	if known := targetOf(t, r.Tool); known.offered {
		return known, nil
	}
	// The cache may be older than the listing that the caller saw.
	if t, err = s.o.Targets.Renewed(ctx, t, r.now); err != nil {
		return target{}, err
	}
	return targetOf(t, r.Tool), nil
}

func targetOf(t *fleet.Target, name string) target {
	tool, offered := t.Inventory.Tool(name)
	return target{t, tool, offered}
}

// newCall returns the record of a call before any decision about it.
func newCall(r Request, from origin.Origin) *fleet.Call {
	c := &fleet.Call{ID: callIDs.next(r.now), Device: r.Device, Tool: r.Tool, Arguments: recorded(r.Arguments),
		Actor: r.Actor, FanOut: r.FanOut, Approval: r.approval, State: fleet.CallPending, Timeout: r.Timeout,
		Origin: from, CreatedAt: r.now}
	if r.Mandate != nil {
		c.Evidence = r.Mandate.evidence(r.now)
	}
	if r.Firmware != nil {
		c.Timeout = r.Firmware.Timeout
	}
	if c.Timeout == 0 {
		c.Timeout = fleet.DefaultTimeout(r.Tool)
	}
	return c
}

// recorded returns the arguments in the form that records store.
func recorded(arguments json.RawMessage) json.RawMessage {
	if len(arguments) == 0 {
		return json.RawMessage("{}")
	}
	return arguments
}

// evidence records on whose behalf the call is made: its author, or else the last of the
// askers, who started the campaign.
func (m *Mandate) evidence(now time.Time) []fleet.Evidence {
	var by fleet.Principal
	switch {
	case m.Author != nil:
		by = *m.Author
	case len(m.Askers) > 0:
		by = m.Askers[len(m.Askers)-1]
	default:
		return nil
	}
	why := fleet.Because(ReasonOnBehalf, "name", by.Name)
	return []fleet.Evidence{{At: now, Kind: fleet.EvidenceOnBehalf, Detail: why.String(), Reason: why}}
}
