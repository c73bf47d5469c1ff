package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
)

func (a *api) registerDeployments() {
	register(a, operation{id: "list-deployments", reach: access.Audience, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/campaigns/{id}/deployments",
		role: fleet.RoleViewer, noun: "campaign",
		summary: "List the deployments of a campaign"}, a.listDeployments)
	register(a, operation{id: "get-deployment", reach: access.Audience, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/campaigns/{id}/deployments/{device}",
		role: fleet.RoleViewer, noun: "deployment",
		summary: "Show a deployment with its evidence"}, a.getDeployment)
	register(a, operation{id: "list-device-deployments", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}/deployments",
		role: fleet.RoleViewer, noun: "device",
		summary: "List the deployments of a device, newest first"}, a.listDeviceDeployments)
	register(a, operation{id: "get-outlook", reach: access.Device, models: fleet.ModelsMay, heavy: heavy.Preview,
		method: http.MethodGet, path: "/devices/{id}/outlook", role: fleet.RoleViewer,
		noun:    "device",
		summary: "Show why a device is not updating"}, a.getOutlook)
	register(a, operation{id: "list-quarantines", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/quarantines", role: fleet.RoleViewer,
		summary: "List quarantined devices: campaigns leave them out, because they failed too often"}, a.listQuarantines)
	register(a, operation{id: "clear-quarantine", reach: access.Device, models: fleet.ModelsNever,
		method: http.MethodDelete, path: "/devices/{id}/quarantine",
		role: fleet.RoleOperator, noun: "device",
		summary: "End a device's quarantine"}, a.clearQuarantine)
}

type listDeploymentsInput struct {
	IDPath
	Paging
	State  []string              `query:"state" enum:"pending,queued,offered,dispatching,sent,ambiguous,downloading,downloaded,rebooting,booted,verifying,succeeded,failed,timed_out,rolled_back,wrong_build,unhealthy,rejected,skipped,canceled,expired,aborted,removed" doc:"One or several, separated by commas"`
	Class  campaign.FailureClass `query:"class" enum:"download,timeout,busy,image,rejected,rolled_back,wrong_build,unhealthy"`
	Skip   firmware.SkipReason   `query:"skip" maxLength:"50" doc:"Why devices were left out"`
	Board  string                `query:"board" maxLength:"200"`
	Wave   int                   `query:"wave" minimum:"-1" maximum:"1000" default:"-1" doc:"Counted from 0; -1: all"`
	Device string                `query:"device" maxLength:"80"`
}

func (in *listDeploymentsInput) filter() (campaign.DeploymentFilter, error) {
	f := campaign.DeploymentFilter{Campaign: in.uuid(), Class: in.Class, Skip: in.Skip, Board: in.Board, Limit: in.Limit,
		Cursor: in.Cursor,
		States: viewed(in.State, func(s string) campaign.DeploymentState { return campaign.DeploymentState(s) })}
	if in.Wave >= 0 {
		f.Wave = &in.Wave
	}
	var err error
	f.Device, err = deviceParam(in.Device)
	return f, err
}

func (a *api) listDeployments(ctx context.Context, _ fleet.Principal, in *listDeploymentsInput) (
	*answer[list[DeploymentView]], error) {
	f, err := in.filter()
	if err != nil {
		return nil, err
	}
	if _, err := a.Campaigns.Campaign(ctx, f.Campaign); err != nil {
		return nil, err
	}
	page, err := a.Campaigns.Deployments(ctx, f)
	if err != nil {
		return nil, err
	}
	view, err := a.withEvidence(ctx, page.Items)
	return pageOf(page, view), err
}

// withEvidence reads the events of the deployments, and returns a function that returns the view of
// each with its events.
func (a *api) withEvidence(ctx context.Context, all []campaign.Deployment) (func(campaign.Deployment) DeploymentView,
	error) {
	ids := make([]uuid.UUID, len(all))
	for i, d := range all {
		ids[i] = d.ID
	}
	events, err := a.Campaigns.EventsOf(ctx, ids)
	return func(d campaign.Deployment) DeploymentView { return deployment(d, events[d.ID]) }, err
}

// deploymentPath is the input of operations on a device's part in a campaign.
type deploymentPath struct {
	IDPath
	Device string `path:"device" maxLength:"80" doc:"Device id; a MAC address in any form"`
}

func (p deploymentPath) pathID() string { return p.Device }

func (a *api) getDeployment(ctx context.Context, _ fleet.Principal, in *deploymentPath) (*answer[DeploymentView],
	error) {
	device, err := fleet.ParseDeviceID(in.Device)
	if err != nil {
		return nil, err
	}
	d, err := a.Campaigns.Deployment(ctx, in.uuid(), device)
	if err != nil {
		return nil, err
	}
	events, err := a.Campaigns.DeploymentEvents(ctx, d.ID)
	if err != nil {
		return nil, err
	}
	return answerWith(deployment(d, events)), nil
}

type deviceDeploymentsInput struct {
	DevicePath
	Limit int `query:"limit" minimum:"1" maximum:"500" default:"50"`
}

func (a *api) listDeviceDeployments(ctx context.Context, _ fleet.Principal, in *deviceDeploymentsInput) (
	*answer[list[DeploymentView]], error) {
	d, err := a.find(ctx, in.DevicePath)
	if err != nil {
		return nil, err
	}
	all, err := a.Campaigns.DeviceDeployments(ctx, d.ID, in.Limit)
	if err != nil {
		return nil, err
	}
	view, err := a.withEvidence(ctx, all)
	return listOf(all, view), err
}

func (a *api) getOutlook(ctx context.Context, _ fleet.Principal, in *DevicePath) (*answer[outlookView], error) {
	d, err := a.find(ctx, *in)
	if err != nil {
		return nil, err
	}
	o, err := a.Campaigns.Outlook(ctx, d.ID)
	if err != nil {
		return nil, err
	}
	var events []campaign.DeploymentEvent
	if o.Deployment != nil {
		if events, err = a.Campaigns.DeploymentEvents(ctx, o.Deployment.ID); err != nil {
			return nil, err
		}
	}
	return answerWith(outlook(o, events)), nil
}

func (a *api) listQuarantines(ctx context.Context, _ fleet.Principal, _ *struct{}) (*answer[list[quarantineView]],
	error) {
	all, err := a.Campaigns.Quarantines(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	return listOf(all, quarantine), nil
}

func (a *api) clearQuarantine(ctx context.Context, by fleet.Principal, in *DevicePath) (*empty, error) {
	d, err := a.find(ctx, *in)
	if err != nil {
		return nil, err
	}
	return &empty{}, a.Campaigns.ClearQuarantine(ctx, by, d.ID)
}
