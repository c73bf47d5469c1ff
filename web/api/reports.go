package api

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/web/access"
)

func (a *api) registerReports() {
	register(a, operation{id: "get-vitals", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}/vitals", role: fleet.RoleViewer,
		noun:    "device",
		summary: "Show the vitals that a device last reported",
		about:   "The included firmware reports them when it connects and at every heartbeat. Stock firmware reports none: 404."},
		a.getVitals)
	register(a, operation{id: "list-vitals", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}/vitals/history",
		role: fleet.RoleViewer, noun: "device",
		summary: "List a device's heartbeat statistics over time, oldest first",
		about:   "Steps without a heartbeat are left out."}, a.listVitals)
	register(a, operation{id: "list-jobs", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}/jobs", role: fleet.RoleViewer,
		noun:    "device",
		summary: "List the jobs that a device reports on, newest first",
		about:   "A job is work that continues after the answer to a call, such as an upgrade. The latest 50 are kept."}, a.listJobs)
	register(a, operation{id: "get-config", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}/config", role: fleet.RoleViewer,
		noun:    "device",
		summary: "Show the configuration that a device last reported", about: "To change it, call the tool " +
			fleet.ToolConfigSet + "."}, a.getConfig)
}

// reporter returns the device in a path, which must exist.
func (a *api) reporter(ctx context.Context, in DevicePath) (fleet.DeviceID, error) {
	d, err := a.find(ctx, in)
	return d.ID, err
}

func (a *api) getVitals(ctx context.Context, _ fleet.Principal, in *DevicePath) (*answer[vitalsView], error) {
	id, err := a.reporter(ctx, *in)
	if err != nil {
		return nil, err
	}
	v, err := a.Reports.Vitals(ctx, id)
	if err != nil {
		return nil, err
	}
	return answerWith(vitals(v)), nil
}

type listVitalsInput struct {
	DevicePath
	Since  time.Time `query:"since" doc:"Default: a day before until"`
	Until  time.Time `query:"until" doc:"Default: now"`
	StepMS int64     `query:"step_ms" minimum:"0" maximum:"31536000000" doc:"Width of a step; rounded up to whole steps of five minutes, or whole hours if since is more than three days ago, and as long as it takes for 2,000 steps at most"`
}

// interval returns the requested time span.
func (in *listVitalsInput) interval(now time.Time) (since, until time.Time) {
	since, until = in.Since, in.Until
	if until.IsZero() {
		until = now
	}
	if since.IsZero() {
		since = until.AddDate(0, 0, -1)
	}
	return since, until
}

func (a *api) listVitals(ctx context.Context, _ fleet.Principal, in *listVitalsInput) (*answer[list[vitalsPointView]],
	error) {
	id, err := a.reporter(ctx, in.DevicePath)
	if err != nil {
		return nil, err
	}
	since, until := in.interval(time.Now())
	points, err := a.Reports.VitalsHistory(ctx, id, since, until, time.Duration(in.StepMS)*time.Millisecond)
	if err == nil && len(points) == 0 {
		_, err = a.Reports.Vitals(ctx, id) // fails if the device never sent a report
	}
	if err != nil {
		return nil, err
	}
	return listOf(points, vitalsPoint), nil
}

type listJobsInput struct {
	DevicePath
	Limit int `query:"limit" minimum:"1" maximum:"50" default:"50"`
}

func (a *api) listJobs(ctx context.Context, _ fleet.Principal, in *listJobsInput) (*answer[list[jobView]], error) {
	id, err := a.reporter(ctx, in.DevicePath)
	if err != nil {
		return nil, err
	}
	jobs, err := a.Reports.DeviceJobs(ctx, id, in.Limit)
	if err != nil {
		return nil, err
	}
	return listOf(jobs, job), nil
}

func (a *api) getConfig(ctx context.Context, _ fleet.Principal, in *DevicePath) (*answer[configView], error) {
	id, err := a.reporter(ctx, *in)
	if err != nil {
		return nil, err
	}
	c, err := a.Reports.DeviceConfig(ctx, id)
	if err != nil {
		return nil, err
	}
	return answerWith(configView{Version: c.Version, OnTrial: c.OnTrial, Reverted: c.Reverted, Values: rawOrNull(c.Values),
		At: utc(c.At)}), nil
}
