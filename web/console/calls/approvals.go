package calls

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
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// approvalRoutes are the pages about approvals.
func (s *Server) approvalRoutes() []pages.Route {
	const get, post = http.MethodGet, http.MethodPost
	one := ui.PathApprovals + "/{approval}"
	return []pages.Route{
		{Method: get, Pattern: ui.PathApprovals, Role: fleet.RoleViewer, Reach: access.List, Page: s.listApprovals},
		{Method: get, Pattern: one, Role: fleet.RoleViewer, Reach: access.Audience, Page: s.showApproval},
		{Method: post, Pattern: one + "/approve", Role: fleet.RoleOperator, Reach: access.Audience,
			Page: s.decideApproval(approveIt)},
		{Method: post, Pattern: one + "/deny", Role: fleet.RoleOperator, Reach: access.Audience,
			Page: s.decideApproval(denyIt)},
		{Method: post, Pattern: one + "/withdraw", Role: fleet.RoleOperator, Reach: access.Audience,
			Page: s.decideApproval(withdrawIt)},
	}
}

// approvalSample is how many devices of a fan-out are shown by name.
const approvalSample = 8

// campaignsShown is how many campaigns that wait for an approval are shown.
const campaignsShown = 10

func (s *Server) listApprovals(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	page := ui.ApprovalsPage{List: pages.ListURL(r, ui.PathApprovals, "state")}
	f := call.ApprovalFilter{Limit: pages.LimitOf(page.List), Cursor: page.List.Get("cursor"),
		States: []call.ApprovalState{call.ApprovalWaiting}}
	if page.List.Get("state") == "decided" {
		f.States = []call.ApprovalState{call.ApprovalApproved, call.ApprovalDenied, call.ApprovalExpired,
			call.ApprovalWithdrawn}
	}
	found, err := s.Approvals.List(ctx, pages.ViewerOf(ctx).Actor(), f)
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(page.List.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	page.Next = found.Next
	for _, a := range found.Items {
		card, err := s.approvalCard(ctx, a)
		if err != nil {
			return pages.Answer{}, err
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
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// approvalCard adds the facts about the devices, and the acts that the viewer may do.
func (s *Server) approvalCard(ctx context.Context, a call.Approval) (ui.ApprovalCard, error) {
	card := ui.ApprovalCard{Approval: a}
	ids := []fleet.DeviceID{a.Device}
	waits := a.StateAt(s.Now()) == call.ApprovalWaiting
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
	by := pages.ViewerOf(ctx).Actor()
	err = s.Approvals.May(ctx, by, a)
	card.MayDecide, card.Own = err == nil, pages.ErrorCode(err) == "own_approval"
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
		return call.Approval{}, pages.ErrNoPage
	}
	return s.Approvals.Get(r.Context(), pages.ViewerOf(r.Context()).Actor(), id)
}

func (s *Server) showApproval(r *http.Request) (pages.Answer, error) {
	a, err := s.approval(r)
	if err != nil {
		return pages.Answer{}, err
	}
	card, err := s.approvalCard(r.Context(), a)
	if err != nil {
		return pages.Answer{}, err
	}
	card.Whole = true
	return pages.Show(ui.ApprovalPage{Card: card}.Page())
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
func (s *Server) decideApproval(d decision) pages.Handler {
	return func(r *http.Request) (pages.Answer, error) {
		if err := r.ParseForm(); err != nil {
			return pages.Answer{}, pages.FormError(err)
		}
		ctx := r.Context()
		a, err := s.approval(r)
		if err != nil {
			return pages.Answer{}, err
		}
		typed := r.PostFormValue("confirm")
		if d.typed && !s.confirmedApproval(ctx, a, typed) {
			err = pages.ErrNotConfirmed
		} else {
			_, err = d.do(s.Approvals)(ctx, pages.ViewerOf(ctx).Actor(), a.ID, r.PostFormValue("reason"))
		}
		switch {
		case err == nil:
			s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, d.flash), Link: approvalSubject(a)})
			return pages.GoTo(ui.ApprovalPath(a.ID.String()))
		case pages.StatusOf(err) >= http.StatusInternalServerError || errors.Is(err, fleet.ErrNotFound):
			return pages.Answer{}, err
		}
		if now, err := s.Approvals.Get(ctx, pages.ViewerOf(ctx).Actor(), a.ID); err == nil {
			a = now // another operator may have been faster
		}
		card, failed := s.approvalCard(ctx, a)
		if failed != nil {
			return pages.Answer{}, failed
		}
		card.Whole, card.Problem, card.Typed = true, pages.Explain(ctx, err), fleet.CleanText(typed, 60)
		again, _ := pages.ShowAgain(ui.ApprovalPage{Card: card}.Page())
		again.Status = pages.StatusOf(err)
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
	return err == nil && Confirmed(word, typed, d)
}

// An approvalsView follows the inbox, or one approval: it shows decisions at once, and counts new
// approvals.
type approvalsView struct {
	server *Server
	only   uuid.UUID          // of an approval's own page
	began  time.Time          // later requests are not on the page
	seen   map[uuid.UUID]bool // counted as new
}

func (v *approvalsView) Pace() time.Duration { return pages.PaceRows }

func (v *approvalsView) Wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventApproval && (v.only == uuid.Nil || e.Subject == v.only.String())
}

func (v *approvalsView) Begin(ctx context.Context) (u pages.Updates, err error) {
	if v.only == uuid.Nil {
		return u, nil
	}
	return u, v.show(ctx, v.only, &u)
}

func (v *approvalsView) Render(ctx context.Context, events []fleet.Event) (u pages.Updates, err error) {
	for _, e := range events {
		if id, err := uuid.Parse(e.Subject); err == nil {
			if err := v.show(ctx, id, &u); err != nil {
				return u, err
			}
		}
	}
	u.Patches = append(u.Patches, ui.ApprovalBadge(v.server.Approvals.WaitingFor(ctx, pages.ViewerOf(ctx).Actor())))
	return u, nil
}

// show does not update a waiting approval, because its form may contain half a reason.
func (v *approvalsView) show(ctx context.Context, id uuid.UUID, u *pages.Updates) error {
	a, err := v.server.Approvals.Get(ctx, pages.ViewerOf(ctx).Actor(), id)
	if errors.Is(err, fleet.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if a.State == call.ApprovalWaiting {
		if v.only == uuid.Nil && !a.CreatedAt.Before(v.began) && !v.seen[id] {
			v.seen[id] = true
			u.Fresh++
		}
		return nil
	}
	card, err := v.server.approvalCard(ctx, a)
	card.Whole = v.only != uuid.Nil
	u.Patches = append(u.Patches, card.View())
	return err
}

// Confirmed compares the typed text with the word or the device's name, for a dangerous act.
func Confirmed(word, typed string, d fleet.Device) bool {
	typed = strings.TrimSpace(typed)
	if word == "" || strings.EqualFold(typed, word) || (d.Name != "" && typed == d.Name) {
		return true
	}
	id, err := fleet.ParseDeviceID(typed)
	return err == nil && id == d.ID
}

func (s *Server) newApprovalsView(r *http.Request) (pages.View, error) {
	v := &approvalsView{server: s, began: s.Now(), seen: map[uuid.UUID]bool{}}
	if r.URL.Query().Get("id") == "" {
		return v, nil
	}
	var err error
	v.only, err = pages.SubjectID(r)
	return v, err
}
