package api

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/web/access"
)

func (a *api) registerAudit() {
	register(a, operation{id: "list-audit", reach: access.List, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/audit", role: fleet.RoleViewer,
		summary: "List audit entries, newest first",
		about:   "Records every change and who made it. Tool calls are recorded separately: see /calls."}, a.listAudit)
}

type auditInput struct {
	Paging
	Subject string    `query:"subject" maxLength:"200" doc:"Id of the changed object"`
	Action  string    `query:"action" maxLength:"100" example:"device.hold"`
	Actor   string    `query:"actor" maxLength:"200" doc:"Name of the principal"`
	Since   time.Time `query:"since" doc:"Made at or after this time"`
	Until   time.Time `query:"until" doc:"Made before this time"`
}

type auditView struct {
	ID      uuid.UUID      `json:"id" format:"uuid"`
	At      time.Time      `json:"at"`
	Actor   actorView      `json:"actor"`
	Action  string         `json:"action"`
	Subject string         `json:"subject"`
	Name    string         `json:"subject_name" doc:"Name of the changed object, as last recorded; empty if it has none"`
	Detail  map[string]any `json:"detail"`
}

func auditEntry(e audit.Entry) auditView {
	if e.Detail == nil {
		e.Detail = map[string]any{}
	}
	if code, ok := e.Detail["reason_code"].(string); ok {
		e.Detail = withReason(e.Detail, code)
	}
	return auditView{ID: e.ID, At: utc(e.At), Actor: actor(e.Actor), Action: e.Action, Subject: e.Subject,
		Name: e.Name, Detail: e.Detail}
}

// withReason adds the English text of the reason that is recorded as a code.
func withReason(detail map[string]any, code string) map[string]any {
	params, _ := json.Marshal(detail["reason_params"]) // it was JSON before
	reason := fleet.Reason{Code: code}
	_ = json.Unmarshal(params, &reason.Params) // with another shape, the text lacks them
	detail = maps.Clone(detail)
	detail["reason"] = because(reason)
	return detail
}

func (a *api) listAudit(ctx context.Context, _ fleet.Principal, in *auditInput) (*answer[list[auditView]], error) {
	f := audit.Filter{Subject: in.Subject, Action: in.Action, Actor: in.Actor, Since: in.Since, Until: in.Until,
		Limit: in.Limit, Cursor: in.Cursor}
	page, err := a.Audit.AuditEntries(ctx, f)
	if err != nil {
		return nil, err
	}
	return pageOf(page, auditEntry), nil
}
