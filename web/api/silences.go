package api

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/web/access"
)

func (a *api) registerSilences() {
	const path = "/alerts/silences"
	register(a, operation{id: "list-silences", method: http.MethodGet, path: path, role: fleet.RoleViewer,
		reach: access.Fleet, models: fleet.ModelsMay, summary: "List silences of alerts", about: "Newest first."}, a.listSilences)
	register(a, operation{id: "create-silence", method: http.MethodPost, path: path, role: fleet.RoleOperator,
		reach: access.Part, models: fleet.ModelsNever, created: true, summary: "Silence alerts",
		about: "Silenced alerts are shown, but neither mailed nor posted to webhooks, and do not count in the badge. An alert is silenced if it fits alert_id, kind and query, of which at least one is required. When the silence ends and the condition still holds, the alert is sent once. " +
			"An operator whose role is limited to a filter silences alerts whose devices all match it."}, a.createSilence)
	register(a, operation{id: "end-silence", method: http.MethodDelete, path: path + "/{id}", role: fleet.RoleOperator,
		reach: access.Part, models: fleet.ModelsNever, noun: "silence", summary: "End a silence now"}, a.endSilence)
}

// silenceView is a silence of alerts.
type silenceView struct {
	ID        uuid.UUID  `json:"id"`
	Alert     *uuid.UUID `json:"alert_id" doc:"The only alert that it is about; null: not only one"`
	Kind      alert.Kind `json:"kind" doc:"Of the alerts; empty: any"`
	Query     string     `json:"query" doc:"Filter that all devices of an alert must match; empty: any alert"`
	Scope     string     `json:"scope" doc:"Filter of the operator who made it, which the devices must match, too; may be empty"`
	Reason    string     `json:"reason"`
	CreatedAt time.Time  `json:"created_at"`
	CreatedBy silencedBy `json:"created_by"`
	Until     time.Time  `json:"until"`
	EndedAt   *time.Time `json:"ended_at" doc:"When a person ended it before its time; null if nobody has"`
	EndedBy   string     `json:"ended_by"`
	Active    bool       `json:"active" doc:"It has not ended"`
}

type silencedBy struct {
	Kind fleet.PrincipalKind `json:"kind"`
	Name string              `json:"name"`
}

// TransformSchema marks the properties that may be null.
func (silenceView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "alert_id", "ended_at")
}

func silenceOf(s alert.Silence, now time.Time) silenceView {
	v := silenceView{ID: s.ID, Kind: s.Kind, Query: s.Query, Scope: s.Scope, Reason: s.Reason, CreatedAt: utc(s.CreatedAt),
		CreatedBy: silencedBy{s.By.Kind, s.By.Name}, Until: utc(s.Until), EndedAt: utcOrNil(s.EndedAt), EndedBy: s.EndedBy,
		Active: s.Holds(now)}
	if s.Alert != uuid.Nil {
		v.Alert = &s.Alert
	}
	return v
}

type listSilencesInput struct {
	State string `query:"state" enum:"active,all" default:"active" doc:"active: has not ended"`
	Paging
}

func (a *api) listSilences(ctx context.Context, by fleet.Principal, in *listSilencesInput) (*answer[list[silenceView]],
	error) {
	found, err := a.Alerts.Silences(ctx, by, alert.SilenceFilter{Active: in.State == "active", Limit: in.Limit,
		Cursor: in.Cursor})
	if err != nil {
		return nil, err
	}
	return pageOf(found, func(s alert.Silence) silenceView { return silenceOf(s, time.Now()) }), nil
}

type createSilenceInput struct {
	Body struct {
		Alert  *uuid.UUID `json:"alert_id,omitempty" doc:"One alert that has not ended"`
		Kind   alert.Kind `json:"kind,omitempty" maxLength:"40" doc:"Alerts of a kind"`
		Query  string     `json:"query,omitempty" maxLength:"1024" doc:"Alerts whose devices all match a filter"`
		Until  *time.Time `json:"until,omitempty" doc:"When it ends, at most 90 days from now; or duration_ms"`
		For    *int64     `json:"duration_ms,omitempty" minimum:"1000" maximum:"7776000000" doc:"How long it lasts"`
		Reason string     `json:"reason" minLength:"1" maxLength:"500"`
	}
}

func (a *api) createSilence(ctx context.Context, by fleet.Principal, in *createSilenceInput) (*answer[silenceView],
	error) {
	b := &in.Body
	r := alert.SilenceRequest{Kind: b.Kind, Query: b.Query, Reason: b.Reason}
	if b.Alert != nil {
		r.Alert = *b.Alert
	}
	if b.Until != nil {
		r.Until = *b.Until
	}
	r.For = *cmp.Or(milliseconds(b.For), new(time.Duration))
	made, err := a.Alerts.Silence(ctx, by, r)
	if err != nil {
		return nil, err
	}
	return answerWith(silenceOf(made, time.Now())), nil
}

func (a *api) endSilence(ctx context.Context, by fleet.Principal, in *IDPath) (*empty, error) {
	_, err := a.Alerts.EndSilence(ctx, by, in.uuid())
	return &empty{}, err
}
