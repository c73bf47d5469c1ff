package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
	"fleetd/web/access"
)

func (a *api) registerCoreDumps() {
	register(a, operation{id: "list-core-dumps", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}/core-dumps",
		role: fleet.RoleViewer, noun: "device",
		summary: "List the core dumps of a device, newest first"}, a.listCoreDumps)
	register(a, operation{id: "fetch-core-dump", reach: access.Device, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/devices/{id}/core-dumps",
		role: fleet.RoleOperator, noun: "device",
		summary: "Make a device send its core dump",
		about: "Asks the device for its core dump, then calls " + fleet.ToolCoreDumpUpload +
			" and waits; answers with that call, whatever its state. " +
			"fleetd also fetches core dumps automatically, unless it was started with --collect-core-dumps=false."}, a.fetchCoreDump)
	register(a, operation{id: "get-core-dump", reach: access.Record, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/core-dumps/{id}", role: fleet.RoleViewer,
		noun:    "core_dump",
		summary: "Show a core dump"}, a.getCoreDump)
	register(a, operation{id: "delete-core-dump", reach: access.Record, models: fleet.ModelsNever,
		method: http.MethodDelete, path: "/core-dumps/{id}",
		role: fleet.RoleOperator, noun: "core_dump",
		summary: "Delete a core dump"}, a.deleteCoreDump)
	register(a, operation{id: "get-core-dump-content", reach: access.Record, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/core-dumps/{id}/content",
		role: fleet.RoleOperator, noun: "core_dump",
		summary: "Get the core dump itself",
		about:   "A copy of part of the device's memory, for esp-coredump with --core-format raw. It may contain keys and passwords.",
		more: func(h *huma.Operation) {
			bytes := &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}
			h.Responses = map[string]*huma.Response{"200": {Description: "The core dump",
				Content: map[string]*huma.MediaType{"application/octet-stream": bytes}}}
		}}, a.getCoreDumpContent)
}

type coreDumpView struct {
	ID          uuid.UUID             `json:"id" format:"uuid"`
	DeviceID    fleet.DeviceID        `json:"device_id"`
	CallID      uuid.UUID             `json:"call_id" format:"uuid"`
	Bytes       int64                 `json:"bytes"`
	SHA256      string                `json:"sha256"`
	Summary     string                `json:"summary" doc:"The device's own words"`
	ELFSHA256   string                `json:"elf_sha256" doc:"Of the build that crashed, or the beginning of it; empty if unknown"`
	BuildFrom   telemetry.BuildSource `json:"build_from" enum:",core_dump,device" doc:"Source of the build: the core dump names it, or the device ran it when the core dump was fetched, which differs after a rollback"`
	Version     string                `json:"version" doc:"Of that build; empty if unknown"`
	ResetReason string                `json:"reset_reason" doc:"Of the start before the core dump was fetched, as the device reported"`
	CreatedAt   time.Time             `json:"created_at"`
	URL         string                `json:"url" doc:"Where the core dump itself is"`
}

func coreDump(c telemetry.CoreDump) coreDumpView {
	return coreDumpView{ID: c.ID, DeviceID: c.Device, CallID: c.Call, Bytes: c.Size, SHA256: c.Blob, Summary: c.Summary,
		ELFSHA256: c.ELFSHA256, BuildFrom: c.BuildFrom, Version: c.Version, ResetReason: c.ResetReason,
		CreatedAt: utc(c.CreatedAt),
		URL:       prefix + "/core-dumps/" + c.ID.String() + "/content"}
}

type listCoreDumpsInput struct {
	DevicePath
	Limit int `query:"limit" minimum:"1" maximum:"500" default:"50"`
}

func (a *api) listCoreDumps(ctx context.Context, _ fleet.Principal,
	in *listCoreDumpsInput) (*answer[list[coreDumpView]],
	error) {
	d, err := a.find(ctx, in.DevicePath)
	if err != nil {
		return nil, err
	}
	dumps, err := a.CoreDumps.CoreDumps(ctx, d.ID, in.Limit)
	if err != nil {
		return nil, err
	}
	return listOf(dumps, coreDump), nil
}

type fetchCoreDumpInput struct {
	DevicePath
	Body struct {
		Erase *bool `json:"erase,omitempty" doc:"Erase it on the device once it has been fetched. Default: true"`
	}
}

func (a *api) fetchCoreDump(ctx context.Context, by fleet.Principal, in *fetchCoreDumpInput) (*answer[callView],
	error) {
	id, err := in.device()
	if err != nil {
		return nil, err
	}
	c, err := a.CoreDumps.Fetch(ctx, by, id, in.Body.Erase == nil || *in.Body.Erase)
	if err != nil {
		return nil, err
	}
	return answerWith(viewOfCall(c)), nil
}

func (a *api) getCoreDump(ctx context.Context, _ fleet.Principal, in *IDPath) (*answer[coreDumpView], error) {
	c, err := a.CoreDumps.CoreDump(ctx, in.uuid())
	if err != nil {
		return nil, err
	}
	return answerWith(coreDump(c)), nil
}

func (a *api) deleteCoreDump(ctx context.Context, by fleet.Principal, in *IDPath) (*empty, error) {
	return &empty{}, a.CoreDumps.Delete(ctx, by, in.uuid())
}

// fileOutput is foreign bytes for a download, never for display.
type fileOutput struct {
	ContentType  string `header:"Content-Type"`
	Disposition  string `header:"Content-Disposition"`
	CacheControl string `header:"Cache-Control"`
	Body         []byte
}

func (a *api) getCoreDumpContent(ctx context.Context, by fleet.Principal, in *IDPath) (*fileOutput, error) {
	c, data, err := a.CoreDumps.Content(ctx, by, in.uuid())
	if err != nil {
		return nil, err
	}
	return &fileOutput{"application/octet-stream", `attachment; filename="` + c.FileName() + `"`, "no-store", data}, nil
}
