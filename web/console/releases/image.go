package releases

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/web/console/pages"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

func (s *Server) showImage(r *http.Request) (pages.Answer, error) {
	image, err := s.image(r)
	if err != nil {
		return pages.Answer{}, err
	}
	page, err := s.firmwareImagePage(r, image)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) firmwareImagePage(r *http.Request, image firmware.Image) (ui.FirmwareImagePage, error) {
	ctx := r.Context()
	page := ui.FirmwareImagePage{Image: image, CanAct: pages.MayKeepFirmware(ctx), CanRevoke: mayRevoke(ctx)}
	why, err := s.Firmware.Check(ctx, image, "")
	if err != nil {
		return page, err
	}
	page.Withheld = whyWithheld(ctx, why)
	if page.Releases, err = s.releasesWith(ctx, image.SHA256); err != nil {
		return page, err
	}
	ofChip, err := fleet.ParseQuery(ui.Term("chip", image.Chip))
	if err != nil {
		return page, err
	}
	if page.Boards, err = s.boardsOf(ctx, ofChip); err != nil {
		return page, err
	}
	page.Fit, err = s.fit(r, firmware.FitQuery{Image: image.SHA256})
	page.Fit.Path, page.Fit.Chip, page.Fit.ELF = ui.ImagePath(image.SHA256), image.Chip, []string{image.ELFSHA256}
	page.Adoption = adoption(page.Fit)
	if err != nil {
		return page, err
	}
	page.Blank, err = s.layoutCard(ctx, image, page.Releases)
	return page, err
}

// releasesWith returns the releases that contain an image.
func (s *Server) releasesWith(ctx context.Context, sha256 string) (refs []ui.ReleaseRef, err error) {
	found, err := s.Firmware.Releases(ctx, firmware.ReleaseFilter{Limit: searchedReleases})
	for _, r := range found.Items {
		for _, i := range r.Images {
			if i.SHA256 == sha256 {
				refs = append(refs, ui.ReleaseRef{ID: r.ID.String(), Version: r.Version, State: r.State})
			}
		}
	}
	return refs, err
}

// fit returns the devices that the image fits, for the query in the address.
func (s *Server) fit(r *http.Request, q firmware.FitQuery) (ui.FitView, error) {
	ctx, asked := r.Context(), r.URL.Query()
	v := ui.FitView{Query: asked.Get("q"), Mode: firmware.ModeAuto, Downgrade: asked.Get("downgrade") != ""}
	switch mode := firmware.DispatchMode(asked.Get("mode")); mode {
	case firmware.ModePush, firmware.ModePull:
		v.Mode = mode
	}
	if _, err := fleet.ParseQuery(v.Query); err != nil {
		v.BadQuery = pages.Explain(ctx, err)
		return v, nil
	}
	q.Query, q.Options = v.Query, firmware.FitOptions{Mode: v.Mode, AllowDowngrade: v.Downgrade}
	report, err := s.Firmware.Fit(ctx, q)
	if errors.Is(err, fleet.ErrInvalid) {
		v.BadQuery = pages.Explain(ctx, err)
		return v, nil
	}
	v.Report = &report
	return v, err
}

func adoption(v ui.FitView) ui.Adoption {
	if v.Report == nil {
		return ui.Adoption{}
	}
	a := ui.Adoption{Running: v.Installed(), Fit: v.Report.Fit + v.Report.RolledBack}
	for _, m := range v.Report.Misfits {
		if m.Reason.Passes() {
			a.Fit += m.Count
		}
	}
	return a
}

func (s *Server) editImage(r *http.Request) (pages.Answer, error) {
	image, err := s.image(r)
	if err != nil {
		return pages.Answer{}, err
	}
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	ctx := r.Context()
	board, notes := strings.TrimSpace(r.PostFormValue("board")), plainLines(r.PostFormValue("notes"))
	_, err = s.Firmware.Update(ctx, pages.ViewerOf(ctx).Actor(), image.SHA256, &board, &notes)
	if errors.Is(err, fleet.ErrInvalid) || errors.Is(err, fleet.ErrConflict) {
		image.Board, image.Notes = board, notes
		page, readErr := s.firmwareImagePage(r, image)
		if readErr != nil {
			return pages.Answer{}, readErr
		}
		page.Fault = fault(ctx, err)
		return pages.ShowAgain(page.Page())
	}
	return s.Done(ctx, ui.ImagePath(image.SHA256), err, "flash.saved")
}

func plainLines(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

// revokeImage requires the typed version, because revocation is final.
func (s *Server) revokeImage(r *http.Request) (pages.Answer, error) {
	image, err := s.image(r)
	if err != nil {
		return pages.Answer{}, err
	}
	reason, err := revocation(r, image.Version)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	_, err = s.Firmware.Revoke(ctx, pages.ViewerOf(ctx).Actor(), image.SHA256, reason)
	return s.Done(ctx, ui.ImagePath(image.SHA256), err, "firmware.flash.revoked", "version", image.Version)
}

func (s *Server) deleteImage(r *http.Request) (pages.Answer, error) {
	image, err := s.image(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	err = s.Firmware.Delete(ctx, pages.ViewerOf(ctx).Actor(), image.SHA256)
	if errors.Is(err, fleet.ErrConflict) {
		return s.Done(ctx, ui.ImagePath(image.SHA256), err, "")
	}
	return s.Done(ctx, ui.PathImages, err, "firmware.flash.deleted", "version", image.Version)
}

// revocation reads a form that revokes firmware for good: the reason, and the typed version.
func revocation(r *http.Request, version string) (reason string, err error) {
	reason = strings.TrimSpace(r.PostFormValue("reason"))
	switch {
	case strings.TrimSpace(r.PostFormValue("confirm")) != version:
		return "", pages.ErrNotConfirmed
	case reason == "":
		return "", fleet.Refuse(fleet.ErrInvalid, "revoke_reason")
	}
	return reason, nil
}

func mayRevoke(ctx context.Context) bool {
	return pages.MayAdmin(ctx)
}

// fault returns, in the page's language, the kind of a fault and its details.
func fault(ctx context.Context, err error) ui.Fault {
	var e *fleet.Error
	if !errors.As(err, &e) {
		return ui.Fault{Title: pages.Explain(ctx, err)}
	}
	title := ""
	if key := "firmware.fault." + e.Code; i18n.Has(key) {
		title = pages.Text(ctx, key)
	}
	return ui.Fault{Title: title, Detail: pages.Explain(ctx, err)}
}
