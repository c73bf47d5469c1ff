package releases

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/console/calls"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

const (
	releasesOffered = 100
	maxPlanFields   = 2000 // values of one form
)

// planCampaign shows the wizard. The address contains the plan: each change redirects to another
// address.
func (s *Server) planCampaign(r *http.Request) (pages.Answer, error) {
	return s.showWizard(r, ui.CampaignNewPage{}, ui.PathCampaignNew)
}

func (s *Server) showWizard(r *http.Request, page ui.CampaignNewPage, path string) (pages.Answer, error) {
	ctx := r.Context()
	asked := r.URL.Query()
	if tooMany(asked) {
		return pages.Answer{}, errPlanTooLarge
	}
	if page.Form.Values == nil || asked.Get("f") != "" {
		page.Form = forms.NewPlan(asked, pages.ViewerOf(ctx).Zone)
	}
	if page.Form.Command() {
		return pages.GoTo(path + "?" + page.Form.Values.Encode())
	}
	if _, err := s.lookAtPlan(ctx, &page); err != nil {
		return pages.Answer{}, err
	}
	// The page itself shows the problems: a half-filled form is not an error.
	return pages.Show(page.Page())
}

var errPlanTooLarge = fleet.Refuse(fleet.ErrInvalid, "plan_too_large")

func tooMany(form url.Values) bool {
	n := 0
	for _, values := range form {
		n += len(values)
	}
	return n > maxPlanFields
}

// lookAtPlan adds the choices and the dry run to the page. An invalid plan is a problem on the
// page, not an error.
func (s *Server) lookAtPlan(ctx context.Context, page *ui.CampaignNewPage) (campaign.Plan, error) {
	plan, err := s.readPlan(ctx, page)
	if err != nil {
		return plan, err
	}
	page.Plan = plan
	if err := s.offerChoices(ctx, page, plan); err != nil {
		return plan, err
	}
	switch {
	case len(page.Form.Problems) > 0:
		page.Problem = pages.Text(ctx, "campaign.bad.fields")
		return plan, nil
	case plan.Release == uuid.Nil, page.Steers():
		return plan, nil
	}
	run, err := s.Campaigns.DryRun(ctx, pages.ViewerOf(ctx).Actor(), plan)
	if problem(err) {
		page.Problem = pages.Explain(ctx, err)
		return plan, nil
	}
	page.Run = &run
	return plan, err
}

// problem reports whether an error is about the plan.
func problem(err error) bool {
	return errors.Is(err, fleet.ErrInvalid) || errors.Is(err, fleet.ErrConflict) || errors.Is(err, fleet.ErrNotFound)
}

// readPlan reads the form; for a running campaign it reads only the steering fields.
func (s *Server) readPlan(ctx context.Context, page *ui.CampaignNewPage) (campaign.Plan, error) {
	if page.Steers() {
		plan := page.Campaign.Plan
		page.Form.Steer(&plan)
		return plan, nil
	}
	plan := page.Form.Read()
	if plan.Name == "" && plan.Release != uuid.Nil {
		release, err := s.Firmware.Release(ctx, plan.Release)
		if errors.Is(err, fleet.ErrNotFound) {
			return plan, nil
		}
		if err != nil {
			return plan, err
		}
		plan.Name = pages.Text(ctx, "campaign.default_name", "version", release.Version)
	}
	return plan, nil
}

// offerChoices adds the choices of the form: releases, tools, time zones.
func (s *Server) offerChoices(ctx context.Context, page *ui.CampaignNewPage, plan campaign.Plan) error {
	page.Zones = slices.Clone(pages.ZonesOffered)
	if zone := pages.ViewerOf(ctx).Zone.String(); !slices.Contains(page.Zones, zone) {
		page.Zones = append([]string{zone}, page.Zones...)
	}
	if page.Steers() {
		return nil
	}
	found, err := s.Firmware.Releases(ctx, firmware.ReleaseFilter{State: firmware.ReleaseReleased, Limit: releasesOffered})
	if err != nil {
		return err
	}
	page.Releases = found.Items
	if err := s.addChosen(ctx, page, plan.Release); err != nil {
		return err
	}
	q, err := fleet.ParseQuery(plan.Query)
	if err != nil {
		return nil // the dry run shows the reason
	}
	devices, err := s.Devices.Devices(ctx, fleet.DeviceFilter{Query: q, Limit: calls.ToolSample})
	if err != nil {
		return err
	}
	page.Tools, err = s.calls.ToolsOf(ctx, devices.Items)
	return err
}

// addChosen adds the chosen release to the list if it can no longer be chosen.
func (s *Server) addChosen(ctx context.Context, page *ui.CampaignNewPage, id uuid.UUID) error {
	if id == uuid.Nil || slices.ContainsFunc(page.Releases, func(r firmware.Release) bool { return r.ID == id }) {
		return nil
	}
	r, err := s.Firmware.Release(ctx, id)
	if errors.Is(err, fleet.ErrNotFound) {
		return nil
	}
	page.Releases = append(page.Releases, r)
	return err
}

// formPlan reads the submitted form.
func (s *Server) formPlan(r *http.Request, page *ui.CampaignNewPage) (campaign.Plan, error) {
	if err := r.ParseForm(); err != nil {
		return campaign.Plan{}, pages.FormError(err)
	}
	if tooMany(r.PostForm) {
		return campaign.Plan{}, errPlanTooLarge
	}
	ctx := r.Context()
	page.Form = forms.NewPlan(maps.Clone(r.PostForm), pages.ViewerOf(ctx).Zone)
	return s.lookAtPlan(ctx, page)
}

// createCampaign stores a plan, and starts it if the form requests it. It starts only the devices
// that the operator saw: a fleet changes while a form is filled in.
func (s *Server) createCampaign(r *http.Request) (pages.Answer, error) {
	var page ui.CampaignNewPage
	plan, err := s.formPlan(r, &page)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	if page.Problem == "" && plan.Release == uuid.Nil {
		page.Problem = pages.Text(ctx, "campaign.choose_release")
	}
	if page.Problem != "" {
		return pages.ShowAgain(page.Page())
	}
	start := r.PostForm.Get("do") == "start"
	if seen := r.PostForm.Get("seen"); start && seen != "" && seen != strconv.Itoa(page.Run.Targets) {
		page.Problem = pages.Text(ctx, "campaign.changed", "n", page.Run.Targets)
		return pages.ShowAgain(page.Page())
	}
	c, err := s.Campaigns.Create(ctx, pages.ViewerOf(ctx).Actor(), plan)
	if problem(err) {
		page.Problem = pages.Explain(ctx, err)
		return pages.ShowAgain(page.Page())
	}
	if err != nil {
		return pages.Answer{}, err
	}
	return s.startNew(ctx, c, start)
}

func (s *Server) startNew(ctx context.Context, c campaign.Campaign, start bool) (pages.Answer, error) {
	board := ui.CampaignPath(c.ID.String())
	if !start {
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "campaign.flash.draft")})
		return pages.GoTo(board)
	}
	c, err := s.Campaigns.Start(ctx, pages.ViewerOf(ctx).Actor(), c.ID)
	if err != nil {
		return s.actFailed(ctx, err, board) // it is a draft now
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, flashKey("start", c))})
	return pages.GoTo(board)
}

// editedCampaign returns the wizard of an existing campaign.
func (s *Server) editedCampaign(r *http.Request) (page ui.CampaignNewPage, err error) {
	id, err := campaignID(r)
	if err != nil {
		return page, err
	}
	c, err := s.Campaigns.Campaign(r.Context(), id)
	if err != nil {
		return page, err
	}
	page.Campaign = &c
	page.Form = forms.FillPlan(c.Plan, pages.ViewerOf(r.Context()).Zone)
	return page, nil
}

func (s *Server) replanCampaign(r *http.Request) (pages.Answer, error) {
	page, err := s.editedCampaign(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return s.showWizard(r, page, r.URL.Path)
}

func (s *Server) editCampaign(r *http.Request) (pages.Answer, error) {
	page, err := s.editedCampaign(r)
	if err != nil {
		return pages.Answer{}, err
	}
	plan, err := s.formPlan(r, &page)
	if err != nil {
		return pages.Answer{}, err
	}
	if page.Problem != "" {
		return pages.ShowAgain(page.Page())
	}
	ctx := r.Context()
	_, err = s.Campaigns.Edit(ctx, pages.ViewerOf(ctx).Actor(), page.Campaign.ID, plan)
	if problem(err) {
		page.Problem = pages.Explain(ctx, err)
		return pages.ShowAgain(page.Page())
	}
	if err != nil {
		return pages.Answer{}, err
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.saved")})
	return pages.GoTo(ui.CampaignPath(page.Campaign.ID.String()))
}
