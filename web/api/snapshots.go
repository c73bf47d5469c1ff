package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/picture"
	"fleetd/web/access"
)

func (a *api) registerSnapshots() {
	register(a, operation{id: "list-snapshots", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/snapshots", role: fleet.RoleViewer,
		summary: "List the pictures of a device, a call or a fan-out",
		about: "Pictures of screens and from cameras. Those of a device come newest first, those of a call oldest first. " +
			"Of a fan-out, there is one for each device, the newest that a call of the fan-out took, in the order of the devices' ids."},
		a.listSnapshots)
	register(a, operation{id: "get-snapshot", reach: access.Record, models: fleet.ModelsMay,
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
	Kind      string         `json:"kind" enum:"screen,camera" doc:"Of the device's screen or from its camera"`
	CallID    *uuid.UUID     `json:"call_id" format:"uuid" doc:"Call for which it was taken; null if a camera sent it without a call"`
	Question  string         `json:"question" doc:"Question for a camera picture; otherwise empty"`
	MediaType string         `json:"media_type" enum:"image/jpeg,image/png"`
	Width     int            `json:"width"`
	Height    int            `json:"height"`
	Bytes     int64          `json:"bytes"`
	SHA256    string         `json:"sha256"`
	CreatedAt time.Time      `json:"created_at"`
	URL       string         `json:"url" doc:"Where the picture is"`
}

func snapshot(s picture.Snapshot) snapshotView {
	v := snapshotView{ID: s.ID, Kind: string(s.Kind), Question: s.Question,
		DeviceID: s.Device, MediaType: s.MediaType, Width: s.Width,
		Height: s.Height,
		Bytes:  s.Size, SHA256: s.Blob, CreatedAt: utc(s.CreatedAt), URL: prefix + "/snapshots/" + s.ID.String()}
	if s.Call != uuid.Nil {
		v.CallID = &s.Call
	}
	return v
}

type listSnapshotsInput struct {
	Device string    `query:"device" maxLength:"80" doc:"Device id; a MAC address in any form"`
	Call   string    `query:"call" format:"uuid" doc:"Id of the call that took the picture"`
	FanOut string    `query:"fanout" format:"uuid" doc:"Id of the bulk call whose calls took the pictures"`
	Kind   string    `query:"kind" enum:"screen,camera" doc:"Not with call: only pictures of this kind"`
	Since  time.Time `query:"since" doc:"Not with call: taken at or after this time"`
	Until  time.Time `query:"until" doc:"Not with call: taken before this time"`
	Paging
}

func (a *api) listSnapshots(ctx context.Context, _ fleet.Principal,
	in *listSnapshotsInput) (*answer[list[snapshotView]],
	error) {
	named := 0
	for _, id := range []string{in.Device, in.Call, in.FanOut} {
		if id != "" {
			named++
		}
	}
	if named != 1 {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_request.snapshots")
	}
	if in.Call != "" {
		id, _ := uuid.Parse(in.Call) // huma has validated the UUID
		shots, err := a.Pictures.SnapshotsOfCall(ctx, id, in.Limit)
		if err != nil {
			return nil, err
		}
		return listOf(shots, snapshot), nil
	}
	f := picture.Filter{Kind: picture.SnapshotKind(in.Kind), Since: in.Since, Until: in.Until, Limit: in.Limit,
		Cursor: in.Cursor}
	var err error
	if in.FanOut != "" {
		f.FanOut, _ = uuid.Parse(in.FanOut)
	} else if f.Device, err = fleet.ParseDeviceID(in.Device); err != nil {
		return nil, err
	}
	page, err := a.Pictures.Snapshots(ctx, f)
	if err != nil {
		return nil, err
	}
	return pageOf(page, snapshot), nil
}

// pictureOutput is a picture that a browser may cache: it came from a device, so the browser must
// not execute anything in it.
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
