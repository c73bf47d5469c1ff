package releases

import (
	"context"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// manifestFormBytes bounds the form with a .manifest file: the file, and the form around it.
const manifestFormBytes = firmware.MaxManifestBytes + 4<<10

// signImage attaches the signed manifest in the form's file to an image.
func (s *Server) signImage(r *http.Request) (pages.Answer, error) {
	image, err := s.image(r)
	if err != nil {
		return pages.Answer{}, err
	}
	file, err := formFile(r, "manifest")
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	_, err = s.Firmware.SetManifest(ctx, pages.ViewerOf(ctx).Actor(), image.SHA256, file)
	if errors.Is(err, fleet.ErrInvalid) {
		page, readErr := s.firmwareImagePage(r, image)
		if readErr != nil {
			return pages.Answer{}, readErr
		}
		page.ManifestFault = fault(ctx, err)
		return pages.ShowAgain(page.Page())
	}
	return s.Done(ctx, ui.ImagePath(image.SHA256), err, "manifest.kept")
}

// formFile returns the content of a small file in a form, or nothing if none was chosen.
func formFile(r *http.Request, name string) ([]byte, error) {
	if err := r.ParseMultipartForm(manifestFormBytes); err != nil {
		return nil, pages.FormError(err)
	}
	defer func() { _ = r.MultipartForm.RemoveAll() }()
	file, _, err := r.FormFile(name)
	if errors.Is(err, http.ErrMissingFile) {
		return nil, nil
	}
	if err != nil {
		return nil, pages.FormError(err)
	}
	defer file.Close()
	return readManifest(file)
}

func readManifest(r io.Reader) ([]byte, error) {
	return io.ReadAll(io.LimitReader(r, firmware.MaxManifestBytes+1))
}

// isManifest reports whether the part is the .manifest file of an image, among several files.
func isManifest(part *multipart.Part) bool { return strings.HasSuffix(part.FileName(), ".manifest") }

// takeManifest attaches a manifest to the image that it is for, or returns its fault.
func (s *Server) takeManifest(ctx context.Context, part *multipart.Part) (ui.UploadResult, error) {
	result := ui.UploadResult{FileName: fleet.CleanText(part.FileName(), 200), Manifest: true}
	file, err := readManifest(part)
	if err != nil {
		return result, pages.FormError(err)
	}
	if staged, ok, err := s.Firmware.StageManifest(pages.ViewerOf(ctx).Actor(), file); ok && err == nil {
		result.Staged = &staged
		return result, nil
	}
	image, err := s.Firmware.AttachManifest(ctx, pages.ViewerOf(ctx).Actor(), file)
	switch {
	case errors.Is(err, fleet.ErrInvalid), errors.Is(err, fleet.ErrConflict):
		result.Fault = fault(ctx, err)
		return result, nil
	case err != nil:
		return result, err
	}
	result.Image = &image
	return result, nil
}
