package api

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/heavy"
	"fleetd/fleet/origin"
	"fleetd/web/access"
	"fleetd/web/request"
)

func (a *api) registerAudit() {
	register(a, operation{id: "list-audit", reach: access.List, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/audit", role: fleet.RoleViewer,
		summary: "List audit entries, newest first",
		about: "Records every change and who made it. With kind, the list also contains tool calls, connections, steps of " +
			"campaigns and changes of firmware, in one order."}, a.listAudit)
	register(a, operation{id: "export-audit", reach: access.List, models: fleet.ModelsNever, heavy: heavy.Export,
		method: http.MethodGet, path: "/audit/export", role: fleet.RoleViewer,
		summary: "Export audit entries, newest first",
		about: "All entries of the filter in one response, however many. ndjson has an object on each line; csv has a header " +
			"and the same columns, with detail as JSON, and a cell that a spreadsheet would calculate (it begins with = + - @ | ;) " +
			"is prefixed with '. A response that was cut short ends without its last chunk.",
		more: func(h *huma.Operation) {
			text := &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
			h.Responses = map[string]*huma.Response{"200": {Description: "The file", Content: map[string]*huma.MediaType{
				audit.NDJSON.MediaType(): text, audit.CSV.MediaType(): text}}}
		}}, a.exportAudit)
}

// AuditFilter narrows a list of audit entries. It is exported because huma reads no fields of others.
type AuditFilter struct {
	Kind    []string  `query:"kind" maxItems:"5" doc:"Kinds of entries: action, call, connection, campaign_step, firmware. Without it, actions only"`
	Subject string    `query:"subject" maxLength:"200" doc:"Id of the changed object; for other kinds than action the device, or the campaign of steps"`
	Action  string    `query:"action" maxLength:"200" example:"device.hold" doc:"Action, or tool of a call; for other kinds the kind"`
	Actor   string    `query:"actor" maxLength:"200" doc:"Name of the principal"`
	Outcome string    `query:"outcome" maxLength:"50" doc:"State of a call, presence after a connection, or state after a step of a campaign"`
	TraceID string    `query:"trace_id" pattern:"^[0-9a-f]{32}$" doc:"Trace (W3C Trace Context) of the request that asked for it"`
	Address string    `query:"address" maxLength:"64" example:"203.0.113.7" doc:"IP address that the request came from"`
	Since   time.Time `query:"since" doc:"Made at or after this time"`
	Until   time.Time `query:"until" doc:"Made before this time"`
}

func (in *AuditFilter) filter() (f audit.Filter, err error) {
	f = audit.Filter{Subject: in.Subject, Action: in.Action, Actor: in.Actor, Outcome: in.Outcome, Since: in.Since,
		Until: in.Until}
	f.Trace, _ = origin.ParseTraceID(in.TraceID) // the pattern has checked it
	if f.Address, err = audit.ParseAddress(in.Address); err != nil {
		return f, err
	}
	f.Kinds, err = audit.ParseKinds(in.Kind)
	return f, err
}

type auditInput struct {
	Paging
	AuditFilter
}

type auditExportInput struct {
	AuditFilter
	Format audit.Format `query:"format" enum:"ndjson,csv" default:"ndjson"`
}

type auditView struct {
	Kind    audit.Kind     `json:"kind" enum:"action,call,connection,campaign_step,firmware"`
	ID      string         `json:"id" format:"uuid" doc:"Of the action, call or step; identifies entries of other kinds"`
	At      time.Time      `json:"at"`
	Actor   *actorView     `json:"actor" doc:"null if no principal acted"`
	Action  string         `json:"action" doc:"For a call its tool; for other kinds than action the kind"`
	Subject string         `json:"subject"`
	Name    string         `json:"subject_name" doc:"Name of the subject, as last recorded; empty if it has none"`
	Outcome string         `json:"outcome" doc:"State of a call, presence after a connection, or state after a step of a campaign; otherwise empty"`
	Origin  *originView    `json:"origin" doc:"Where the request came from; null if no request asked for it"`
	Detail  map[string]any `json:"detail"`
}

type originView struct {
	Address string `json:"address" doc:"Of the client, as the trusted proxies report it"`
	Client  string `json:"client" doc:"User-Agent, or name and version of an MCP client"`
	TraceID string `json:"trace_id" doc:"From traceparent, in HTTP or in _meta; empty if there was none"`
}

// TransformSchema marks the objects that may be null.
func (auditView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "actor", "origin")
}

func auditEntry(e audit.Entry) auditView {
	if e.Detail == nil {
		e.Detail = map[string]any{}
	}
	if code, ok := e.Detail["reason_code"].(string); ok {
		e.Detail = withReason(e.Detail, code)
	}
	v := auditView{Kind: e.Kind, ID: e.Ref(), At: utc(e.At), Action: e.Action, Subject: e.Subject, Name: e.Name,
		Outcome: e.Outcome, Detail: e.Detail}
	if e.Actor.Kind != "" {
		v.Actor = ptr(actor(e.Actor))
	}
	if e.Origin != (origin.Origin{}) {
		v.Origin = &originView{e.Origin.Address, e.Origin.Client, e.Origin.Trace.String()}
	}
	return v
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
	f, err := in.filter()
	if err != nil {
		return nil, err
	}
	f.Limit, f.Cursor = in.Limit, in.Cursor
	page, err := a.Audit.AuditEntries(ctx, f)
	if err != nil {
		return nil, err
	}
	return pageOf(page, auditEntry), nil
}

func (a *api) exportAudit(ctx context.Context, _ fleet.Principal, in *auditExportInput) (*huma.StreamResponse, error) {
	f, err := in.filter()
	if err != nil {
		return nil, err
	}
	export, err := audit.NewExport(ctx, a.Audit, f, in.Format)
	if err != nil {
		return nil, err
	}
	return writeStream(in.Format.MediaType(), "audit."+string(in.Format), func(w http.ResponseWriter) error {
		return export.Write(ctx, w, request.Progress(w))
	}), nil
}
