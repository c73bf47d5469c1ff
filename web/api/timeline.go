package api

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/web/access"
)

func (a *api) registerTimeline() {
	register(a, operation{id: "list-timeline", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}/timeline", role: fleet.RoleViewer,
		noun:    "device",
		summary: "Show what happened to a device, newest first",
		about: "One list of all records. Presence and restarts are kept as long as calls. An entry of a call " +
			"or a deployment shows its state now."}, a.listTimeline)
}

type timelineView struct {
	At     time.Time          `json:"at"`
	Kind   fleet.TimelineKind `json:"kind" enum:"presence,call,edit,hold,deployment,firmware,crash,inventory,configuration,conversation,picture,audit"`
	Ref    string             `json:"ref,omitempty" doc:"Id of the call, deployment, core dump, snapshot, conversation or audit entry"`
	Code   string             `json:"code" doc:"What happened: the presence, the state of a call or deployment, the action of an audit entry, or a code of the kind"`
	Params map[string]any     `json:"params,omitempty" doc:"Parameters of the code"`
	Actor  *actorView         `json:"actor,omitempty" doc:"Who did it; omitted if nobody did"`
}

func timelineEntry(e fleet.TimelineEntry) timelineView {
	v := timelineView{At: utc(e.At), Kind: e.Kind, Ref: e.Ref, Code: e.Code, Params: e.Params}
	if e.Actor != nil {
		v.Actor = ptr(actor(*e.Actor))
	}
	return v
}

type listTimelineInput struct {
	DevicePath
	Kinds  []string  `query:"kinds" maxItems:"20" doc:"Only entries of these kinds. Default: all"`
	Before time.Time `query:"before" doc:"Only entries before this time. Default: now"`
	Paging
}

func (a *api) listTimeline(ctx context.Context, _ fleet.Principal,
	in *listTimelineInput) (*answer[list[timelineView]], error) {
	id, err := in.device()
	if err != nil {
		return nil, err
	}
	f := fleet.TimelineFilter{Device: id, Before: in.Before, Limit: in.Limit, Cursor: in.Cursor}
	for _, k := range in.Kinds {
		f.Kinds = append(f.Kinds, fleet.TimelineKind(k))
	}
	page, err := a.Devices.Timeline(ctx, f)
	if err != nil {
		return nil, err
	}
	return pageOf(page, timelineEntry), nil
}
