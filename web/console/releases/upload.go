package releases

import (
	"context"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/web/console/pages"
	"fleetd/web/request"
	"fleetd/web/ui"
)

// uploadsBytes bounds one request with files. It is far above the limit for the files: a browser
// shows a response only after it has sent everything, so a request that is too large is read to its
// end and discarded.
const uploadsBytes = 4 << 30

// uploadIdleTimeout is how long a browser may send nothing, and uploadLimit how long the whole
// request may take.
const (
	uploadIdleTimeout = time.Minute
	uploadLimit       = 30 * time.Minute
)

// maxUploads bounds the files of one request: each is stored, parsed and listed in the response.
// The other parts are a few fields.
const (
	maxUploads     = 100
	maxUploadParts = maxUploads + 20
)

// fieldBytes bounds a text field of a form with files.
const fieldBytes = 16 << 10

// uploadImages reads files as they arrive, never a whole file in memory. The response lists the
// data read from each file, for the uploader to confirm; a refused file does not make the request
// fail.
func (s *Server) uploadImages(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	r.Body = uploadBody{r.Body, http.NewResponseController(w), time.Now().Add(uploadLimit)}
	a, err := s.takeImages(r)
	request.Extend(w, time.Minute, time.Minute)
	if err != nil {
		s.Fail(w, r, err)
		return
	}
	s.Render(w, r, a)
}

// An uploadBody extends the read deadline with every read: an upload over a slow
// network continues, and one over a dead network ends.
type uploadBody struct {
	io.ReadCloser
	control *http.ResponseController
	until   time.Time
}

func (b uploadBody) Read(p []byte) (int, error) {
	deadline := time.Now().Add(uploadIdleTimeout)
	if deadline.After(b.until) {
		deadline = b.until
	}
	_ = b.control.SetReadDeadline(deadline) // only writers of tests have no deadlines
	return b.ReadCloser.Read(p)
}

func (s *Server) takeImages(r *http.Request) (pages.Answer, error) {
	var sent ui.UploadBox
	if err := s.readImages(r, &sent); err != nil {
		return pages.Answer{}, err
	}
	page, err := s.imagesPage(r.Context(), ui.ListURL{Path: ui.PathImages})
	if err != nil {
		return pages.Answer{}, err
	}
	sent.Boards, sent.Drafts = page.Upload.Boards, page.Upload.Drafts
	page.Upload, page.Empty = sent, false
	if sent.Problem != "" {
		return pages.ShowAgain(page.Page())
	}
	return pages.Show(page.Page())
}

// readImages reads the form's parts in order. The fields precede the files, as in the form.
func (s *Server) readImages(r *http.Request, box *ui.UploadBox) error {
	parts, err := r.MultipartReader()
	if err != nil {
		box.Problem = pages.Text(r.Context(), "firmware.upload.no_form")
		return nil
	}
	for n := 0; ; n++ {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return pages.FormError(err)
		}
		if n == maxUploadParts || len(box.Results) == maxUploads {
			box.Problem = pages.Text(r.Context(), "firmware.upload.too_many", "n", maxUploads)
			_, err := io.Copy(io.Discard, r.Body)
			return err
		}
		if err := s.readPart(r.Context(), part, box); err != nil {
			return err
		}
	}
	if len(box.Results) == 0 {
		box.Problem = pages.Text(r.Context(), "firmware.upload.none")
	}
	return nil
}

func (s *Server) readPart(ctx context.Context, part *multipart.Part, box *ui.UploadBox) error {
	switch part.FormName() {
	case "board":
		return readField(part, &box.Board)
	case "notes":
		return readField(part, &box.Notes)
	case "file":
		if part.FileName() == "" { // no file was chosen
			return nil
		}
		take := func() (ui.UploadResult, error) { return s.takeImage(ctx, part, *box) }
		if isManifest(part) {
			take = func() (ui.UploadResult, error) { return s.takeManifest(ctx, part) }
		}
		result, err := take()
		if err != nil {
			return err
		}
		box.Results = append(box.Results, result)
	}
	return nil
}

func readField(part *multipart.Part, into *string) error {
	b, err := io.ReadAll(io.LimitReader(part, fieldBytes))
	if err != nil {
		return pages.FormError(err)
	}
	*into = string(b)
	return nil
}

// takeImage reads one file and stores it until its uploader confirms it, or returns its fault.
func (s *Server) takeImage(ctx context.Context, part *multipart.Part, box ui.UploadBox) (ui.UploadResult, error) {
	result := ui.UploadResult{FileName: fleet.CleanText(part.FileName(), 200)}
	staged, err := s.Firmware.Stage(ctx, pages.ViewerOf(ctx).Actor(), firmware.ImageUpload{Body: part,
		FileName: part.FileName(), Board: box.Board, Notes: box.Notes})
	switch {
	case errors.Is(err, fleet.ErrInvalid), errors.Is(err, fleet.ErrConflict):
		result.Fault = fault(ctx, err)
		return result, nil
	case err != nil:
		return result, err
	}
	result.Staged = &staged
	return result, nil
}

// confirmImages turns the chosen uploads into images, each for its board, and continues with the
// release that they are for.
func (s *Server) confirmImages(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	ctx, by := r.Context(), pages.ViewerOf(r.Context()).Actor()
	box := ui.UploadBox{Notes: plainLines(r.PostFormValue("notes")), Then: r.PostFormValue("then")}
	var sums []string
	refused := len(r.PostForm["staged"]) == 0
	for _, value := range r.PostForm["staged"] {
		id, _ := uuid.Parse(value)
		board := strings.TrimSpace(r.PostFormValue("board-" + id.String()))
		staged, _ := s.Firmware.StagedUpload(by, id)
		image, _, err := s.Firmware.Confirm(ctx, by, id, board, box.Notes)
		result := ui.UploadResult{FileName: staged.Image.FileName}
		switch {
		case errors.Is(err, fleet.ErrInvalid), errors.Is(err, fleet.ErrConflict):
			refused = true
			result.Fault = fault(ctx, err)
			if staged.ID != uuid.Nil {
				staged.Image.Board, result.Staged = board, &staged
			}
		case err != nil:
			return pages.Answer{}, err
		default:
			result.Image = &image
			sums = append(sums, image.SHA256)
		}
		box.Results = append(box.Results, result)
	}
	if !refused {
		return s.afterUpload(ctx, box.Then, sums)
	}
	page, err := s.imagesPage(ctx, ui.ListURL{Path: ui.PathImages})
	if err != nil {
		return pages.Answer{}, err
	}
	if len(box.Results) == 0 {
		box.Problem = pages.Text(ctx, "firmware.upload.none")
	}
	box.Boards, box.Drafts = page.Upload.Boards, page.Upload.Drafts
	page.Upload, page.Empty = box, false
	return pages.ShowAgain(page.Page())
}

// afterUpload continues with the purpose of the images: a new release, or a draft, which gets the
// images.
func (s *Server) afterUpload(ctx context.Context, then string, sums []string) (pages.Answer, error) {
	if then == ui.UploadThenRelease {
		return pages.GoTo(ui.NewReleasePath(sums...))
	}
	id, err := uuid.Parse(then)
	if err != nil {
		return s.Done(ctx, ui.PathImages, nil, "firmware.flash.stored", "n", len(sums))
	}
	draft, err := s.Firmware.Release(ctx, id)
	if err != nil {
		return pages.Answer{}, err
	}
	req := firmware.ReleaseRequest{Version: draft.Version, Notes: draft.Notes, Images: sums}
	for _, image := range draft.Images {
		if !slices.Contains(sums, image.SHA256) {
			req.Images = append(req.Images, image.SHA256)
		}
	}
	_, err = s.Firmware.Edit(ctx, pages.ViewerOf(ctx).Actor(), id, req)
	if errors.Is(err, fleet.ErrInvalid) || errors.Is(err, fleet.ErrConflict) { // the images are stored
		return s.Done(ctx, ui.PathImages, err, "firmware.flash.stored", "n", len(sums))
	}
	return s.Done(ctx, ui.ReleasePath(id.String()), err, "firmware.flash.stored", "n", len(sums))
}
