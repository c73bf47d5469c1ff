package releases

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/console/pages"
	"fleetd/web/console/record"
	"fleetd/web/ui"
)

// offeredImages is the maximum number of images in the form of a release.
const offeredImages = 200

func (s *Server) showRelease(r *http.Request) (pages.Answer, error) {
	release, err := s.release(r)
	if err != nil {
		return pages.Answer{}, err
	}
	page, err := s.releasePage(r, release)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) releasePage(r *http.Request, release firmware.Release) (ui.FirmwareReleasePage, error) {
	ctx := r.Context()
	page := ui.FirmwareReleasePage{Release: release, CanAct: pages.MayKeepFirmware(ctx), CanRevoke: mayRevoke(ctx)}
	running, err := s.Firmware.RunningByELF(ctx, builds(release.Images))
	if err != nil {
		return page, err
	}
	page.Running = running
	used, err := s.Campaigns.Campaigns(ctx, campaign.Filter{Release: release.ID})
	if err != nil {
		return page, err
	}
	page.Campaigns = used.Items
	page.Fit, err = s.fit(r, firmware.FitQuery{Release: release.ID})
	page.Fit.Path, page.Fit.ELF = ui.ReleasePath(release.ID.String()), builds(release.Images)
	page.Adoption = adoption(page.Fit)
	if err == nil {
		page.Spread, err = s.record.AdoptionChart(ctx, release.Version, record.AdoptionPoints)
	}
	return page, err
}

func (s *Server) newRelease(r *http.Request) (pages.Answer, error) {
	page, err := s.releaseForm(r.Context(), ui.ReleaseFormPage{Chosen: r.URL.Query()["image"]})
	if err != nil {
		return pages.Answer{}, err
	}
	page.Version = commonVersion(page)
	return pages.Show(page.Page())
}

// releaseForm fills in the choices: the newest images, and the chosen ones however old.
func (s *Server) releaseForm(ctx context.Context, page ui.ReleaseFormPage) (ui.ReleaseFormPage, error) {
	found, err := s.Firmware.Images(ctx, firmware.ImageFilter{Limit: offeredImages})
	if err != nil {
		return page, err
	}
	images := found.Items
	page.More = found.Next != ""
	page.Chosen = slices.DeleteFunc(page.Chosen, func(sum string) bool { return !isSHA256(sum) })
	for _, sum := range page.Chosen[:min(len(page.Chosen), offeredImages)] {
		if slices.ContainsFunc(images, func(i firmware.Image) bool { return i.SHA256 == sum }) {
			continue
		}
		older, err := s.Firmware.Image(ctx, sum)
		if errors.Is(err, fleet.ErrNotFound) {
			continue
		}
		if err != nil {
			return page, err
		}
		images = append(images, older)
	}
	for _, i := range images {
		page.Images = append(page.Images, ui.NewImageRow(i, ui.Running{}, true))
	}
	return page, nil
}

// commonVersion returns the version of all chosen images; "" if they differ.
func commonVersion(page ui.ReleaseFormPage) (version string) {
	for _, i := range page.Images {
		if !slices.Contains(page.Chosen, i.SHA256) {
			continue
		}
		if version != "" && version != i.Version {
			return ""
		}
		version = i.Version
	}
	return version
}

// releaseRequest reads the form.
func releaseRequest(r *http.Request) (firmware.ReleaseRequest, error) {
	if err := r.ParseForm(); err != nil {
		return firmware.ReleaseRequest{}, pages.FormError(err)
	}
	return firmware.ReleaseRequest{Version: strings.TrimSpace(r.PostFormValue("version")),
		Notes:  plainLines(r.PostFormValue("notes")),
		Images: r.PostForm["image"], Draft: r.PostFormValue("to") != string(firmware.ReleaseReleased)}, nil
}

func (s *Server) createRelease(r *http.Request) (pages.Answer, error) {
	request, err := releaseRequest(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	release, err := s.Firmware.Create(ctx, pages.ViewerOf(ctx).Actor(), request)
	if errors.Is(err, fleet.ErrInvalid) || errors.Is(err, fleet.ErrConflict) {
		return s.releaseAgain(ctx, "", request, err)
	}
	return s.Done(ctx, ui.ReleasePath(release.ID.String()), err, "firmware.flash."+string(release.State), "version",
		release.Version)
}

// releaseAgain shows the form again as filled in, with its error.
func (s *Server) releaseAgain(ctx context.Context, id string, q firmware.ReleaseRequest, problem error) (pages.Answer,
	error) {
	page, err := s.releaseForm(ctx, ui.ReleaseFormPage{ID: id, Chosen: q.Images, Version: q.Version, Notes: q.Notes})
	if err != nil {
		return pages.Answer{}, err
	}
	page.Fault = fault(ctx, problem)
	return pages.ShowAgain(page.Page())
}

func (s *Server) showReleaseEdit(r *http.Request) (pages.Answer, error) {
	release, err := s.release(r)
	if err != nil {
		return pages.Answer{}, err
	}
	if release.State != firmware.ReleaseDraft {
		return pages.GoTo(ui.ReleasePath(release.ID.String()))
	}
	page := ui.ReleaseFormPage{ID: release.ID.String(), Version: release.Version, Notes: release.Notes}
	for _, i := range release.Images {
		page.Chosen = append(page.Chosen, i.SHA256)
	}
	if page, err = s.releaseForm(r.Context(), page); err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// editRelease changes a draft, and releases it if that button was pressed.
func (s *Server) editRelease(r *http.Request) (pages.Answer, error) {
	release, err := s.release(r)
	if err != nil {
		return pages.Answer{}, err
	}
	request, err := releaseRequest(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx, by := r.Context(), pages.ViewerOf(r.Context()).Actor()
	changed, err := s.Firmware.Edit(ctx, by, release.ID, request)
	if err == nil && !request.Draft && changed.State == firmware.ReleaseDraft {
		changed, err = s.Firmware.SetState(ctx, by, release.ID, firmware.ReleaseReleased, "")
	}
	if errors.Is(err, fleet.ErrInvalid) || errors.Is(err, fleet.ErrConflict) {
		return s.releaseAgain(ctx, release.ID.String(), request, err)
	}
	return s.Done(ctx, ui.ReleasePath(release.ID.String()), err, "firmware.flash."+string(changed.State), "version",
		changed.Version)
}

// setReleaseState releases or deprecates.
func (s *Server) setReleaseState(r *http.Request) (pages.Answer, error) {
	release, err := s.release(r)
	if err != nil {
		return pages.Answer{}, err
	}
	to := firmware.ReleaseState(r.PostFormValue("to"))
	if to != firmware.ReleaseReleased && to != firmware.ReleaseDeprecated {
		return pages.Answer{}, fleet.Refuse(fleet.ErrInvalid, "invalid_state.act")
	}
	ctx := r.Context()
	_, err = s.Firmware.SetState(ctx, pages.ViewerOf(ctx).Actor(), release.ID, to, r.PostFormValue("reason"))
	return s.Done(ctx, ui.ReleasePath(release.ID.String()), err, "firmware.flash."+string(to), "version", release.Version)
}

// revokeRelease requires the typed version, because revocation is final.
func (s *Server) revokeRelease(r *http.Request) (pages.Answer, error) {
	release, err := s.release(r)
	if err != nil {
		return pages.Answer{}, err
	}
	reason, err := revocation(r, release.Version)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	_, err = s.Firmware.SetState(ctx, pages.ViewerOf(ctx).Actor(), release.ID, firmware.ReleaseRevoked, reason)
	return s.Done(ctx, ui.ReleasePath(release.ID.String()), err, "firmware.flash.revoked", "version", release.Version)
}
