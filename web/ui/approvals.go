package ui

import (
	"context"
	"encoding/hex"
	"net/url"
	"strconv"
	"time"

	"github.com/a-h/templ"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// Addresses of approvals.
const (
	PathApprovals = "/approvals" // GET state ("decided" or none), limit, cursor
)

// ApprovalPath is the page of an approval; POST "approve", "deny" or "withdraw"
// decides, with reason and confirm.
func ApprovalPath(id string, parts ...string) string {
	path := PathApprovals + "/" + url.PathEscape(id)
	for _, p := range parts {
		path += "/" + p
	}
	return path
}

// An ApprovalsPage is the inbox, or the decided approvals: GET [PathApprovals].
type ApprovalsPage struct {
	List      ListURL // with state
	Cards     []ApprovalCard
	Campaigns []CampaignNeed // waiting for an approval
	Next      string
}

func (v ApprovalsPage) decided() bool { return v.List.Get("state") == "decided" }

// An ApprovalPage is one approval: GET [ApprovalPath].
type ApprovalPage struct {
	Card ApprovalCard
}

// An ApprovalCard is an approval with the acts that its viewer may do. A live stream sends it as a
// patch.
type ApprovalCard struct {
	Approval   call.Approval
	DeviceName string
	Presence   fleet.Presence // of a call's device
	Sample     []fleet.Device // of a fan-out's devices
	Whole      bool           // on its own page: with all facts
	MayDecide  bool
	Own        bool // the viewer requested it, or is linked to the requester
	MayRecall  bool // the viewer may withdraw it
	Typed      string
	// Description is the device's description of the tool. Stale is set instead if the description
	// or the firmware differs from the approval's.
	Description string
	Stale       *call.Stale
	Problem     string // why the last act failed, in the page's language
}

func (v ApprovalCard) id() string { return v.Approval.ID.String() }

func (v ApprovalCard) state(ctx context.Context) call.ApprovalState {
	return v.Approval.StateAt(page(ctx).Now)
}

func (v ApprovalCard) waits(ctx context.Context) bool { return v.state(ctx) == call.ApprovalWaiting }

func (v ApprovalCard) isCall() bool { return v.Approval.Subject == call.ApprovalOfCall }

// subjectPath returns the page of the call or fan-out that waits.
func (v ApprovalCard) subjectPath() string {
	if v.isCall() {
		return CallPath(v.Approval.SubjectID.String())
	}
	return FanOutPath(v.Approval.SubjectID.String())
}

func (v ApprovalCard) digest() string { return hex.EncodeToString(v.Approval.Digest[:]) }

func toolDigest(b call.BuildCount) string { return hex.EncodeToString(b.Tool[:]) }

// staleText returns why an approval was outdated.
func (v ApprovalCard) staleText(ctx context.Context) string {
	switch v.Approval.Stale {
	case call.StaleAsker:
		return t(ctx, "approval.code.approval_stale.asker")
	case call.StaleTool:
		return t(ctx, "approval.code.approval_stale.tool")
	case call.StaleFirmware:
		return t(ctx, "approval.code.approval_stale.firmware")
	case call.StaleUpdate:
		return t(ctx, "approval.code.approval_stale.before_update")
	}
	return t(ctx, "approval.code.approval_stale")
}

// nowText returns why the present state of the device would make approving fail.
func (v ApprovalCard) nowText(ctx context.Context) string {
	switch *v.Stale {
	case call.StaleTool:
		return t(ctx, "approval.now.tool")
	case call.StaleFirmware:
		return t(ctx, "approval.now.firmware")
	}
	return t(ctx, "approval.now.before_update")
}

func (v ApprovalCard) hasArguments() bool { return arguments(v.Approval.Arguments) != "" }

func (v ApprovalCard) left(ctx context.Context) time.Duration {
	return max(v.Approval.ExpiresAt.Sub(page(ctx).Now), 0).Truncate(time.Second)
}

// Confirm returns the word that the viewer types to approve the tool; "" for most tools.
func (v ApprovalCard) Confirm() string {
	effect := fleet.EffectOf(v.Approval.Tool)
	if effect == fleet.EffectNone {
		return ""
	}
	if v.isCall() {
		return confirmations[effect].word
	}
	return strconv.Itoa(v.Approval.Targets)
}

// effect returns the message about the effect on the device; "" for none.
func (v ApprovalCard) effect() string {
	switch fleet.EffectOf(v.Approval.Tool) {
	case fleet.EffectLeaves:
		return "approval.leaves"
	case fleet.EffectRestarts:
		return "approval.restarts"
	}
	return ""
}

// approvalTones are the meanings of the states for an operator on call.
var approvalTones = map[call.ApprovalState]tone{call.ApprovalWaiting: toneBusy, call.ApprovalApproved: toneGood,
	call.ApprovalDenied: toneWarn, call.ApprovalExpired: toneNone, call.ApprovalWithdrawn: toneNone}

// ApprovalBadge returns the count in the navigation as a live stream sends it.
func ApprovalBadge(n int) templ.Component { return approvalBadge(n) }
