package api

import (
	"context"
	"encoding/hex"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/policy"
	"fleetd/web/access"
)

func (a *api) registerToolPins() {
	register(a, operation{id: "list-tool-pins", method: http.MethodGet, path: "/tool-pins", role: fleet.RoleViewer,
		reach: access.Fleet, models: fleet.ModelsMay, summary: "List pinned tools", about: "By name."}, a.listToolPins)
	register(a, operation{id: "put-tool-pin", method: http.MethodPut, path: "/tool-pins", role: fleet.RoleAdmin,
		reach: access.Fleet, models: fleet.ModelsNever, summary: "Pin a tool as a device lists it",
		about: "Replaces any existing pin of the tool. Language models may not call the tool on devices that " +
			"describe it otherwise: such calls are refused with tool_changed."}, a.putToolPin)
	register(a, operation{id: "delete-tool-pin", method: http.MethodDelete, path: "/tool-pins/{tool}",
		role: fleet.RoleAdmin, reach: access.Fleet, models: fleet.ModelsNever, noun: "tool_pin",
		summary: "Remove the pin of a tool", about: "Models can then call the tool however a device describes it."}, a.deleteToolPin)
}

type toolPinView struct {
	Tool     string    `json:"tool"`
	Digest   string    `json:"digest" doc:"SHA-256 of its description and schema, in hex"`
	PinnedBy string    `json:"pinned_by"`
	PinnedAt time.Time `json:"pinned_at"`
}

func toolPin(p policy.ToolPin) toolPinView {
	return toolPinView{Tool: p.Tool, Digest: hex.EncodeToString(p.Digest[:]),
		PinnedBy: p.PinnedBy, PinnedAt: utc(p.PinnedAt)}
}

func (a *api) listToolPins(ctx context.Context, _ fleet.Principal, _ *struct{}) (*answer[list[toolPinView]], error) {
	all, err := a.ToolPins.ToolPins(ctx)
	if err != nil {
		return nil, err
	}
	return listOf(all, toolPin), nil
}

type putToolPinInput struct {
	Body struct {
		Device string `json:"device" minLength:"1" maxLength:"80" doc:"Device id; a MAC address in any form"`
		Tool   string `json:"tool" minLength:"1" maxLength:"200" doc:"Name of a tool that it lists"`
	}
}

func (a *api) putToolPin(ctx context.Context, by fleet.Principal, in *putToolPinInput) (*answer[toolPinView], error) {
	id, err := fleet.ParseDeviceID(in.Body.Device)
	if err != nil {
		return nil, err
	}
	p, err := a.ToolPins.Save(ctx, by, id, in.Body.Tool)
	if err != nil {
		return nil, err
	}
	return answerWith(toolPin(p)), nil
}

type toolPinPath struct {
	Tool string `path:"tool" maxLength:"200"`
}

func (a *api) deleteToolPin(ctx context.Context, by fleet.Principal, in *toolPinPath) (*empty, error) {
	return &empty{}, a.ToolPins.Delete(ctx, by, in.Tool)
}
