package call

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
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

// A Mandate says on whose behalf a campaign makes a call. Its principals have the
// rights that they have now: whoever makes the call reads them just before.
type Mandate struct {
	// Askers asked for the campaign. Each must have role operator on the device.
	Askers []fleet.Principal
	// Author wrote the call itself into the plan: a health check. It is judged as if
	// the author made it. nil: the call is the campaign's own.
	Author *fleet.Principal
}

// ReasonOnBehalf is the code of who asked for the call of a campaign.
const ReasonOnBehalf = "on_behalf"

// BehalfReasons are the codes of [fleet.EvidenceOnBehalf] with the names of their parameters.
var BehalfReasons = map[string][]string{ReasonOnBehalf: {"name"}}

// judged are the principals whose kind, tools and policies decide about the call:
// whoever makes it, and the author of a health check. The first refusal holds.
func (r *Request) judged(yield func(fleet.Principal) bool) {
	if yield(r.Actor) && r.Mandate != nil && r.Mandate.Author != nil {
		yield(*r.Mandate.Author)
	}
}

// standing are the principals that need role operator on the device: those judged,
// and who asked for the campaign.
func (r *Request) standing(yield func(fleet.Principal) bool) {
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

// interrupts reports whether the call is to interrupt a conversation. A language
// model cannot ask for that.
func (r Request) interrupts() bool {
	return r.Interrupt && Interrupts(r.Tool) && !r.Actor.Kind.IsModel()
}

// hasURL reports whether fleetd fills in an address: a one-time link, or that of the
// order of an upgrade.
func (r *Request) hasURL() bool { return r.Firmware != nil || fleet.OwnsURL(r.Tool) }

// mayWaitForDevice reports whether the call of this actor may wait until its device is
// back. A conversation ends with its device's connection, and campaigns
// and fan-outs wait on their own.
func (r Request) mayWaitForDevice() bool {
	return r.Actor.Kind != fleet.KindVoice && r.Actor.Kind != fleet.KindCampaign && r.Actor.Kind != fleet.KindSystem &&
		!r.isFanOut()
}

// waitUntil is rounded as the store keeps it.
func (r Request) waitUntil() *time.Time {
	return new(r.now.Add(r.OfflineWait).Truncate(time.Millisecond))
}

// check begins the record of a call, in memory, if the request is worth one. A caller
// that waits for the end of conversations itself has no record while one is under way.
func (a *attempt) check(ctx context.Context, talk *ConversationWait) (err error) {
	r := a.asked
	if err := checkRequest(r); err != nil {
		return err
	}
	if a.target, err = a.calls.o.Targets.Get(ctx, r.Device, r.now); err != nil {
		return err
	}
	if !r.Actor.Sees(a.target.Device) {
		return fmt.Errorf("device %s: %w", r.Device, fleet.ErrNotFound)
	}
	a.call, a.wire = newCall(r, a.target), r.Arguments
	if talk != nil && r.UnlessTalking {
		return ErrTalking
	}
	return nil
}

// checkRequest refuses what is not worth a record: it cannot be stored.
func checkRequest(r Request) error {
	switch {
	case r.Tool == "" || len(r.Tool) > 200:
		return fleet.Refuse(fleet.ErrInvalid, "invalid_tool.length", "limit", 200)
	case len(r.Arguments) > MaxArgumentBytes:
		return fleet.Refuse(fleet.ErrInvalid, "arguments_too_large", "size", len(r.Arguments), "limit", MaxArgumentBytes)
	case len(r.Arguments) > 0 && !json.Valid(r.Arguments):
		return fleet.Refuse(fleet.ErrInvalid, "invalid_arguments.not_json")
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

// checkPurpose holds the asker's reason to its limit.
func checkPurpose(purpose string) error {
	if len(purpose) > MaxPurposeBytes {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_purpose", "limit", MaxPurposeBytes).At("purpose")
	}
	return nil
}

// newCall is the record of a call that nothing is decided about.
func newCall(r Request, t *fleet.Target) *fleet.Call {
	c := &fleet.Call{ID: newCallID(r.now), Device: r.Device, Tool: r.Tool, Arguments: recorded(r.Arguments),
		Actor:  r.Actor,
		FanOut: r.FanOut, Approval: r.approval, State: fleet.CallPending, Timeout: r.Timeout, CreatedAt: r.now}
	if r.Mandate != nil {
		c.Evidence = r.Mandate.evidence(r.now)
	}
	if r.Firmware != nil {
		tool, _ := t.Inventory.Tool(r.Tool)
		c.Arguments, c.Timeout = r.Firmware.arguments(tool.InputSchema, redactToken(r.Firmware.URL)), r.Firmware.Timeout
	}
	if c.Timeout == 0 {
		c.Timeout = fleet.DefaultTimeout(r.Tool)
	}
	return c
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

// recorded are arguments as a record has them.
func recorded(arguments json.RawMessage) json.RawMessage {
	if len(arguments) == 0 {
		return json.RawMessage("{}")
	}
	return arguments
}

// evidence says on the call's record on whose behalf it is made: that of its author,
// else of whoever started the campaign, the last of the askers.
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
