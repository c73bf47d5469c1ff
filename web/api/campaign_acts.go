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

func (a *api) registerCampaignActs() {
	act := func(verb, summary, about string) operation {
		return operation{id: verb + "-campaign", reach: access.Audience, models: fleet.ModelsNever,
			method: http.MethodPost, path: "/campaigns/{id}/" + verb, role: fleet.RoleOperator, noun: "campaign",
			summary: summary, about: about}
	}
	start := act("start", "Start a campaign", "One that needs approval waits for it; one with start_at, for its time. "+
		"What a language model starts always needs approval.")
	start.models = fleet.ModelsOwn
	register(a, start, a.plainAct((*campaign.Service).Start))
	register(a, act("resume", "Go on with a paused campaign", ""), a.plainAct((*campaign.Service).Resume))
	register(a, act("advance", "Open the next wave", "Past a gate, or without waiting for the rest of the open wave."),
		a.plainAct((*campaign.Service).Advance))
	register(a, act("pull-now", "Restart the online devices that wait for a boot poll",
		"They then ask for the firmware at once."), a.plainAct((*campaign.Service).PullNow))
	register(a, act("approve", "Approve a campaign",
		"As a second person, for the plan with this digest. If it waits for that, it starts."), a.approveCampaign)
	register(a, act("deny", "Refuse to approve a campaign", ""), a.denyCampaign)
	register(a, act("pause", "Pause a campaign", "No further device is notified; what is under way goes on."), a.pauseCampaign)
	register(a, act("abort", "Abort a campaign",
		"Downloads are cut; devices that have the whole image run to their natural end. "+
			"With rollback the devices that were updated are taken back."), a.abortCampaign)
	retry := act("retry", "Try devices again that failed", "All of them, or those in some states, or some devices.")
	retry.body, retry.heavy = maxPlan, heavy.Preview
	register(a, retry, a.retryCampaign)
	rollback := act("rollback", "Take the updated devices back",
		"Makes a campaign that gives each the image it had before, and starts it unless it needs approval.")
	rollback.created = true
	register(a, rollback, a.rollbackCampaign)
}

// plainAct returns an operation that needs only the campaign's id.
func (a *api) plainAct(act func(*campaign.Service, context.Context, fleet.Principal, uuid.UUID) (campaign.Campaign,
	error)) func(context.Context, fleet.Principal, *IDPath) (*answer[CampaignView], error) {
	return func(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[CampaignView], error) {
		c, err := act(a.Campaigns, ctx, by, in.uuid())
		return a.shownCampaign(ctx, c, err)
	}
}

type approveCampaignInput struct {
	IDPath
	Body struct {
		Digest string `json:"digest" minLength:"1" maxLength:"100" doc:"Digest of the plan that you reviewed"`
	}
}

func (a *api) approveCampaign(ctx context.Context, by fleet.Principal, in *approveCampaignInput) (*answer[CampaignView],
	error) {
	c, err := a.Campaigns.Approve(ctx, by, in.uuid(), in.Body.Digest)
	return a.shownCampaign(ctx, c, err)
}

type denyCampaignInput struct {
	IDPath
	ReasonBody
}

func (a *api) denyCampaign(ctx context.Context, by fleet.Principal, in *denyCampaignInput) (*answer[CampaignView],
	error) {
	c, err := a.Campaigns.Deny(ctx, by, in.uuid(), in.Body.Reason)
	return a.shownCampaign(ctx, c, err)
}

type pauseCampaignInput struct {
	IDPath
	MayReasonBody
}

func (a *api) pauseCampaign(ctx context.Context, by fleet.Principal, in *pauseCampaignInput) (*answer[CampaignView],
	error) {
	c, err := a.Campaigns.Pause(ctx, by, in.uuid(), in.reason())
	return a.shownCampaign(ctx, c, err)
}

type abortCampaignInput struct {
	IDPath
	Body *struct {
		Rollback bool `json:"rollback,omitempty" doc:"Roll the updated devices back once the campaign has stopped"`
	}
}

func (a *api) abortCampaign(ctx context.Context, by fleet.Principal, in *abortCampaignInput) (*answer[CampaignView],
	error) {
	c, err := a.Campaigns.Abort(ctx, by, in.uuid(), in.Body != nil && in.Body.Rollback)
	return a.shownCampaign(ctx, c, err)
}

type retryCampaignInput struct {
	IDPath
	Body *struct {
		States  []string `json:"states,omitempty" nullable:"false" enum:"failed,timed_out,rolled_back,wrong_build,unhealthy,rejected,skipped,canceled,aborted" doc:"Default: all failures"`
		Devices []string `json:"devices,omitempty" nullable:"false" doc:"Default: all of them"`
	}
}

// retriedView is a campaign with the number of its devices that were queued again.
type retriedView struct {
	CampaignView
	Retried int `json:"retried" doc:"Devices that were queued again"`
}

func (a *api) retryCampaign(ctx context.Context, by fleet.Principal, in *retryCampaignInput) (*answer[retriedView],
	error) {
	var states []campaign.DeploymentState
	var devices []fleet.DeviceID
	if in.Body != nil {
		var err error
		if devices, err = deviceIDs(in.Body.Devices); err != nil {
			return nil, err
		}
		states = viewed(in.Body.States, func(s string) campaign.DeploymentState { return campaign.DeploymentState(s) })
	}
	c, n, err := a.Campaigns.Retry(ctx, by, in.uuid(), states, devices)
	if err != nil {
		return nil, err
	}
	v, err := a.withProgress(ctx, c)
	if err != nil {
		return nil, err
	}
	return answerWith(retriedView{v, n}), nil
}

func (a *api) rollbackCampaign(ctx context.Context, by fleet.Principal, in *IDPath) (*createCampaignOutput, error) {
	c, err := a.Campaigns.Rollback(ctx, by, in.uuid())
	if err != nil {
		return nil, err
	}
	return a.created(ctx, c)
}
