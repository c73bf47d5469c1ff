package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/access"
)

func (a *api) registerSnapshots() {
	register(a, operation{id: "list-snapshots", reach: access.List,
		method: http.MethodGet, path: "/snapshots", role: fleet.RoleViewer,
		summary: "List the pictures of a device's screen, newest first", about: "Or the picture of one call."},
		a.listSnapshots)
	register(a, operation{id: "get-snapshot", reach: access.Record,
		method: http.MethodGet, path: "/snapshots/{id}", role: fleet.RoleViewer,
		noun:    "snapshot",
		summary: "Get the picture itself", more: func(h *huma.Operation) {
			picture := &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}
			h.Responses = map[string]*huma.Response{"200": {Description: "The picture",
				Content: map[string]*huma.MediaType{"image/jpeg": picture, "image/png": picture}}}
		}}, a.getSnapshot)
}

type snapshotView struct {
	ID        uuid.UUID      `json:"id" format:"uuid"`
	DeviceID  fleet.DeviceID `json:"device_id"`
	CallID    uuid.UUID      `json:"call_id" format:"uuid"`
	MediaType string         `json:"media_type" enum:"image/jpeg,image/png"`
	Width     int            `json:"width"`
	Height    int            `json:"height"`
	Bytes     int64          `json:"bytes"`
	SHA256    string         `json:"sha256"`
	CreatedAt time.Time      `json:"created_at"`
	URL       string         `json:"url" doc:"Where the picture is"`
}

func snapshot(s fleet.Snapshot) snapshotView {
	return snapshotView{ID: s.ID, DeviceID: s.Device, CallID: s.Call, MediaType: s.MediaType, Width: s.Width,
		Height: s.Height,
		Bytes:  s.Size, SHA256: s.Blob, CreatedAt: utc(s.CreatedAt), URL: prefix + "/snapshots/" + s.ID.String()}
}

type listSnapshotsInput struct {
	Device string `query:"device" maxLength:"80" doc:"Device id; a MAC address in any form"`
	Call   string `query:"call" format:"uuid" doc:"Id of the call that took the picture"`
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"50"`
}

func (a *api) listSnapshots(ctx context.Context, _ fleet.Principal,
	in *listSnapshotsInput) (*answer[list[snapshotView]],
	error) {
	if (in.Device == "") == (in.Call == "") {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_request.snapshots")
	}
	if in.Call != "" {
		return a.snapshotOf(ctx, in.Call)
	}
	id, err := fleet.ParseDeviceID(in.Device)
	if err != nil {
		return nil, err
	}
	shots, err := a.SnapshotStore.Snapshots(ctx, id, in.Limit)
	if err != nil {
		return nil, err
	}
	return listOf(shots, snapshot), nil
}

func (a *api) snapshotOf(ctx context.Context, call string) (*answer[list[snapshotView]], error) {
	id, _ := uuid.Parse(call) // the document asks for a UUID
	shot, err := a.SnapshotStore.SnapshotOfCall(ctx, id)
	if errors.Is(err, fleet.ErrNotFound) {
		return listOf([]fleet.Snapshot{}, snapshot), nil
	}
	if err != nil {
		return nil, err
	}
	return listOf([]fleet.Snapshot{shot}, snapshot), nil
}

// pictureOutput is a picture as a browser may keep it: it came from a device,
// so nothing in it is to run.
type pictureOutput struct {
	ContentType  string `header:"Content-Type"`
	CacheControl string `header:"Cache-Control"`
	CSP          string `header:"Content-Security-Policy"`
	Body         []byte
}

func (a *api) getSnapshot(ctx context.Context, _ fleet.Principal, in *IDPath) (*pictureOutput, error) {
	shot, data, err := a.Snapshots.Picture(ctx, in.uuid())
	if err != nil {
		return nil, err
	}
	return &pictureOutput{shot.MediaType, "private, max-age=31536000, immutable", "default-src 'none'; sandbox", data}, nil
}
