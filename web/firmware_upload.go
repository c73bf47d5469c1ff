package web

import (
	"context"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/web/ui"
)

// uploadsBytes bounds one request with files. It is far more than they may
// have: a browser shows an answer only after it has sent everything, so what
// is too large is read to its end and thrown away.
const uploadsBytes = 4 << 30

// uploadIdleTimeout is how long a browser may send nothing, and uploadLimit how
// long it may take for everything.
const (
	uploadIdleTimeout = time.Minute
	uploadLimit       = 30 * time.Minute
)

// fieldBytes bounds a text field of a form with files.
const fieldBytes = 16 << 10

// uploadImages takes files as they arrive; none is in memory as a whole. The
// answer is the list of images with what became of each file: that one was not
// taken does not make the request a failure.
func (s *Server) uploadImages(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	r.Body = uploadBody{r.Body, http.NewResponseController(w), time.Now().Add(uploadLimit)}
	a, err := s.takeImages(r)
	extend(w, time.Minute, time.Minute)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.render(w, r, a)
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
	_ = b.control.SetReadDeadline(deadline) // a writer without deadlines is a test's
	return b.ReadCloser.Read(p)
}

func (s *Server) takeImages(r *http.Request) (answer, error) {
	var sent ui.UploadBox
	if err := s.readImages(r, &sent); err != nil {
		return answer{}, err
	}
	page, err := s.imagesPage(r.Context(), ui.ListURL{Path: ui.PathImages})
	if err != nil {
		return answer{}, err
	}
	sent.Boards = page.Upload.Boards
	page.Upload, page.Empty = sent, false
	if sent.Problem != "" {
		return showAgain(page.Page())
	}
	page.Upload.Board, page.Upload.Notes = "", ""
	return show(page.Page())
}

// readImages reads the form's parts in turn. The fields stand before the
// files, as the form has them.
func (s *Server) readImages(r *http.Request, box *ui.UploadBox) error {
	parts, err := r.MultipartReader()
	if err != nil {
		box.Problem = text(r.Context(), "firmware.upload.no_form")
		return nil
	}
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return formError(err)
		}
		if err := s.readPart(r.Context(), part, box); err != nil {
			return err
		}
	}
	if len(box.Results) == 0 {
		box.Problem = text(r.Context(), "firmware.upload.none")
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
		return formError(err)
	}
	*into = string(b)
	return nil
}

// takeImage stores one file, or says what is wrong with it.
func (s *Server) takeImage(ctx context.Context, part *multipart.Part, box ui.UploadBox) (ui.UploadResult, error) {
	result := ui.UploadResult{FileName: fleet.CleanText(part.FileName(), 200)}
	image, created, err := s.Firmware.Upload(ctx, viewerOf(ctx).actor(), firmware.ImageUpload{Body: part,
		FileName: part.FileName(), Board: box.Board, Notes: box.Notes})
	switch {
	case errors.Is(err, fleet.ErrInvalid), errors.Is(err, fleet.ErrConflict):
		result.Fault = fault(ctx, err)
		return result, nil
	case err != nil:
		return result, err
	}
	result.Image, result.New = &image, created
	return result, nil
}
