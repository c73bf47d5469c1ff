package console

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/go-chi/chi/v5"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
	"fleetd/web/ui"
)

// keyRoutes are the pages for serial numbers and the signing key.
func (s *Server) keyRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	serial := ui.PathSerials + "/{serial}"
	return []route{
		{method: get, pattern: ui.PathSerials, role: fleet.RoleViewer, reach: access.Fleet, page: s.showSerials},
		{method: post, pattern: ui.PathSerials, role: fleet.RoleAdmin, reach: access.Fleet,
			page: s.loadSerials, body: enrolment.MaxSerialFile +
				formBytes, heavy: heavy.Import},
		{method: post, pattern: serial + "/release", role: fleet.RoleAdmin, reach: access.Fleet,
			page: s.releaseSerial},
		{method: post, pattern: serial + "/delete", role: fleet.RoleAdmin, reach: access.Fleet, page: s.deleteSerial},
		{method: get, pattern: ui.PathKeys, role: fleet.RoleViewer, reach: access.Fleet, page: s.showKeys},
		{method: post, pattern: ui.PathKeys + "/start", role: fleet.RoleAdmin, reach: access.Fleet,
			page: s.rotateKeys((*enrolment.SigningKeys).Start,
				"flash.keys_start"), confirm: true},
		{method: post, pattern: ui.PathKeys + "/finish", role: fleet.RoleAdmin, reach: access.Fleet,
			page:    s.rotateKeys((*enrolment.SigningKeys).Finish, "flash.keys_finish"),
			confirm: true},
		{method: post, pattern: ui.PathKeys + "/abort", role: fleet.RoleAdmin, reach: access.Fleet,
			page: s.rotateKeys((*enrolment.SigningKeys).Abort,
				"flash.keys_abort"), confirm: true},
		{method: post, pattern: ui.PathKeys + "/restart", role: fleet.RoleAdmin, reach: access.Fleet,
			page: s.restartLeft},
	}
}

func (s *Server) serialsPage(r *http.Request, list ui.ListURL) (ui.SerialsPage, error) {
	limit, _ := strconv.Atoi(list.Get("limit"))
	rows, err := s.Serials.List(enrolment.SerialFilter{State: enrolment.SerialState(list.Get("state")), Limit: limit,
		Cursor: list.Get("cursor")})
	return ui.SerialsPage{List: list, Rows: rows.Items, Next: rows.Next, Counts: s.Serials.Counts(),
		Unknown: s.Serials.Proofs(enrolment.ProofUnknown),
		Mark:    s.MarkProofs, Admin: mayManage(r.Context())}, err
}

// mayManage reports whether the viewer may manage keys, operators and tokens.
func mayManage(ctx context.Context) bool {
	return viewerOf(ctx).actor().FleetRole().Allows(fleet.RoleAdmin)
}

func (s *Server) showSerials(r *http.Request) (answer, error) {
	page, err := s.serialsPage(r, ui.ListURL{Path: ui.PathSerials, Values: r.URL.Query()})
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

func (s *Server) loadSerials(r *http.Request) (answer, error) {
	list, err := serialList(r)
	if err != nil {
		return answer{}, formError(err)
	}
	ctx := r.Context()
	done, err := s.Serials.LoadList(ctx, viewerOf(ctx).actor(), list)
	if err == nil {
		s.flash(ctx, ui.Flash{Text: text(ctx, "flash.serials_loaded", "n", done.Added)})
		return goTo(ui.PathSerials)
	}
	return s.serialsAgain(r, err)
}

// serialList returns the list in the form.
func serialList(r *http.Request) (io.Reader, error) {
	parts, err := r.MultipartReader()
	if err != nil {
		return http.NoBody, nil // an empty list
	}
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return http.NoBody, nil
		}
		if err != nil {
			return nil, err
		}
		if part.FormName() == "file" {
			return part, nil
		}
	}
}

// serialsAgain shows the page with the error.
func (s *Server) serialsAgain(r *http.Request, err error) (answer, error) {
	if statusOf(err) >= http.StatusInternalServerError || errors.Is(err, fleet.ErrNotFound) {
		return answer{}, err
	}
	page, failed := s.serialsPage(r, ui.ListURL{Path: ui.PathSerials})
	if failed != nil {
		return answer{}, failed
	}
	page.Problem = explain(r.Context(), err)
	var file *enrolment.SerialFileError
	if errors.As(err, &file) {
		page.Problems, page.More = file.Problems, file.More
	}
	a, _ := showAgain(page.Page())
	a.status = statusOf(err)
	return a, nil
}

func (s *Server) releaseSerial(r *http.Request) (answer, error) {
	return s.changeSerial(r, s.Serials.Release, "flash.serial_released")
}

func (s *Server) deleteSerial(r *http.Request) (answer, error) {
	return s.changeSerial(r, s.Serials.Delete, "flash.serial_deleted")
}

func (s *Server) changeSerial(r *http.Request, change func(context.Context, fleet.Principal, string) error,
	key string) (
	answer, error) {
	ctx := r.Context()
	if err := change(ctx, viewerOf(ctx).actor(), chi.URLParam(r, "serial")); err != nil {
		return s.serialsAgain(r, err)
	}
	s.flash(ctx, ui.Flash{Text: text(ctx, key)})
	return goTo(ui.PathSerials)
}

func (s *Server) keysPage(r *http.Request, list ui.ListURL) (ui.KeysPage, error) {
	ctx := r.Context()
	page := ui.KeysPage{Rotation: s.Keys.Rotation(), Generation: s.Keys.SigningGeneration(), List: list,
		Admin: mayManage(ctx)}
	var err error
	if page.Counts, err = s.Keys.Counts(ctx); err != nil {
		return page, err
	}
	limit, _ := strconv.Atoi(list.Get("limit"))
	f := enrolment.RotationFilter{Groups: page.Rotation.LeftGroups(), Limit: limit, Cursor: list.Get("cursor")}
	if g := list.Get("group"); g != "" {
		f.Groups = []enrolment.RotationGroup{enrolment.RotationGroup(g)}
	}
	rows, err := s.Keys.Devices(ctx, f)
	page.Rows, page.Next = rows.Items, rows.Next
	return page, err
}

func (s *Server) showKeys(r *http.Request) (answer, error) {
	page, err := s.keysPage(r, ui.ListURL{Path: ui.PathKeys, Values: r.URL.Query()})
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

// rotateKeys changes the rotation, if the typed text confirms it.
func (s *Server) rotateKeys(act func(*enrolment.SigningKeys, context.Context, fleet.Principal, string) (
	enrolment.KeyRotation,
	error), key string) handler {
	return func(r *http.Request) (answer, error) {
		ctx := r.Context()
		_, err := act(s.Keys, ctx, viewerOf(ctx).actor(), r.PostFormValue("confirm"))
		return s.keysChanged(r, key, err)
	}
}

func (s *Server) keysChanged(r *http.Request, key string, err error) (answer, error) {
	ctx := r.Context()
	if err == nil {
		s.flash(ctx, ui.Flash{Text: text(ctx, key)})
		return goTo(ui.PathKeys)
	}
	if statusOf(err) >= http.StatusInternalServerError {
		return answer{}, err
	}
	page, failed := s.keysPage(r, ui.ListURL{Path: ui.PathKeys})
	if failed != nil {
		return answer{}, failed
	}
	page.Problem = explain(ctx, err)
	a, _ := showAgain(page.Page())
	a.status = statusOf(err)
	return a, nil
}

func (s *Server) restartLeft(r *http.Request) (answer, error) {
	ctx := r.Context()
	request, err := s.Keys.Restart(ctx, viewerOf(ctx).actor(), s.Presences.IsConnected)
	if err != nil {
		return s.keysChanged(r, "", err)
	}
	f, err := s.FanOuts.Create(ctx, request)
	if err != nil {
		return s.keysChanged(r, "", err)
	}
	return goTo(ui.FanOutPath(f.ID.String()))
}
