package devices

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
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// keyRoutes are the pages for serial numbers and the signing key.
func (s *Server) keyRoutes() []pages.Route {
	const get, post = http.MethodGet, http.MethodPost
	serial := ui.PathSerials + "/{serial}"
	return []pages.Route{
		{Method: get, Pattern: ui.PathSerials, Role: fleet.RoleViewer, Reach: access.Fleet, Page: s.showSerials},
		{Method: post, Pattern: ui.PathSerials, Role: fleet.RoleAdmin, Reach: access.Fleet,
			Page: s.loadSerials, Body: enrolment.MaxSerialFile +
				pages.FormBytes, Heavy: heavy.Import},
		{Method: post, Pattern: serial + "/release", Role: fleet.RoleAdmin, Reach: access.Fleet,
			Page: s.releaseSerial},
		{Method: post, Pattern: serial + "/delete", Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.deleteSerial},
		{Method: get, Pattern: ui.PathKeys, Role: fleet.RoleViewer, Reach: access.Fleet, Page: s.showKeys},
		{Method: post, Pattern: ui.PathKeys + "/start", Role: fleet.RoleAdmin, Reach: access.Fleet,
			Page: s.rotateKeys((*enrolment.SigningKeys).Start,
				"flash.keys_start"), Confirm: true},
		{Method: post, Pattern: ui.PathKeys + "/finish", Role: fleet.RoleAdmin, Reach: access.Fleet,
			Page:    s.rotateKeys((*enrolment.SigningKeys).Finish, "flash.keys_finish"),
			Confirm: true},
		{Method: post, Pattern: ui.PathKeys + "/abort", Role: fleet.RoleAdmin, Reach: access.Fleet,
			Page: s.rotateKeys((*enrolment.SigningKeys).Abort,
				"flash.keys_abort"), Confirm: true},
		{Method: post, Pattern: ui.PathKeys + "/restart", Role: fleet.RoleAdmin, Reach: access.Fleet,
			Page: s.restartLeft},
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
	return pages.ViewerOf(ctx).Actor().FleetRole().Allows(fleet.RoleAdmin)
}

func (s *Server) showSerials(r *http.Request) (pages.Answer, error) {
	page, err := s.serialsPage(r, ui.ListURL{Path: ui.PathSerials, Values: r.URL.Query()})
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) loadSerials(r *http.Request) (pages.Answer, error) {
	list, err := serialList(r)
	if err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	ctx := r.Context()
	done, err := s.Serials.LoadList(ctx, pages.ViewerOf(ctx).Actor(), list)
	if err == nil {
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.serials_loaded", "n", done.Added)})
		return pages.GoTo(ui.PathSerials)
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
func (s *Server) serialsAgain(r *http.Request, err error) (pages.Answer, error) {
	if pages.StatusOf(err) >= http.StatusInternalServerError || errors.Is(err, fleet.ErrNotFound) {
		return pages.Answer{}, err
	}
	page, failed := s.serialsPage(r, ui.ListURL{Path: ui.PathSerials})
	if failed != nil {
		return pages.Answer{}, failed
	}
	page.Problem = pages.Explain(r.Context(), err)
	var file *enrolment.SerialFileError
	if errors.As(err, &file) {
		page.Problems, page.More = file.Problems, file.More
	}
	a, _ := pages.ShowAgain(page.Page())
	a.Status = pages.StatusOf(err)
	return a, nil
}

func (s *Server) releaseSerial(r *http.Request) (pages.Answer, error) {
	return s.changeSerial(r, s.Serials.Release, "flash.serial_released")
}

func (s *Server) deleteSerial(r *http.Request) (pages.Answer, error) {
	return s.changeSerial(r, s.Serials.Delete, "flash.serial_deleted")
}

func (s *Server) changeSerial(r *http.Request, change func(context.Context, fleet.Principal, string) error,
	key string) (pages.Answer, error) {
	ctx := r.Context()
	if err := change(ctx, pages.ViewerOf(ctx).Actor(), chi.URLParam(r, "serial")); err != nil {
		return s.serialsAgain(r, err)
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, key)})
	return pages.GoTo(ui.PathSerials)
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

func (s *Server) showKeys(r *http.Request) (pages.Answer, error) {
	page, err := s.keysPage(r, ui.ListURL{Path: ui.PathKeys, Values: r.URL.Query()})
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// rotateKeys changes the rotation, if the typed text confirms it.
func (s *Server) rotateKeys(act func(*enrolment.SigningKeys, context.Context, fleet.Principal, string) (
	enrolment.KeyRotation,
	error), key string) pages.Handler {
	return func(r *http.Request) (pages.Answer, error) {
		ctx := r.Context()
		_, err := act(s.Keys, ctx, pages.ViewerOf(ctx).Actor(), r.PostFormValue("confirm"))
		return s.keysChanged(r, key, err)
	}
}

func (s *Server) keysChanged(r *http.Request, key string, err error) (pages.Answer, error) {
	ctx := r.Context()
	if err == nil {
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, key)})
		return pages.GoTo(ui.PathKeys)
	}
	if pages.StatusOf(err) >= http.StatusInternalServerError {
		return pages.Answer{}, err
	}
	page, failed := s.keysPage(r, ui.ListURL{Path: ui.PathKeys})
	if failed != nil {
		return pages.Answer{}, failed
	}
	page.Problem = pages.Explain(ctx, err)
	a, _ := pages.ShowAgain(page.Page())
	a.Status = pages.StatusOf(err)
	return a, nil
}

func (s *Server) restartLeft(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	request, err := s.Keys.Restart(ctx, pages.ViewerOf(ctx).Actor(), s.Presences.IsConnected)
	if err != nil {
		return s.keysChanged(r, "", err)
	}
	f, err := s.FanOuts.Create(ctx, request)
	if err != nil {
		return s.keysChanged(r, "", err)
	}
	return pages.GoTo(ui.FanOutPath(f.ID.String()))
}
