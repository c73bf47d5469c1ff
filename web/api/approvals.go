package api

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/web/access"
)

func (a *api) registerApprovals() {
	const path, one = "/approvals", "/approvals/{id}"
	register(a, operation{id: "list-approvals", reach: access.List, models: fleet.ModelsMay, method: http.MethodGet, path: path, role: fleet.RoleViewer,
		summary: "List approvals, waiting and decided, newest first",
		about:   "Campaigns are approved separately: list campaigns in the state awaiting_approval."}, a.listApprovals)
	register(a, operation{id: "get-approval", reach: access.Audience, models: fleet.ModelsMay,
		method: http.MethodGet, path: one, role: fleet.RoleViewer, noun: "approval",
		summary: "Show an approval"}, a.getApproval)
	register(a, operation{id: "approve-call", reach: access.Audience, models: fleet.ModelsNever,
		method: http.MethodPost, path: one + "/approve", role: fleet.RoleOperator,
		noun:    "approval",
		summary: "Approve a call or a fan-out",
		about: "The call then continues as if it had just been made. The requester, the creator of the requester's token, and tokens created by either cannot approve; language models never can. " +
			"approval_stale: the policy, the call, the tool's description or the firmware of a device changed since it was asked for; make the call again."}, a.approveCall)
	register(a, operation{id: "deny-call", reach: access.Audience, models: fleet.ModelsNever,
		method: http.MethodPost, path: one + "/deny", role: fleet.RoleOperator,
		noun:    "approval",
		summary: "Deny a call or a fan-out", about: "The call ends as refused, with the code approval_denied."}, a.denyCall)
	register(a, operation{id: "withdraw-call", reach: access.Audience, models: fleet.ModelsOwn,
		method: http.MethodPost, path: one + "/withdraw", role: fleet.RoleOperator,
		noun:    "approval",
		summary: "Withdraw a request for approval", about: "For the requester and the creator of the requester's token."}, a.withdrawCall)
}

// CallApprovalView is the approval of a call or a fan-out.
type CallApprovalView struct {
	ID            uuid.UUID            `json:"id" format:"uuid"`
	State         call.ApprovalState   `json:"state" enum:"waiting,approved,denied,expired,withdrawn"`
	Subject       call.ApprovalSubject `json:"subject" enum:"call,fanout"`
	CallID        *uuid.UUID           `json:"call_id" format:"uuid" nullable:"true"`
	FanOutID      *uuid.UUID           `json:"fanout_id" format:"uuid" nullable:"true"`
	DeviceID      *fleet.DeviceID      `json:"device_id" nullable:"true" doc:"Of a call"`
	Query         string               `json:"q" doc:"Filter of a fan-out; empty when the devices were named"`
	Targets       int                  `json:"targets" doc:"Devices"`
	Tool          string               `json:"tool"`
	Arguments     json.RawMessage      `json:"arguments"`
	Interrupt     bool                 `json:"interrupt" doc:"It interrupts the devices' conversations"`
	WaitUntil     *time.Time           `json:"wait_until,omitempty" doc:"Latest time until which the call waits for its device to come back; omitted if it does not wait"`
	AskedBy       actorView            `json:"asked_by"`
	Person        string               `json:"person" doc:"Operator who created the requesting token; empty if an operator made the request"`
	Purpose       string               `json:"purpose" doc:"Reason given by the requester; untrusted text"`
	Rule          string               `json:"rule" doc:"Id of the rule that requires approval"`
	RuleName      string               `json:"rule_name"`
	PolicyVersion int64                `json:"policy_version"`
	Builds        []approvalBuildView  `json:"builds" nullable:"false" doc:"The devices' firmware and descriptions of the tool, by groups of identical devices, largest first, at most 50. If these change, the call is not made. Empty: requested before fleetd recorded this, so it cannot be approved"`
	Digest        string               `json:"digest" doc:"SHA-256 of requester, devices with their builds, tool, arguments, interrupt, wait_until and policy version, to which the approval applies"`
	CreatedAt     time.Time            `json:"created_at"`
	ExpiresAt     time.Time            `json:"expires_at"`
	DecidedBy     *actorView           `json:"decided_by" doc:"null while it waits"`
	DecidedAt     *time.Time           `json:"decided_at"`
	Reason        string               `json:"reason" doc:"Given with the decision"`
	Code          string               `json:"code" doc:"Code of its refusal: approval_denied, approval_expired, approval_stale or approval_withdrawn; otherwise empty"`
	Stale         call.Stale           `json:"stale" enum:",asker,tool,firmware,before_update" doc:"For approval_stale, what has changed: the requester is no longer allowed to act, the tool's description, or the device's firmware; empty: the policy or the call"`
}

// approvalBuildView is the tool and build that some devices of an approval share.
type approvalBuildView struct {
	Tool    string `json:"tool_sha256" doc:"Digest of the tool as the devices describe it, as a tool pin has it"`
	ELF     string `json:"elf_sha256" doc:"SHA-256 of the running build; empty if the devices do not report it"`
	Version string `json:"version"`
	Devices int    `json:"devices"`
}

func approvalBuild(b call.BuildCount) approvalBuildView {
	return approvalBuildView{hex.EncodeToString(b.Tool[:]), b.ELF, b.Version, b.Devices}
}

// TransformSchema marks the objects that may be null.
func (CallApprovalView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "decided_by")
}

func callApproval(a call.Approval) CallApprovalView {
	v := CallApprovalView{ID: a.ID, State: a.StateAt(time.Now()), Subject: a.Subject, Query: a.Query, Targets: a.Targets,
		Tool: a.Tool, Arguments: rawOrNull(a.Arguments), Interrupt: a.Interrupt, WaitUntil: utcOrNil(a.WaitUntil),
		AskedBy: actor(a.AskedBy),
		Person:  a.Person, Purpose: a.Purpose, Rule: a.Rule, RuleName: a.RuleName, PolicyVersion: a.PolicyVersion,
		Digest: hex.EncodeToString(a.Digest[:]), Stale: a.Stale, Builds: listOf(a.Builds, approvalBuild).Body.Items,
		CreatedAt: utc(a.CreatedAt), ExpiresAt: utc(a.ExpiresAt), DecidedAt: utcOrNil(a.DecidedAt), Reason: a.Reason,
		Code: a.Code}
	if a.Subject == call.ApprovalOfCall {
		v.CallID, v.DeviceID = ptr(a.SubjectID), ptr(a.Device)
	} else {
		v.FanOutID = ptr(a.SubjectID)
	}
	if a.DecidedAt != nil {
		v.DecidedBy = ptr(actor(a.DecidedBy))
	}
	return v
}

type listApprovalsInput struct {
	Paging
	State  []string `query:"state" enum:"waiting,approved,denied,expired,withdrawn" doc:"One or several, separated by commas"`
	Device string   `query:"device" maxLength:"80" doc:"Only approvals of calls to this device"`
}

func (a *api) listApprovals(ctx context.Context, by fleet.Principal, in *listApprovalsInput) (
	*answer[list[CallApprovalView]], error) {
	f := call.ApprovalFilter{Limit: in.Limit, Cursor: in.Cursor}
	var err error
	if f.Device, err = deviceParam(in.Device); err != nil {
		return nil, err
	}
	for _, s := range in.State {
		f.States = append(f.States, call.ApprovalState(s))
	}
	page, err := a.Approvals.List(ctx, by, f)
	if err != nil {
		return nil, err
	}
	return pageOf(page, callApproval), nil
}

func (a *api) getApproval(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[CallApprovalView], error) {
	return approved(a.Approvals.Get(ctx, by, in.uuid()))
}

func approved(v call.Approval, err error) (*answer[CallApprovalView], error) {
	if err != nil {
		return nil, err
	}
	return answerWith(callApproval(v)), nil
}

type decideInput struct {
	IDPath
	Body *struct {
		Reason string `json:"reason,omitempty" maxLength:"300" doc:"Stored with the decision"`
	} `required:"false"`
}

func (in *decideInput) reason() string {
	if in.Body == nil {
		return ""
	}
	return in.Body.Reason
}

func (a *api) approveCall(ctx context.Context, by fleet.Principal, in *decideInput) (*answer[CallApprovalView], error) {
	return approved(a.Approvals.Approve(ctx, by, in.uuid(), in.reason()))
}

func (a *api) denyCall(ctx context.Context, by fleet.Principal, in *decideInput) (*answer[CallApprovalView], error) {
	return approved(a.Approvals.Deny(ctx, by, in.uuid(), in.reason()))
}

func (a *api) withdrawCall(ctx context.Context, by fleet.Principal, in *decideInput) (*answer[CallApprovalView],
	error) {
	return approved(a.Approvals.Withdraw(ctx, by, in.uuid(), in.reason()))
}
