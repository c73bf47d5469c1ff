package api

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// Limits of an upload.
const (
	formExtra     = 1 << 20          // the form around its file
	formMemory    = 1 << 20          // of a form; the rest of its file is on disk
	uploadStall   = 30 * time.Second // without a byte
	uploadTimeout = 30 * time.Minute // for the whole upload: a modem's pace
	answerTimeout = time.Minute
)

// uploadInput contains the request itself: its body can be as large as a flash chip, and is read as
// it arrives.
type uploadInput struct {
	Board    string `query:"board" maxLength:"200" doc:"Board that the image was built for, as its devices name it; without it, every board with the image's chip"`
	Notes    string `query:"notes" maxLength:"10000"`
	FileName string `query:"file_name" maxLength:"300" doc:"Name of the file, of a raw body"`
	DryRun   bool   `query:"dry_run" doc:"Stores nothing; the answer, 200, is the image as it would be stored"`

	r *http.Request
	w http.ResponseWriter
}

// Resolve stores the request for the handler; the document cannot express it.
func (in *uploadInput) Resolve(ctx huma.Context) []error {
	in.r, in.w = humachi.Unwrap(ctx)
	return nil
}

func (in *uploadInput) form() bool {
	mediaType, _, _ := mime.ParseMediaType(in.r.Header.Get("Content-Type"))
	return strings.HasPrefix(mediaType, "multipart/")
}

func (in *uploadInput) limit() int64 {
	if in.form() {
		return firmware.MaxImageBytes + formExtra
	}
	return firmware.MaxImageBytes
}

type uploadOutput struct {
	Status   int
	Location string `header:"Location"`
	Body     imageView
}

func describeUpload(a *api, h *huma.Operation) {
	also[imageView](a, h, "200", "The very same image is on record already, or it was a dry run; nothing was changed")
	also[imageView](a, h, "201", "The image is on record")
}

// describeUploadBody must run after the registration: huma would read a body that it knows about
// into memory.
func describeUploadBody(op *huma.Operation) {
	file := &huma.Schema{Type: huma.TypeString, Format: "binary"}
	text := &huma.Schema{Type: huma.TypeString}
	op.RequestBody = &huma.RequestBody{Required: true, Description: "The file, at most 64 MiB",
		Content: map[string]*huma.MediaType{
			"application/octet-stream": {Schema: file},
			"multipart/form-data": {Schema: &huma.Schema{Type: huma.TypeObject, Required: []string{"file"},
				Properties: map[string]*huma.Schema{"file": file, "board": text, "notes": text, "manifest": {Type: huma.TypeString,
					Format:      "binary",
					Description: "The .manifest file of the image, if it is signed"}}}},
		}}
}

func (a *api) uploadImage(ctx context.Context, by fleet.Principal, in *uploadInput) (*uploadOutput, error) {
	if in.r.ContentLength > in.limit() {
		in.w.Header().Set("Connection", "close") // the rest is not read
		return nil, imageTooLarge()
	}
	body := newUploadBody(in.w, in.r.Body, in.limit())
	defer body.finish()
	img, created, err := a.receive(ctx, by, in, body)
	if p := body.fault(); p != nil {
		in.w.Header().Set("Connection", "close")
		return nil, p
	}
	if err != nil {
		return nil, err
	}
	view, err := a.judgedImages(ctx, []firmware.Image{img})
	if err != nil {
		return nil, err
	}
	out := &uploadOutput{http.StatusOK, prefix + "/images/" + img.SHA256, view(img)}
	if created {
		out.Status = http.StatusCreated
	}
	return out, nil
}

// receive passes on the body, or the file in its form.
func (a *api) receive(ctx context.Context, by fleet.Principal, in *uploadInput, body *uploadBody) (firmware.Image, bool,
	error) {
	u := firmware.ImageUpload{Body: body, FileName: in.FileName, Board: in.Board, Notes: in.Notes}
	if !in.form() {
		return a.upload(ctx, by, in, u)
	}
	in.r.Body = body
	if err := in.r.ParseMultipartForm(formMemory); err != nil {
		return firmware.Image{}, false, refused(http.StatusBadRequest, fleet.Refuse(fleet.ErrInvalid, "broken_body.file_form"))
	}
	defer func() { _ = in.r.MultipartForm.RemoveAll() }()
	return a.receiveForm(ctx, by, in, u)
}

// upload stores the image, or returns a preview of it.
func (a *api) upload(ctx context.Context, by fleet.Principal, in *uploadInput, u firmware.ImageUpload) (firmware.Image,
	bool, error) {
	if in.DryRun {
		img, _, err := a.Firmware.Inspect(ctx, by, u)
		return img, false, err
	}
	return a.Firmware.Upload(ctx, by, u)
}

func (a *api) receiveForm(ctx context.Context, by fleet.Principal, in *uploadInput, u firmware.ImageUpload) (
	firmware.Image, bool, error) {
	r := in.r
	file, header, err := r.FormFile("file")
	if err != nil {
		return firmware.Image{}, false, fleet.Refuse(fleet.ErrInvalid, "file_missing.part").At("file")
	}
	defer file.Close()
	if header.Size > firmware.MaxImageBytes {
		return firmware.Image{}, false, imageTooLarge()
	}
	u.Body, u.FileName = file, header.Filename
	if u.Manifest, err = formManifest(r); err != nil {
		return firmware.Image{}, false, err
	}
	for name, to := range map[string]*string{"board": &u.Board, "notes": &u.Notes} {
		if v := r.MultipartForm.Value[name]; len(v) > 0 {
			*to = v[0]
		}
	}
	return a.upload(ctx, by, in, u)
}

// formManifest reads the .manifest file of a form, sent as a file or as a field.
func formManifest(r *http.Request) ([]byte, error) {
	if v := r.MultipartForm.Value["manifest"]; len(v) > 0 {
		return []byte(v[0]), nil
	}
	file, _, err := r.FormFile("manifest")
	if errors.Is(err, http.ErrMissingFile) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, firmware.MaxManifestBytes+1))
}

func imageTooLarge() *problem {
	return refused(http.StatusRequestEntityTooLarge,
		fleet.Refuse(fleet.ErrInvalid, "image_too_large.upload", "limit", firmware.MaxImageBytes>>20))
}

// uploadBody reads a body as long as bytes arrive, up to a limit, and records how reading failed,
// because the readers in between may lose the cause.
type uploadBody struct {
	body  io.ReadCloser
	conn  *http.ResponseController
	until time.Time
	err   error
}

func newUploadBody(w http.ResponseWriter, body io.ReadCloser, limit int64) *uploadBody {
	return &uploadBody{body: http.MaxBytesReader(w, body, limit), conn: http.NewResponseController(w),
		until: time.Now().Add(uploadTimeout)}
}

func (b *uploadBody) Read(p []byte) (int, error) {
	deadline := time.Now().Add(uploadStall)
	if deadline.After(b.until) {
		deadline = b.until
	}
	_ = b.conn.SetReadDeadline(deadline) // some writers have no connection
	n, err := b.body.Read(p)
	if err != nil {
		b.err = err
	}
	return n, err
}

func (b *uploadBody) Close() error { return b.body.Close() }

// fault returns the error of the body itself; nil without an error, or if it was not read to its
// end.
func (b *uploadBody) fault() *problem {
	var large *http.MaxBytesError
	switch {
	case b.err == nil, errors.Is(b.err, io.EOF):
		return nil
	case errors.As(b.err, &large):
		return imageTooLarge()
	}
	return refused(http.StatusBadRequest, fleet.Refuse(fleet.ErrInvalid, "broken_body.upload", "stall_ms", uploadStall))
}

// finish reads the rest of a body that was refused early, because many clients read no response
// before they have sent everything, and sets the deadline of the response.
func (b *uploadBody) finish() {
	if b.err == nil {
		_, _ = io.Copy(io.Discard, b)
	}
	_ = b.conn.SetReadDeadline(time.Time{})
	_ = b.conn.SetWriteDeadline(time.Now().Add(answerTimeout))
}
