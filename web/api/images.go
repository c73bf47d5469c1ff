package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
)

func (a *api) registerImages() {
	register(a, operation{id: "upload-image", reach: access.Fleet, models: fleet.ModelsNever, heavy: heavy.Upload,
		method: http.MethodPost, path: "/images", role: fleet.RoleOperator,
		created: true, streams: true,
		summary: "Upload a firmware image",
		about: "An app image, or a merged-binary.bin, from which the app is extracted. Send the file as the body, with ?board= and ?notes=, or as multipart/form-data. " +
			"Images are known by their SHA-256: the same one again is answered 200, so a repetition does no harm and needs no Idempotency-Key.",
		more: func(h *huma.Operation) { describeUpload(a, h) }}, a.uploadImage)
	describeUploadBody(a.huma.OpenAPI().Paths["/images"].Post)
	register(a, operation{id: "list-images", reach: access.Shared, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/images", role: fleet.RoleViewer,
		summary: "List firmware images, newest first"}, a.listImages)
	register(a, operation{id: "get-image", reach: access.Shared, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/images/{sha256}", role: fleet.RoleViewer,
		noun:    "image",
		summary: "Show a firmware image"}, a.getImage)
	register(a, operation{id: "update-image", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPatch, path: "/images/{sha256}", role: fleet.RoleOperator,
		noun:    "image",
		summary: "Change an image's board or notes", about: "Omitted fields stay as they are."}, a.updateImage)
	register(a, operation{id: "sign-image", reach: access.Fleet, models: fleet.ModelsNever, heavy: heavy.Upload,
		method: http.MethodPut, path: "/images/{sha256}/manifest",
		role: fleet.RoleOperator, noun: "image",
		summary: "Give an image its signed manifest",
		about:   "The body is the .manifest file that `fleetd image sign` wrote. Devices that accept only signed images get it with their orders."}, a.signImage)
	register(a, operation{id: "delete-image", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodDelete, path: "/images/{sha256}",
		role: fleet.RoleOperator, noun: "image",
		summary: "Delete an image that no release or campaign uses"}, a.deleteImage)
	register(a, operation{id: "revoke-image", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/images/{sha256}/revoke",
		role: fleet.RoleAdmin, noun: "image",
		summary: "Revoke an image", about: "The image is never served again; downloads in progress are cut off."}, a.revokeImage)
	register(a, operation{id: "fit-image", reach: access.Shared, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/images/{sha256}/fit", role: fleet.RoleViewer,
		noun:    "image",
		summary: "List the devices that an image fits, and why it does not fit others"}, a.fitImage)
}

// ImagePath is the input of operations on one image.
type ImagePath struct {
	SHA256 string `path:"sha256" pattern:"^[0-9a-fA-F]{64}$" patternDescription:"64 hex digits"`
}

func (p ImagePath) pathID() string { return p.SHA256 }
func (p ImagePath) sha256() string { return strings.ToLower(p.SHA256) }

type listImagesInput struct {
	Paging
	Chip    string `query:"chip" maxLength:"100"`
	Board   string `query:"board" maxLength:"200"`
	Version string `query:"version" maxLength:"100"`
}

func (a *api) listImages(ctx context.Context, _ fleet.Principal, in *listImagesInput) (*answer[list[imageView]],
	error) {
	page, err := a.Firmware.Images(ctx, firmware.ImageFilter{Chip: in.Chip, Board: in.Board, Version: in.Version,
		Limit: in.Limit, Cursor: in.Cursor})
	if err != nil {
		return nil, err
	}
	view, err := a.judgedImages(ctx, page.Items)
	return pageOf(page, view), err
}

// shownImage is the response of operations that return an image.
func (a *api) shownImage(ctx context.Context) func(i firmware.Image, err error) (*answer[imageView], error) {
	return func(i firmware.Image, err error) (*answer[imageView], error) {
		if err != nil {
			return nil, err
		}
		view, err := a.judgedImages(ctx, []firmware.Image{i})
		return answerWith(view(i)), err
	}
}

func (a *api) getImage(ctx context.Context, _ fleet.Principal, in *ImagePath) (*answer[imageView], error) {
	return a.shownImage(ctx)(a.Firmware.Image(ctx, in.sha256()))
}

type updateImageInput struct {
	ImagePath
	Body struct {
		Board *string `json:"board,omitempty" maxLength:"200" doc:"Empty: every board with the chip"`
		Notes *string `json:"notes,omitempty" maxLength:"10000"`
	}
}

func (a *api) updateImage(ctx context.Context, by fleet.Principal, in *updateImageInput) (*answer[imageView], error) {
	return a.shownImage(ctx)(a.Firmware.Update(ctx, by, in.sha256(), in.Body.Board, in.Body.Notes))
}

type signImageInput struct {
	ImagePath
	Body struct {
		Manifest  string `json:"manifest" maxLength:"1024" doc:"The exact text that was signed"`
		Signature string `json:"signature" maxLength:"128" doc:"Ed25519, base64"`
		Key       string `json:"key,omitempty" maxLength:"64" doc:"The public key, hex"`
	}
}

func (a *api) signImage(ctx context.Context, by fleet.Principal, in *signImageInput) (*answer[imageView], error) {
	file, err := json.Marshal(in.Body)
	if err != nil {
		return nil, err
	}
	return a.shownImage(ctx)(a.Firmware.SetManifest(ctx, by, in.sha256(), file))
}

func (a *api) deleteImage(ctx context.Context, by fleet.Principal, in *ImagePath) (*empty, error) {
	return &empty{}, a.Firmware.Delete(ctx, by, in.sha256())
}

// ReasonBody is a body with a required reason.
type ReasonBody struct {
	Body struct {
		Reason string `json:"reason" minLength:"1" maxLength:"500"`
	}
}

type revokeImageInput struct {
	ImagePath
	ReasonBody
}

func (a *api) revokeImage(ctx context.Context, by fleet.Principal, in *revokeImageInput) (*answer[imageView], error) {
	return a.shownImage(ctx)(a.Firmware.Revoke(ctx, by, in.sha256(), in.Body.Reason))
}

type fitImageInput struct {
	ImagePath
	FitInput
}

func (a *api) fitImage(ctx context.Context, _ fleet.Principal, in *fitImageInput) (*answer[fitView], error) {
	q := in.query()
	q.Image = in.sha256()
	return a.fit(ctx, q)
}

func (a *api) fit(ctx context.Context, q firmware.FitQuery) (*answer[fitView], error) {
	report, err := a.Firmware.Fit(ctx, q)
	if err != nil {
		return nil, err
	}
	return answerWith(fit(report)), nil
}
