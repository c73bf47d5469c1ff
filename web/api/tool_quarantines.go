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

func (a *api) registerToolQuarantines() {
	register(a, operation{id: "list-tool-quarantines", method: http.MethodGet, path: "/tool-quarantines",
		role: fleet.RoleViewer, reach: access.Fleet, models: fleet.ModelsMay, summary: "List tools in quarantine",
		about: "Tools of plug-ins and endpoints that changed although name, version and build of the program did not. " +
			"Language models may not call them: such calls are refused with tool_quarantined."}, a.listToolQuarantines)
	register(a, operation{id: "release-tool", method: http.MethodPost, path: "/tool-quarantines/release",
		role: fleet.RoleAdmin, reach: access.Fleet, models: fleet.ModelsNever, summary: "Release a tool from quarantine",
		about: "Trusts the tool with the given digest: models may call it again until it changes once more. A tool that " +
			"has another digest by now is not released."}, a.releaseTool)
}

type toolQuarantineView struct {
	Device  string    `json:"device_id"`
	Tool    string    `json:"tool"`
	Trusted string    `json:"trusted" doc:"SHA-256 of the description and schema that fleetd trusts, in hex; empty if the tool is new"`
	Digest  string    `json:"digest" doc:"SHA-256 of its description and schema now, in hex"`
	Since   time.Time `json:"since"`
}

func toolQuarantine(q policy.ToolQuarantine) toolQuarantineView {
	v := toolQuarantineView{Device: string(q.Device), Tool: q.Tool, Digest: hex.EncodeToString(q.Digest[:]),
		Since: utc(q.Since)}
	if !q.IsNew() {
		v.Trusted = hex.EncodeToString(q.Trusted[:])
	}
	return v
}

func (a *api) listToolQuarantines(context.Context, fleet.Principal, *struct{}) (*answer[list[toolQuarantineView]],
	error) {
	return listOf(a.ToolQuarantines.All(), toolQuarantine), nil
}

type releaseToolInput struct {
	Body struct {
		Device string `json:"device" minLength:"1" maxLength:"80" doc:"Id of a plug-in or an endpoint"`
		Tool   string `json:"tool" minLength:"1" maxLength:"200"`
		Digest string `json:"digest" minLength:"64" maxLength:"64" pattern:"^[0-9a-f]{64}$" doc:"As listed: what you have checked"`
	}
}

func (a *api) releaseTool(ctx context.Context, by fleet.Principal, in *releaseToolInput) (*empty, error) {
	id, err := fleet.ParseDeviceID(in.Body.Device)
	if err != nil {
		return nil, err
	}
	digest, err := fleet.ParseToolDigest(in.Body.Digest)
	if err != nil {
		return nil, err
	}
	return &empty{}, a.ToolQuarantines.Release(ctx, by, id, in.Body.Tool, digest)
}
