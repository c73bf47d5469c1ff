package device

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// MaxHold bounds the expiry of a hold, in hours: a longer hold has no end.
const MaxHold = 24 * 365

// editDevice stores the device's details as operators edit them. If a value is invalid, the page
// shows the form again as typed.
func (s *Server) editDevice(r *http.Request) (pages.Answer, error) {
	d, err := s.Device(r)
	if err != nil {
		return pages.Answer{}, err
	}
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	var patch fleet.DevicePatch
	if r.PostForm.Has("name") {
		patch.Name = new(r.PostFormValue("name"))
	}
	if r.PostForm.Has("notes") {
		patch.Notes = new(strings.ReplaceAll(r.PostFormValue("notes"), "\r\n", "\n"))
	}
	if r.PostForm.Has("tags") {
		patch.Tags = new(SplitTags(r.PostFormValue("tags")))
	}
	if !d.IsBoard() { // it has neither clock nor transport
		r.PostForm.Del("time_zone")
		r.PostForm.Del("transport")
	}
	if r.PostForm.Has("time_zone") {
		patch.TimeZone = new(strings.TrimSpace(r.PostFormValue("time_zone")))
	}
	if r.PostForm.Has("transport") {
		patch.Transport = new(fleet.Transport(r.PostFormValue("transport")))
	}
	after, err := s.Devices.Update(r.Context(), pages.ViewerOf(r.Context()).Actor(), d.ID, patch)
	if errors.Is(err, fleet.ErrInvalid) {
		return s.editAgain(r, d, patch, err)
	}
	return s.actedUndoable(r, d, "flash.saved", err, s.undoChange(d, after, patch))
}

func (s *Server) editAgain(r *http.Request, d fleet.Device, p fleet.DevicePatch, problem error) (pages.Answer, error) {
	if p.Name != nil {
		d.Name = *p.Name
	}
	if p.Notes != nil {
		d.Notes = *p.Notes
	}
	if p.Tags != nil {
		d.Tags = *p.Tags
	}
	if p.TimeZone != nil {
		d.TimeZone = *p.TimeZone
	}
	if p.Transport != nil {
		d.TransportChoice = *p.Transport
	}
	page, err := s.configurationPage(r, d)
	if err != nil {
		return pages.Answer{}, err
	}
	page.Problem = pages.Explain(r.Context(), problem)
	return pages.ShowAgain(page.Page())
}

// SplitTags returns the tags of a text with commas or spaces between them.
func SplitTags(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || r == ',' || r == '，' || r == '、' })
}

func (s *Server) holdDevice(r *http.Request) (pages.Answer, error) {
	d, err := s.Device(r)
	if err != nil {
		return pages.Answer{}, err
	}
	hours, err := strconv.Atoi(r.PostFormValue("hours"))
	if err != nil || hours < 0 || hours > MaxHold {
		return pages.Answer{}, fleet.Refuse(fleet.ErrInvalid, "invalid_until.hours")
	}
	var until *time.Time
	if hours > 0 {
		until = new(s.Now().Add(time.Duration(hours) * time.Hour))
	}
	after, err := s.Devices.Hold(r.Context(), pages.ViewerOf(r.Context()).Actor(), d.ID, r.PostFormValue("reason"), until)
	return s.actedUndoable(r, d, "flash.held", err, s.undoHold(d, after))
}

func (s *Server) releaseDevice(r *http.Request) (pages.Answer, error) {
	d, err := s.Device(r)
	if err != nil {
		return pages.Answer{}, err
	}
	after, err := s.Devices.Release(r.Context(), pages.ViewerOf(r.Context()).Actor(), d.ID)
	return s.actedUndoable(r, d, "flash.released", err, s.undoHold(d, after))
}

func (s *Server) approveDevice(r *http.Request) (pages.Answer, error) {
	code := r.PostFormValue("code") // as shown on the page
	return s.decide(r, "flash.approved", func(ctx context.Context, by fleet.Principal, id fleet.DeviceID) error {
		return s.Enrolments.Approve(ctx, by, id, code)
	})
}

func (s *Server) rejectDevice(r *http.Request) (pages.Answer, error) {
	return s.decide(r, "flash.rejected", s.Enrolments.Reject)
}

// decide calls enrolment alone: the store learns of a device that has just requested to join later
// than enrolment does.
func (s *Server) decide(r *http.Request, key string, do func(context.Context, fleet.Principal, fleet.DeviceID) error) (
	pages.Answer, error) {
	id, err := pages.DeviceID(r)
	if err == nil && id.IsProgram() {
		err = pages.ErrNoPage // it enrols by its definition
	}
	if err != nil {
		return pages.Answer{}, err
	}
	err = do(r.Context(), pages.ViewerOf(r.Context()).Actor(), id)
	return s.acted(r, fleet.Device{ID: id}, key, err)
}

// resolveConflict ends the conflict between two units with one id.
func (s *Server) resolveConflict(r *http.Request) (pages.Answer, error) {
	act := enrolment.ConflictAct(r.PostFormValue("act"))
	return s.decide(r, "flash.conflict_resolved", func(ctx context.Context, by fleet.Principal, id fleet.DeviceID) error {
		return s.Enrolments.ResolveConflict(ctx, by, id, enrolment.ConflictResolution{Act: act, Client: r.PostFormValue(
			"client")})
	})
}

// retireDevice requires the typed id of the device, because retirement is final.
func (s *Server) retireDevice(r *http.Request) (pages.Answer, error) {
	d, err := s.Device(r)
	if err != nil {
		return pages.Answer{}, err
	}
	if typed, err := fleet.ParseDeviceID(r.PostFormValue("confirm")); err != nil || typed != d.ID {
		return pages.Answer{}, pages.ErrNotConfirmed
	}
	return s.acted(r, d, "flash.retired", s.Devices.Retire(r.Context(), pages.ViewerOf(r.Context()).Actor(), d.ID))
}

// acted redirects to the page with the button, and shows there that the act succeeded, or why it
// failed.
func (s *Server) acted(r *http.Request, d fleet.Device, key string, err error) (pages.Answer, error) {
	return s.actedUndoable(r, d, key, err, nil)
}

// actedUndoable is acted for an act that undo takes back; nil if nothing does.
func (s *Server) actedUndoable(r *http.Request, d fleet.Device, key string, err error,
	undo pages.TakeBack) (pages.Answer, error) {
	switch {
	case errors.Is(err, fleet.ErrConflict), errors.Is(err, fleet.ErrInvalid):
		s.Flash(r.Context(), ui.Flash{Bad: true, Text: pages.Explain(r.Context(), err)})
	case err != nil:
		return pages.Answer{}, err
	default:
		done := ui.Flash{Text: pages.Text(r.Context(), key, "device", d.Title())}
		s.Flash(r.Context(), s.Undoable(r.Context(), done, undo))
	}
	if next := pages.LocalPath(r.PostFormValue("next")); next != ui.PathHome {
		return pages.GoTo(next)
	}
	return pages.GoTo(ui.DevicePath(d.ID))
}

// undoChange takes back a change of a device's details. It refuses if they have changed again.
func (s *Server) undoChange(before, after fleet.Device, p fleet.DevicePatch) pages.TakeBack {
	back := fleet.DevicePatch{}
	if p.Name != nil && before.Name != after.Name {
		back.Name = &before.Name
	}
	if p.Tags != nil && !slices.Equal(before.Tags, after.Tags) {
		back.Tags = &before.Tags
	}
	if p.Notes != nil && before.Notes != after.Notes {
		back.Notes = &before.Notes
	}
	if back == (fleet.DevicePatch{}) {
		return nil
	}
	return func(ctx context.Context, by fleet.Principal) error {
		now, err := s.Devices.Device(ctx, after.ID)
		if err != nil {
			return err
		}
		if now.Name != after.Name || now.Notes != after.Notes || !slices.Equal(now.Tags, after.Tags) {
			return fleet.Refuse(fleet.ErrConflict, "undo_changed", "device", now.Title())
		}
		_, err = s.Devices.Update(ctx, by, after.ID, back)
		return err
	}
}

// undoHold ends a hold that has just begun, or begins one again that has just ended.
func (s *Server) undoHold(before, after fleet.Device) pages.TakeBack {
	return func(ctx context.Context, by fleet.Principal) error {
		now, err := s.Devices.Device(ctx, after.ID)
		if err != nil {
			return err
		}
		if at := s.Now(); now.Hold.Active(at) != after.Hold.Active(at) ||
			now.Hold != nil && after.Hold != nil && !now.Hold.Since.Equal(after.Hold.Since) {
			return fleet.Refuse(fleet.ErrConflict, "undo_changed", "device", now.Title())
		}
		if !before.Hold.Active(s.Now()) {
			_, err = s.Devices.Release(ctx, by, after.ID)
			return err
		}
		_, err = s.Devices.Hold(ctx, by, after.ID, before.Hold.Reason, before.Hold.Until)
		return err
	}
}
