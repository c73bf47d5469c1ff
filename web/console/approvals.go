package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/web/access"
	"fleetd/web/ui"
)

// approvalRoutes are the pages about approvals.
func (s *Server) approvalRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	one := ui.PathApprovals + "/{approval}"
	return []route{
		{method: get, pattern: ui.PathApprovals, role: fleet.RoleViewer, reach: access.List, page: s.listApprovals},
		{method: get, pattern: one, role: fleet.RoleViewer, reach: access.Audience, page: s.showApproval},
		{method: post, pattern: one + "/approve", role: fleet.RoleOperator, reach: access.Audience,
			page: s.decideApproval(approveIt)},
		{method: post, pattern: one + "/deny", role: fleet.RoleOperator, reach: access.Audience,
			page: s.decideApproval(denyIt)},
		{method: post, pattern: one + "/withdraw", role: fleet.RoleOperator, reach: access.Audience,
			page: s.decideApproval(withdrawIt)},
	}
}

// approvalSample is how many devices of a fan-out are shown by name.
const approvalSample = 8

// campaignsShown is how many campaigns that wait for an approval are shown.
const campaignsShown = 10

func (s *Server) listApprovals(r *http.Request) (answer, error) {
	ctx := r.Context()
	page := ui.ApprovalsPage{List: listURL(r, ui.PathApprovals, "state")}
	f := call.ApprovalFilter{Limit: limitOf(page.List), Cursor: page.List.Get("cursor"),
		States: []call.ApprovalState{call.ApprovalWaiting}}
	if page.List.Get("state") == "decided" {
		f.States = []call.ApprovalState{call.ApprovalApproved, call.ApprovalDenied, call.ApprovalExpired,
			call.ApprovalWithdrawn}
	}
	found, err := s.Approvals.List(ctx, viewerOf(ctx).actor(), f)
	if errorCode(err) == "invalid_cursor" {
		return goTo(page.List.At(""))
	}
	if err != nil {
		return answer{}, err
	}
	page.Next = found.Next
	for _, a := range found.Items {
		card, err := s.approvalCard(ctx, a)
		if err != nil {
			return answer{}, err
		}
		page.Cards = append(page.Cards, card)
	}
	waiting, err := s.Campaigns.Campaigns(ctx, campaign.Filter{States: []campaign.State{campaign.AwaitingApproval},
		Limit: campaignsShown})
	for _, c := range waiting.Items {
		if n, ok := ui.NewCampaignNeed(c); ok {
			page.Campaigns = append(page.Campaigns, n)
		}
	}
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

// approvalCard adds the facts about the devices, and the acts that the viewer may do.
func (s *Server) approvalCard(ctx context.Context, a call.Approval) (ui.ApprovalCard, error) {
	card := ui.ApprovalCard{Approval: a}
	ids := []fleet.DeviceID{a.Device}
	waits := a.StateAt(s.now()) == call.ApprovalWaiting
	if a.Subject == call.ApprovalOfFanOut {
		ids = nil
		if waits {
			targets, err := s.Approvals.Targets(ctx, a)
			if err != nil {
				return card, err
			}
			ids = targets[:min(len(targets), approvalSample)]
		}
	}
	devices, err := s.Devices.DevicesByID(ctx, ids)
	if err != nil {
		return card, err
	}
	for _, d := range devices {
		if a.Subject == call.ApprovalOfCall {
			card.DeviceName, card.Presence = d.Name, d.Presence
		} else {
			card.Sample = append(card.Sample, d)
		}
	}
	if !waits {
		return card, nil
	}
	if a.Subject == call.ApprovalOfCall {
		tool, what, stale, err := s.Approvals.Now(ctx, a)
		if err != nil && !errors.Is(err, fleet.ErrNotFound) {
			return card, err
		}
		card.Description = tool.Description
		if stale {
			card.Description, card.Stale = "", &what
		}
	}
	by := viewerOf(ctx).actor()
	err = s.Approvals.May(ctx, by, a)
	card.MayDecide, card.Own = err == nil, errorCode(err) == "own_approval"
	card.MayRecall = by.Same(a.AskedBy) || slices.Contains(a.AskedLine, by.ID)
	if err != nil && !errors.Is(err, fleet.ErrForbidden) && !errors.Is(err, fleet.ErrNotFound) {
		return card, err
	}
	return card, nil
}

// approval reads the approval in the address.
func (s *Server) approval(r *http.Request) (call.Approval, error) {
	id, err := uuid.Parse(chi.URLParam(r, "approval"))
	if err != nil {
		return call.Approval{}, errNoPage
	}
	return s.Approvals.Get(r.Context(), viewerOf(r.Context()).actor(), id)
}

func (s *Server) showApproval(r *http.Request) (answer, error) {
	a, err := s.approval(r)
	if err != nil {
		return answer{}, err
	}
	card, err := s.approvalCard(r.Context(), a)
	if err != nil {
		return answer{}, err
	}
	card.Whole = true
	return show(ui.ApprovalPage{Card: card}.Page())
}

// A decision is one way to end an approval, with the message for it.
type decision struct {
	do    func(*call.Approvals) func(context.Context, fleet.Principal, uuid.UUID, string) (call.Approval, error)
	flash string
	typed bool // a tool that disconnects the device needs a typed confirmation
}

type decide = func(context.Context, fleet.Principal, uuid.UUID, string) (call.Approval, error)

var (
	approveIt  = decision{func(s *call.Approvals) decide { return s.Approve }, "flash.approval_approved", true}
	denyIt     = decision{func(s *call.Approvals) decide { return s.Deny }, "flash.approval_denied", false}
	withdrawIt = decision{func(s *call.Approvals) decide { return s.Withdraw }, "flash.approval_withdrawn", false}
)

// decideApproval decides and redirects to the approval's page, or shows there why the decision
// failed.
func (s *Server) decideApproval(d decision) handler {
	return func(r *http.Request) (answer, error) {
		if err := r.ParseForm(); err != nil {
			return answer{}, formError(err)
		}
		ctx := r.Context()
		a, err := s.approval(r)
		if err != nil {
			return answer{}, err
		}
		typed := r.PostFormValue("confirm")
		if d.typed && !s.confirmedApproval(ctx, a, typed) {
			err = errNotConfirmed
		} else {
			_, err = d.do(s.Approvals)(ctx, viewerOf(ctx).actor(), a.ID, r.PostFormValue("reason"))
		}
		switch {
		case err == nil:
			s.flash(ctx, ui.Flash{Text: text(ctx, d.flash), Link: approvalSubject(a)})
			return goTo(ui.ApprovalPath(a.ID.String()))
		case statusOf(err) >= http.StatusInternalServerError || errors.Is(err, fleet.ErrNotFound):
			return answer{}, err
		}
		if now, err := s.Approvals.Get(ctx, viewerOf(ctx).actor(), a.ID); err == nil {
			a = now // another operator may have been faster
		}
		card, failed := s.approvalCard(ctx, a)
		if failed != nil {
			return answer{}, failed
		}
		card.Whole, card.Problem, card.Typed = true, explain(ctx, err), fleet.CleanText(typed, 60)
		again, _ := showAgain(ui.ApprovalPage{Card: card}.Page())
		again.status = statusOf(err)
		return again, nil
	}
}

func approvalSubject(a call.Approval) string {
	if a.Subject == call.ApprovalOfCall {
		return ui.CallPath(a.SubjectID.String())
	}
	return ui.FanOutPath(a.SubjectID.String())
}

// confirmedApproval checks the typed confirmation for a tool that disconnects devices.
func (s *Server) confirmedApproval(ctx context.Context, a call.Approval, typed string) bool {
	word := ui.ApprovalCard{Approval: a}.Confirm()
	if word == "" || a.Subject == call.ApprovalOfFanOut {
		return word == "" || strings.ReplaceAll(strings.TrimSpace(typed), ",", "") == word
	}
	d, err := s.Devices.Device(ctx, a.Device)
	return err == nil && confirmed(word, typed, d)
}

// An approvalsView follows the inbox, or one approval: it shows decisions at once, and counts new
// approvals.
type approvalsView struct {
	server *Server
	only   uuid.UUID          // of an approval's own page
	began  time.Time          // later requests are not on the page
	seen   map[uuid.UUID]bool // counted as new
}

func (v *approvalsView) pace() time.Duration { return paceRows }

func (v *approvalsView) wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventApproval && (v.only == uuid.Nil || e.Subject == v.only.String())
}

func (v *approvalsView) begin(ctx context.Context) (u updates, err error) {
	if v.only == uuid.Nil {
		return u, nil
	}
	return u, v.show(ctx, v.only, &u)
}

func (v *approvalsView) render(ctx context.Context, events []fleet.Event) (u updates, err error) {
	for _, e := range events {
		if id, err := uuid.Parse(e.Subject); err == nil {
			if err := v.show(ctx, id, &u); err != nil {
				return u, err
			}
		}
	}
	u.patches = append(u.patches, ui.ApprovalBadge(v.server.Approvals.WaitingFor(ctx, viewerOf(ctx).actor())))
	return u, nil
}

// show does not update a waiting approval, because its form may contain half a reason.
func (v *approvalsView) show(ctx context.Context, id uuid.UUID, u *updates) error {
	a, err := v.server.Approvals.Get(ctx, viewerOf(ctx).actor(), id)
	if errors.Is(err, fleet.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if a.State == call.ApprovalWaiting {
		if v.only == uuid.Nil && !a.CreatedAt.Before(v.began) && !v.seen[id] {
			v.seen[id] = true
			u.fresh++
		}
		return nil
	}
	card, err := v.server.approvalCard(ctx, a)
	card.Whole = v.only != uuid.Nil
	u.patches = append(u.patches, card.View())
	return err
}

// confirmed compares the typed text with the word or the device's name, for a dangerous act.
func confirmed(word, typed string, d fleet.Device) bool {
	typed = strings.TrimSpace(typed)
	if word == "" || strings.EqualFold(typed, word) || (d.Name != "" && typed == d.Name) {
		return true
	}
	id, err := fleet.ParseDeviceID(typed)
	return err == nil && id == d.ID
}

func (s *Server) newApprovalsView(r *http.Request) (view, error) {
	v := &approvalsView{server: s, began: s.now(), seen: map[uuid.UUID]bool{}}
	if r.URL.Query().Get("id") == "" {
		return v, nil
	}
	var err error
	v.only, err = subjectID(r)
	return v, err
}
