package device

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/go-chi/chi/v5"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

const shownCoreDumps = 20

// deviceCrashes returns the newest core dumps of a device.
func (s *Server) deviceCrashes(ctx context.Context, id fleet.DeviceID, inv *fleet.Inventory) (ui.DeviceCrashes, error) {
	v := ui.DeviceCrashes{Device: id, Offers: ui.NewOffers(inv).CoreDump, CanAct: s.mayCall(ctx, id)}
	dumps, err := s.CoreDumps.CoreDumps(ctx, id, shownCoreDumps)
	if err != nil {
		return v, err
	}
	for _, c := range dumps {
		crash := ui.Crash{CoreDump: c, CanAct: v.CanAct}
		if crash.Image, err = s.imageOfBuild(ctx, c); err != nil {
			return v, err
		}
		v.Dumps = append(v.Dumps, crash)
	}
	vitals, err := s.Reports.Vitals(ctx, id)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return v, err
	}
	v.Waits = vitals.CoreDump && v.Offers && !collected(dumps, vitals)
	return v, nil
}

// collected reports whether the core dump in the vitals has been fetched since.
func collected(dumps []telemetry.CoreDump, vitals telemetry.Vitals) bool {
	return len(dumps) > 0 && dumps[0].Boots == vitals.Boots
}

// imageOfBuild returns the image that contains the build, or nil.
func (s *Server) imageOfBuild(ctx context.Context, c telemetry.CoreDump) (*ui.ImageRef, error) {
	if c.ELFSHA256 == "" {
		return nil, nil
	}
	images, err := s.Firmware.ImagesByELF(ctx, []string{c.ELFSHA256})
	if err != nil || len(images) == 0 {
		return nil, err
	}
	return new(ui.Ref(images[0])), nil
}

// fetchCoreDump requests the core dump from the device.
func (s *Server) fetchCoreDump(r *http.Request) (pages.Answer, error) {
	d, err := s.Board(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	by, back := pages.ViewerOf(ctx).Actor(), ui.DevicePath(d.ID, "logs")
	err = s.CoreDumps.Ask(ctx, by, d.ID)
	if errors.Is(err, fleet.ErrConflict) {
		return s.Done(ctx, back, err, "")
	}
	if err != nil {
		return pages.Answer{}, err
	}
	call, err := s.start(r, s.CoreDumps.UploadRequest(by, d.ID, r.PostFormValue("erase") != ""))
	if err != nil {
		return pages.Answer{}, err
	}
	if call, err = s.Calls.Get(ctx, call.ID); err != nil {
		return pages.Answer{}, err
	}
	if call.State == fleet.CallSucceeded {
		s.flashOutcome(ctx, call, "crash.flash.fetched")
	}
	return pages.GoTo(back + "?" + url.Values{"call": {call.ID.String()}}.Encode())
}

// sendCoreDump serves foreign bytes as a download only.
func (s *Server) sendCoreDump(w http.ResponseWriter, r *http.Request) {
	id, err := dumpID(chi.URLParam(r, "dump"))
	if err != nil {
		s.Fail(w, r, err)
		return
	}
	c, data, err := s.CoreDumps.Content(r.Context(), pages.ViewerOf(r.Context()).Actor(), id)
	if err != nil {
		s.Fail(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", `attachment; filename="`+c.FileName()+`"`)
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Content-Length", strconv.Itoa(len(data)))
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write(data) // an error means that the reader has gone
}

func (s *Server) deleteCoreDump(r *http.Request) (pages.Answer, error) {
	id, err := dumpID(chi.URLParam(r, "dump"))
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	c, err := s.CoreDumps.CoreDump(ctx, id)
	if err != nil {
		return pages.Answer{}, err
	}
	err = s.CoreDumps.Delete(ctx, pages.ViewerOf(ctx).Actor(), id)
	return s.Done(ctx, ui.DevicePath(c.Device, "logs"), err, "crash.flash.deleted")
}
