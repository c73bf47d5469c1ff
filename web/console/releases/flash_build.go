package releases

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// uploadBuild stores the files of a build: its application becomes an image with a layout.
func (s *Server) uploadBuild(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	build, board, err := s.readBuild(r)
	var image firmware.Image
	if err == nil {
		defer build.Close()
		image, _, err = build.Keep(ctx, board, "")
	}
	if errors.Is(err, fleet.ErrInvalid) || errors.Is(err, fleet.ErrConflict) {
		page, readErr := s.flashPage(r)
		if readErr != nil {
			return pages.Answer{}, readErr
		}
		page.Fault = fault(ctx, err)
		return pages.ShowAgain(page.Page())
	}
	return s.Done(ctx, ui.ImagePath(image.SHA256), err, "flasher.build_kept", "version", image.Version)
}

// uploadLayout adds the other files of a blank board to an existing image.
func (s *Server) uploadLayout(r *http.Request) (pages.Answer, error) {
	image, err := s.image(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	build, _, err := s.readBuild(r)
	if err == nil {
		defer build.Close()
		_, err = build.KeepFor(ctx, image.SHA256)
	}
	if errors.Is(err, fleet.ErrInvalid) || errors.Is(err, fleet.ErrConflict) {
		page, readErr := s.firmwareImagePage(r, image)
		if readErr != nil {
			return pages.Answer{}, readErr
		}
		page.Blank.Fault = fault(ctx, err)
		return pages.ShowAgain(page.Page())
	}
	return s.Done(ctx, ui.ImagePath(image.SHA256), err, "flasher.layout_kept")
}

// slowUpload lets a form with files take up to uploadLimit, as long as bytes arrive.
func slowUpload(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		_ = control.SetWriteDeadline(time.Now().Add(uploadLimit + time.Minute)) // only tests' writers have none
		r.Body = uploadBody{r.Body, control, time.Now().Add(uploadLimit)}
		next(w, r)
	}
}

var errNoFiles = fleet.Refuse(fleet.ErrInvalid, "no_files")

// readBuild reads a form with files as they arrive, never a whole file in memory.
func (s *Server) readBuild(r *http.Request) (_ *firmware.Build, board string, err error) {
	parts, err := r.MultipartReader()
	if err != nil {
		return nil, "", errNoFiles
	}
	build, err := s.Firmware.NewBuild(pages.ViewerOf(r.Context()).Actor())
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if err != nil {
			build.Close()
			_, _ = io.Copy(io.Discard, r.Body) // browsers read no response before they have sent everything
		}
	}()
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, "", pages.FormError(err)
		}
		switch {
		case part.FormName() == "board":
			err = readField(part, &board)
		case part.FormName() == "file" && part.FileName() != "":
			err = build.Add(part.FileName(), part)
		}
		if err != nil {
			return nil, "", err
		}
	}
	if build.Empty() {
		return nil, "", errNoFiles
	}
	return build, strings.TrimSpace(board), nil
}

// layoutCard returns the part of an image's page about blank boards.
func (s *Server) layoutCard(ctx context.Context, image firmware.Image, releases []ui.ReleaseRef) (ui.LayoutCard,
	error) {
	card := ui.LayoutCard{Image: image, CanAct: pages.MayKeepFirmware(ctx)}
	for _, r := range releases {
		card.Released = card.Released || r.State == firmware.ReleaseReleased
	}
	var err error
	if card.Layout, err = s.Firmware.Layout(ctx, image.SHA256); errors.Is(err, fleet.ErrNotFound) {
		err = nil
	}
	return card, err
}

// flashAgain returns the page's own address from a form, and never another address.
func flashAgain(next string) string {
	if u, err := url.Parse(next); err == nil && u.Host == "" && u.Scheme == "" && u.Path == ui.PathFlash {
		return ui.PathFlash + "?" + u.RawQuery
	}
	return ui.PathFlash
}

// withQuery returns the request as if the page itself had been requested.
func withQuery(r *http.Request, next string) *http.Request {
	u, _ := url.Parse(flashAgain(next)) // was parsed before
	again := r.Clone(r.Context())
	again.Method, again.URL, again.Form, again.PostForm = http.MethodGet, u, nil, nil
	return again
}
