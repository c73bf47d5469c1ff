package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
)

func (a *api) registerCampaigns() {
	register(a, operation{id: "create-campaign", reach: access.Audience, models: fleet.ModelsMay, heavy: heavy.Preview,
		method: http.MethodPost, path: "/campaigns", role: fleet.RoleOperator,
		created: true, body: maxPlan,
		summary: "Plan a campaign", about: "The campaign is stored as a draft, with its current devices, until it is started."},
		a.createCampaign)
	register(a, operation{id: "dry-run-campaign", reach: access.Audience, models: fleet.ModelsMay, heavy: heavy.Preview,
		method: http.MethodPost, path: "/campaigns/dry-run",
		role: fleet.RoleViewer, body: maxPlan,
		summary: "Show what a campaign would do", about: "Nothing is stored."}, a.dryRunCampaign)
	register(a, operation{id: "list-campaigns", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/campaigns", role: fleet.RoleViewer,
		summary: "List campaigns, newest first"}, a.listCampaigns)
	register(a, operation{id: "get-campaign", reach: access.Audience, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/campaigns/{id}", role: fleet.RoleViewer,
		noun:    "campaign",
		summary: "Show a campaign and its progress"}, a.getCampaign)
	register(a, operation{id: "update-campaign", reach: access.Audience, models: fleet.ModelsOwn, heavy: heavy.Preview,
		method: http.MethodPatch, path: "/campaigns/{id}",
		role: fleet.RoleOperator, noun: "campaign", body: maxPlan,
		summary: "Change the plan of a campaign",
		about:   "Omitted fields stay as they are. Before the start everything can change, and any change invalidates an approval. While the campaign runs, only pace, windows, thresholds and the end can change."}, a.updateCampaign)
	register(a, operation{id: "discard-campaign", reach: access.Audience, models: fleet.ModelsOwn,
		method: http.MethodDelete, path: "/campaigns/{id}",
		role: fleet.RoleOperator, noun: "campaign",
		summary: "Discard a campaign that has not started", about: "Its record stays."}, a.discardCampaign)
}

type campaignInput struct{ Body CampaignBody }

// planOf returns the plan of a request, whose release must exist.
func (a *api) planOf(ctx context.Context, in *campaignInput) (campaign.Plan, error) {
	plan, err := in.Body.plan()
	if err != nil {
		return plan, err
	}
	return plan, a.checkRelease(ctx, plan.Release)
}

func (a *api) checkRelease(ctx context.Context, id uuid.UUID) error {
	if _, err := a.Firmware.Release(ctx, id); err != nil {
		return missingIn(err, "release_id", "release", id.String())
	}
	return nil
}

type createCampaignOutput struct {
	Location string `header:"Location"`
	Body     CampaignView
}

func (a *api) createCampaign(ctx context.Context, by fleet.Principal, in *campaignInput) (*createCampaignOutput,
	error) {
	plan, err := a.planOf(ctx, in)
	if err != nil {
		return nil, err
	}
	c, err := a.Campaigns.Create(ctx, by, plan)
	if err != nil {
		return nil, err
	}
	return a.created(ctx, c)
}

func (a *api) created(ctx context.Context, c campaign.Campaign) (*createCampaignOutput, error) {
	shown, err := a.withProgress(ctx, c)
	if err != nil {
		return nil, err
	}
	return &createCampaignOutput{prefix + "/campaigns/" + c.ID.String(), shown}, nil
}

// withProgress returns a campaign with its progress.
func (a *api) withProgress(ctx context.Context, c campaign.Campaign) (CampaignView, error) {
	waves, err := a.Campaigns.Waves(ctx, c.ID)
	if err != nil {
		return CampaignView{}, err
	}
	p, err := a.Campaigns.CampaignProgress(ctx, c.ID)
	if err != nil {
		return CampaignView{}, err
	}
	return newCampaignView(c, waves, p), nil
}

// shownCampaign is the response of operations that return a campaign.
func (a *api) shownCampaign(ctx context.Context, c campaign.Campaign, err error) (*answer[CampaignView], error) {
	if err != nil {
		return nil, err
	}
	v, err := a.withProgress(ctx, c)
	if err != nil {
		return nil, err
	}
	return answerWith(v), nil
}

func (a *api) dryRunCampaign(ctx context.Context, by fleet.Principal, in *campaignInput) (*answer[dryRunView], error) {
	plan, err := a.planOf(ctx, in)
	if err != nil {
		return nil, err
	}
	d, err := a.Campaigns.DryRun(ctx, by, plan)
	if err != nil {
		return nil, err
	}
	return answerWith(dryRun(d)), nil
}

type listCampaignsInput struct {
	Paging
	State   []string `query:"state" enum:"draft,awaiting_approval,denied,discarded,scheduled,running,paused,stopping,completed,completed_with_errors,aborted,expired" doc:"One or several, separated by commas"`
	Release string   `query:"release" format:"uuid" doc:"Id of a release"`
}

func (a *api) listCampaigns(ctx context.Context, _ fleet.Principal,
	in *listCampaignsInput) (*answer[list[CampaignItem]],
	error) {
	f := campaign.Filter{Limit: in.Limit, Cursor: in.Cursor}
	for _, s := range in.State {
		f.States = append(f.States, campaign.State(s))
	}
	f.Release, _ = uuid.Parse(in.Release) // huma has validated the UUID
	page, err := a.Campaigns.Campaigns(ctx, f)
	if err != nil {
		return nil, err
	}
	return pageOf(page, campaignItem), nil
}

func (a *api) getCampaign(ctx context.Context, _ fleet.Principal, in *IDPath) (*answer[CampaignView], error) {
	c, err := a.Campaigns.Campaign(ctx, in.uuid())
	return a.shownCampaign(ctx, c, err)
}

type updateCampaignInput struct {
	IDPath
	Body struct {
		Name      *string    `json:"name,omitempty" minLength:"1" maxLength:"200"`
		ReleaseID *uuid.UUID `json:"release_id,omitempty" format:"uuid"`
		CampaignFields
	}
}

func (a *api) updateCampaign(ctx context.Context, by fleet.Principal, in *updateCampaignInput) (*answer[CampaignView],
	error) {
	c, err := a.Campaigns.Campaign(ctx, in.uuid())
	if err != nil {
		return nil, err
	}
	plan := c.Plan
	set(&plan.Name, in.Body.Name)
	if in.Body.ReleaseID != nil {
		plan.Release = *in.Body.ReleaseID
		if err := a.checkRelease(ctx, plan.Release); err != nil {
			return nil, err
		}
	}
	if err := in.Body.apply(&plan); err != nil {
		return nil, err
	}
	c, err = a.Campaigns.Edit(ctx, by, c.ID, plan)
	return a.shownCampaign(ctx, c, err)
}

func (a *api) discardCampaign(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[CampaignView], error) {
	c, err := a.Campaigns.Discard(ctx, by, in.uuid())
	return a.shownCampaign(ctx, c, err)
}
