package api

import (
	"bytes"
	"context"
	"encoding/json"
	"image"
	"image/color"
	"image/gif"
	"image/png"
	"io"
	"mime/multipart"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

func pngOf(w, h int) []byte {
	var b bytes.Buffer
	_ = png.Encode(&b, image.NewGray(image.Rect(0, 0, w, h)))
	return b.Bytes()
}

// pictureForm returns a form that shows a picture; nil omits the part.
func pictureForm(call, picture []byte, more ...string) (contentType string, body string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	if call != nil {
		_ = w.WriteField("call", string(call))
	}
	if picture != nil {
		part, _ := w.CreateFormFile("picture", "a.png")
		_, _ = part.Write(picture)
	}
	for _, name := range more {
		_ = w.WriteField(name, "x")
	}
	_ = w.Close()
	return w.FormDataContentType(), b.String()
}

// pictureWorld returns a world with a device that shows the pictures that it fetches.
func pictureWorld(t *testing.T) (w *world, shown func() image.Image) {
	w = newWorld(t)
	for _, id := range []fleet.DeviceID{unit, other} {
		w.listing(t, id, append(slices.Clone(tools), fleet.Tool{Name: fleet.ToolPreviewImage, Audience: fleet.AudienceUser,
			InputSchema: json.RawMessage(`{"type":"object","properties":{"url":{"type":"string"}},"required":["url"]}`)}))
	}
	var last image.Image
	w.link.Connect(unit, func(ctx context.Context, _ string, args json.RawMessage) (fleet.Answer, error) {
		var a struct{ URL string }
		_ = json.Unmarshal(args, &a)
		data, err := w.snapshots.FetchPreview(ctx, path.Base(path.Dir(a.URL)))
		if err != nil {
			return fleet.Answer{}, &fleet.ToolError{Message: err.Error()}
		}
		last, _, err = image.Decode(bytes.NewReader(data))
		return fleettest.Text("true"), err
	})
	return w, func() image.Image { return last }
}

const previewCall = `{"tool":"self.screen.preview_image"}`

func TestPreviewTakesAPicture(t *testing.T) {
	w, shown := pictureWorld(t)
	kind, body := pictureForm([]byte(previewCall), pngOf(64, 32))
	c := decode[callView](t, w.post(t, callPath, body, "Content-Type", kind, "Idempotency-Key", "one"), http.StatusOK)
	if c.State != fleet.CallSucceeded || shown() == nil || shown().Bounds().Dx() != 64 {
		t.Fatalf("call %s, %+v; shown %v", c.State, c.Error, shown())
	}
	// A form has another boundary each time it is created; the request is the same.
	kind, body = pictureForm([]byte(previewCall), pngOf(64, 32))
	r := w.post(t, callPath, body, "Content-Type", kind, "Idempotency-Key", "one")
	if again := decode[callView](t, r, http.StatusOK); again.ID != c.ID {
		t.Error("the same request under the same key made another call")
	}
	kind, body = pictureForm([]byte(previewCall), pngOf(64, 33))
	r = w.post(t, callPath, body, "Content-Type", kind, "Idempotency-Key", "one")
	if p := r.problem(t); p.Code != "idempotency_key_reused" {
		t.Errorf("another picture under the same key is answered %+v", p)
	}

	mine, theirs := w.snapshot(t, unit), w.snapshot(t, other)
	r = w.post(t, callPath, `{"tool":"self.screen.preview_image","picture":{"snapshot_id":"`+mine+`"}}`)
	c = decode[callView](t, r, http.StatusOK)
	if c.State != fleet.CallSucceeded || shown().Bounds().Dx() != 40 {
		t.Errorf("of a snapshot: %s, %+v; shown %v", c.State, c.Error, shown().Bounds())
	}
	for _, tt := range []struct{ body, code string }{
		{`{"tool":"self.screen.preview_image","picture":{"snapshot_id":"` + theirs + `"}}`, "snapshot_of_other_device"},
		{`{"tool":"self.screen.preview_image","picture":{"snapshot_id":"` + uuid.NewString() + `"}}`, "unknown_snapshot"},
		{`{"tool":"self.screen.preview_image","picture":{"snapshot_id":"x"}}`, "invalid_request"},
		{`{"tool":"self.screen.preview_image","picture":{}}`, "invalid_request"},
		{`{"tool":"self.get_device_status","picture":{"snapshot_id":"` + mine + `"}}`, "picture_not_taken"},
	} {
		if p := w.post(t, callPath, tt.body).problem(t); p.Status != 422 || p.Code != tt.code {
			t.Errorf("%s is answered %+v, want %s", tt.body, p, tt.code)
		}
	}
	c = decode[callView](t, w.post(t, callPath, previewCall), http.StatusOK)
	if c.State != fleet.CallInvalid || c.Error.Code != "picture_missing" {
		t.Errorf("without a picture the call is %s, %+v", c.State, c.Error)
	}
}

// snapshot stores a picture of 40 x 30 as a device's snapshot.
func (w *world) snapshot(t *testing.T, id fleet.DeviceID) string {
	t.Helper()
	url, err := w.snapshots.UploadURL(t.Context(), id, uuid.Must(uuid.NewV7()), 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	body := func() (io.Reader, error) { return bytes.NewReader(pngOf(40, 30)), nil }
	shot, err := w.snapshots.Receive(t.Context(), path.Base(url), body)
	if err != nil {
		t.Fatal(err)
	}
	return shot.ID.String()
}

func TestPicturesThatAreNone(t *testing.T) {
	w, _ := pictureWorld(t)
	var animated bytes.Buffer
	_ = gif.Encode(&animated, image.NewPaletted(image.Rect(0, 0, 4, 4), color.Palette{color.White}), nil)
	call := []byte(previewCall)
	both := []byte(`{"tool":"self.screen.preview_image","picture":{"snapshot_id":"` + w.snapshot(t, unit) + `"}}`)
	tests := []struct {
		name          string
		call, picture []byte
		more          []string
		status        int
		code          string
	}{
		{"GIF", call, animated.Bytes(), nil, 422, "unsupported_picture"},
		{"script", call, []byte("<svg/onload=alert(1)>"), nil, 422, "unsupported_picture"},
		{"half a PNG", call, pngOf(64, 64)[:60], nil, 422, "unsupported_picture"},
		{"no bytes", call, []byte{}, nil, 422, "unsupported_picture"},
		{"5 MB", call, make([]byte, 5_000_000), nil, 413, "body_too_large"},
		{"40 MB", call, make([]byte, 40_000_000), nil, 413, "body_too_large"},
		{"no picture", call, nil, nil, 422, "part_missing"},
		{"no call", nil, pngOf(4, 4), nil, 422, "part_missing"},
		{"another part", call, pngOf(4, 4), []string{"url"}, 422, "unknown_part"},
		{"the call twice", call, pngOf(4, 4), []string{"call"}, 400, "broken_body"},
		{"a call that is no JSON", []byte("{"), pngOf(4, 4), nil, 400, "malformed_json"},
		{"a call of 65 KB", []byte(strings.Repeat("x", 66_000)), pngOf(4, 4), nil, 413, "body_too_large"},
		{"a snapshot, too", both, pngOf(4, 4), nil, 422, "two_pictures"},
		{"for another tool", []byte(volume50), pngOf(4, 4), nil, 422, "picture_not_taken"},
	}
	for _, tt := range tests {
		kind, body := pictureForm(tt.call, tt.picture, tt.more...)
		if p := w.post(t, callPath, body, "Content-Type", kind).problem(t); p.Status != tt.status || p.Code != tt.code {
			t.Errorf("%s: answered %+v, want %d %s", tt.name, p, tt.status, tt.code)
		}
	}
	r := w.post(t, callPath, "no form at all", "Content-Type", "multipart/form-data; boundary=x")
	if p := r.problem(t); p.Code != "part_missing" && p.Code != "broken_body" {
		t.Errorf("no form: %+v", p)
	}
	kind, body := pictureForm(call, pngOf(4, 4))
	if p := w.as(t, fleet.RoleViewer, http.MethodPost, callPath, body, "Content-Type", kind).problem(t); p.Status != 403 {
		t.Errorf("a viewer's picture is answered %+v", p)
	}
	r = w.post(t, "/devices/ffffffffffff/calls", body, "Content-Type", kind)
	if p := r.problem(t); p.Status != 404 || p.Code != "unknown_device" {
		t.Errorf("for no device: %+v", p)
	}
	if all := decode[list[callView]](t, w.get(t, "/calls"), 200); len(all.Items) != 0 {
		t.Errorf("calls on record: %+v", all.Items)
	}
}
