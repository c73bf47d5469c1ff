package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/picture"
)

// pictureRef names a picture that fleetd already has.
type pictureRef struct {
	Snapshot string `json:"snapshot_id" format:"uuid" doc:"A snapshot of the same device"`
}

type pictureKeyType struct{}

// pictureIn returns the picture of the request's form, or nil.
func pictureIn(ctx context.Context) []byte {
	data, _ := ctx.Value(pictureKeyType{}).([]byte)
	return data
}

func isForm(r *http.Request) bool {
	return strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/form-data")
}

// openForm lets an operation that accepts JSON accept a form too: the part "call" becomes the body,
// and the part "picture" is in the request's context.
func openForm(limit int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isForm(r) {
			next.ServeHTTP(w, r)
			return
		}
		call, file, p := readForm(r, limit)
		if p != nil {
			p.write(w)
			return
		}
		body := &bufferedBody{data: call}
		body.Reset(call)
		r = r.WithContext(context.WithValue(r.Context(), pictureKeyType{}, file))
		r.Body, r.ContentLength = body, int64(len(call))
		r.Header = r.Header.Clone()
		r.Header.Set("Content-Type", "application/json")
		next.ServeHTTP(w, r)
	})
}

func readForm(r *http.Request, limit int64) (call, file []byte, p *problem) {
	broken := refused(http.StatusBadRequest, fleet.Refuse(fleet.ErrInvalid, "broken_body.picture_form"))
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, nil, broken
	}
	for form := multipart.NewReader(r.Body, params["boundary"]); ; {
		part, err := form.NextPart()
		switch {
		case errors.Is(err, io.EOF) && call != nil && file != nil:
			return call, file, nil
		case errors.Is(err, io.EOF):
			return nil, nil, refused(http.StatusUnprocessableEntity, fleet.Refuse(fleet.ErrInvalid, "part_missing"))
		case err != nil:
			return nil, nil, broken
		}
		to, most := &call, limit
		switch part.FormName() {
		case "call":
		case "picture":
			to, most = &file, picture.MaxSnapshotBytes
		default:
			return nil, nil, refused(http.StatusUnprocessableEntity, fleet.Refuse(fleet.ErrInvalid, "unknown_part"))
		}
		data, err := io.ReadAll(io.LimitReader(part, most+1))
		switch {
		case err != nil || *to != nil:
			return nil, nil, broken
		case int64(len(data)) > most:
			return nil, nil, refused(http.StatusRequestEntityTooLarge, fleet.Refuse(fleet.ErrInvalid, "body_too_large.picture",
				"picture_mib", picture.MaxSnapshotBytes>>20, "limit", limit>>10).At(part.FormName()))
		}
		*to = append([]byte{}, data...)
	}
}

// describePictureForm must run after the registration, like describeUploadBody.
func describePictureForm(op *huma.Operation) {
	op.RequestBody.Content["multipart/form-data"] = &huma.MediaType{Schema: &huma.Schema{
		Type: huma.TypeObject, Required: []string{"call", "picture"},
		Properties: map[string]*huma.Schema{
			"call": op.RequestBody.Content["application/json"].Schema,
			"picture": {Type: huma.TypeString, Format: "binary",
				Description: "JPEG or PNG, at most 4 MiB; made to fit the screen"}}}}
}

// pictureFor returns the key of the picture that a call shows: of the form, or of the named
// snapshot; "" without one.
func (a *api) pictureFor(ctx context.Context, device fleet.DeviceID, tool string, ref *pictureRef) (string, error) {
	data := pictureIn(ctx)
	if data == nil && ref == nil {
		return "", nil
	}
	switch {
	case data != nil && ref != nil:
		return "", fleet.Refuse(fleet.ErrInvalid, "two_pictures").At("picture")
	case !fleet.ShowsPicture(tool):
		return "", fleet.Refuse(fleet.ErrInvalid, "picture_not_taken", "tool", tool,
			"other", fleet.ToolPreviewImage).At("picture")
	}
	if _, err := a.Devices.Device(ctx, device); err != nil {
		return "", err
	}
	if ref == nil {
		return a.Snapshots.PreviewFor(ctx, device, bytes.NewReader(data))
	}
	id, _ := uuid.Parse(ref.Snapshot) // huma has validated the UUID
	return a.Snapshots.PreviewOf(ctx, device, id)
}
