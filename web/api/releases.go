package api

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/web/access"
)

func (a *api) registerReleases() {
	register(a, operation{id: "create-release", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/releases", role: fleet.RoleOperator,
		created: true,
		summary: "Create a release from images",
		about:   "One image per board and chip. Released at once, unless draft is true."}, a.createRelease)
	register(a, operation{id: "list-releases", reach: access.Shared, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/releases", role: fleet.RoleViewer,
		summary: "List releases, newest first"}, a.listReleases)
	register(a, operation{id: "get-release", reach: access.Shared, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/releases/{id}", role: fleet.RoleViewer,
		noun:    "release",
		summary: "Show a release with its images"}, a.getRelease)
	register(a, operation{id: "update-release", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPatch, path: "/releases/{id}", role: fleet.RoleOperator,
		noun:    "release",
		summary: "Change a draft", about: "Omitted fields stay as they are."}, a.updateRelease)
	register(a, operation{id: "release-release", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/releases/{id}/release",
		role: fleet.RoleOperator, noun: "release",
		summary: "Release a draft, so that it can go to devices"}, a.releaseRelease)
	register(a, operation{id: "deprecate-release", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/releases/{id}/deprecate",
		role: fleet.RoleOperator, noun: "release",
		summary: "Deprecate a release", about: "No new campaign can use it; running campaigns continue."},
		a.deprecateRelease)
	register(a, operation{id: "revoke-release", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/releases/{id}/revoke",
		role: fleet.RoleAdmin, noun: "release",
		summary: "Revoke a release and its images", about: "The images are never served again; downloads in progress are cut off."},
		a.revokeRelease)
	register(a, operation{id: "fit-release", reach: access.Shared, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/releases/{id}/fit", role: fleet.RoleViewer,
		noun:    "release",
		summary: "List the devices that a release fits, and why it does not fit others"}, a.fitRelease)
}

func (a *api) registerFloors() {
	register(a, operation{id: "list-floors", reach: access.Shared, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/floors", role: fleet.RoleViewer,
		summary: "List the minimum versions of boards"}, a.listFloors)
	register(a, operation{id: "set-floor", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPut, path: "/floors/{board}", role: fleet.RoleAdmin,
		summary: "Set the minimum version of a board",
		about: "Devices with the board get no older images: at planning, at dispatch, from a rollback, " +
			"and from a link that was sent already."}, a.setFloor)
	register(a, operation{id: "clear-floor", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodDelete, path: "/floors/{board}", role: fleet.RoleAdmin, noun: "floor",
		summary: "Remove the minimum version of a board"}, a.clearFloor)
}

type floorView struct {
	Board   string    `json:"board"`
	Version string    `json:"version" doc:"Devices with the board get no older version"`
	SetBy   actorView `json:"set_by"`
	SetAt   time.Time `json:"set_at"`
}

func floor(f firmware.Floor) floorView {
	return floorView{f.Board, f.Version, actor(f.SetBy), utc(f.SetAt)}
}

func (a *api) listFloors(ctx context.Context, _ fleet.Principal, _ *struct{}) (*answer[list[floorView]], error) {
	all, err := a.Firmware.Floors(ctx)
	if err != nil {
		return nil, err
	}
	return listOf(all, floor), nil
}

// BoardPath is the input of operations on one board.
type BoardPath struct {
	Board string `path:"board" minLength:"1" maxLength:"100"`
}

func (p BoardPath) pathID() string { return p.Board }

type setFloorInput struct {
	BoardPath
	Body struct {
		Version string `json:"version" minLength:"1" maxLength:"32" example:"2.5.0"`
	}
}

func (a *api) setFloor(ctx context.Context, by fleet.Principal, in *setFloorInput) (*answer[floorView], error) {
	f, err := a.Firmware.SetFloor(ctx, by, in.Board, in.Body.Version)
	if err != nil {
		return nil, err
	}
	return answerWith(floor(f)), nil
}

func (a *api) clearFloor(ctx context.Context, by fleet.Principal, in *BoardPath) (*empty, error) {
	return &empty{}, a.Firmware.ClearFloor(ctx, by, in.Board)
}

type createReleaseInput struct {
	Body struct {
		Version string   `json:"version,omitempty" maxLength:"100" doc:"Default: the version of the images"`
		Notes   string   `json:"notes,omitempty" maxLength:"10000"`
		Images  []string `json:"images" nullable:"false" maxItems:"500" doc:"SHA-256 of each"`
		Draft   bool     `json:"draft,omitempty" doc:"Keep it as a draft, which campaigns cannot use"`
	}
}

type createReleaseOutput struct {
	Location string `header:"Location"`
	Body     releaseView
}

func (a *api) createRelease(ctx context.Context, by fleet.Principal, in *createReleaseInput) (*createReleaseOutput,
	error) {
	b := in.Body
	r, err := a.Firmware.Create(ctx, by, firmware.ReleaseRequest{Version: b.Version, Notes: b.Notes, Images: b.Images,
		Draft: b.Draft})
	if err != nil {
		return nil, err
	}
	view, err := a.releaseOf(ctx, r)
	return &createReleaseOutput{prefix + "/releases/" + r.ID.String(), view}, err
}

type listReleasesInput struct {
	Paging
	State firmware.ReleaseState `query:"state" enum:"draft,released,deprecated,revoked"`
}

func (a *api) listReleases(ctx context.Context, _ fleet.Principal, in *listReleasesInput) (*answer[list[releaseView]],
	error) {
	page, err := a.Firmware.Releases(ctx, firmware.ReleaseFilter{State: in.State, Limit: in.Limit, Cursor: in.Cursor})
	if err != nil {
		return nil, err
	}
	var images []firmware.Image
	for _, r := range page.Items {
		images = append(images, r.Images...)
	}
	view, err := a.judgedImages(ctx, images)
	return pageOf(page, func(r firmware.Release) releaseView { return release(r, view) }), err
}

// shownRelease is the response of operations that return a release.
func (a *api) shownRelease(ctx context.Context) func(r firmware.Release, err error) (*answer[releaseView], error) {
	return func(r firmware.Release, err error) (*answer[releaseView], error) {
		if err != nil {
			return nil, err
		}
		view, err := a.releaseOf(ctx, r)
		return answerWith(view), err
	}
}

func (a *api) getRelease(ctx context.Context, _ fleet.Principal, in *IDPath) (*answer[releaseView], error) {
	return a.shownRelease(ctx)(a.Firmware.Release(ctx, in.uuid()))
}

type updateReleaseInput struct {
	IDPath
	Body struct {
		Version *string   `json:"version,omitempty" maxLength:"100" doc:"Empty: the version of the images"`
		Notes   *string   `json:"notes,omitempty" maxLength:"10000"`
		Images  *[]string `json:"images,omitempty" nullable:"false" maxItems:"500" doc:"Replaces all current ones"`
	}
}

func (a *api) updateRelease(ctx context.Context, by fleet.Principal, in *updateReleaseInput) (*answer[releaseView],
	error) {
	old, err := a.Firmware.Release(ctx, in.uuid())
	if err != nil {
		return nil, err
	}
	r := firmware.ReleaseRequest{Version: old.Version, Notes: old.Notes,
		Images: viewed(old.Images, func(i firmware.Image) string { return i.SHA256 })}
	set(&r.Version, in.Body.Version)
	set(&r.Notes, in.Body.Notes)
	set(&r.Images, in.Body.Images)
	return a.shownRelease(ctx)(a.Firmware.Edit(ctx, by, old.ID, r))
}

// set copies a field that the request names; nil leaves it unchanged.
func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

func (a *api) releaseRelease(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[releaseView], error) {
	return a.shownRelease(ctx)(a.Firmware.SetState(ctx, by, in.uuid(), firmware.ReleaseReleased, ""))
}

// MayReasonBody is an optional body with an optional reason.
type MayReasonBody struct {
	Body *struct {
		Reason string `json:"reason,omitempty" maxLength:"500"`
	}
}

func (b MayReasonBody) reason() string {
	if b.Body == nil {
		return ""
	}
	return b.Body.Reason
}

type deprecateReleaseInput struct {
	IDPath
	MayReasonBody
}

func (a *api) deprecateRelease(ctx context.Context, by fleet.Principal,
	in *deprecateReleaseInput) (*answer[releaseView],
	error) {
	return a.shownRelease(ctx)(a.Firmware.SetState(ctx, by, in.uuid(), firmware.ReleaseDeprecated, in.reason()))
}

type revokeReleaseInput struct {
	IDPath
	ReasonBody
}

func (a *api) revokeRelease(ctx context.Context, by fleet.Principal, in *revokeReleaseInput) (*answer[releaseView],
	error) {
	return a.shownRelease(ctx)(a.Firmware.SetState(ctx, by, in.uuid(), firmware.ReleaseRevoked, in.Body.Reason))
}

type fitReleaseInput struct {
	IDPath
	FitInput
}

func (a *api) fitRelease(ctx context.Context, _ fleet.Principal, in *fitReleaseInput) (*answer[fitView], error) {
	q := in.query()
	q.Release = in.uuid()
	return a.fit(ctx, q)
}
