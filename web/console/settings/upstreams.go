package settings

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/upstream"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

func (s *Server) upstreamRoutes() []pages.Route {
	const viewer, admin = fleet.RoleViewer, fleet.RoleAdmin
	one := ui.PathUpstreams + "/{upstream}"
	return []pages.Route{
		{Method: http.MethodGet, Pattern: ui.PathUpstreams, Role: viewer, Reach: access.Fleet, Page: s.listUpstreams},
		{Method: http.MethodPost, Pattern: ui.PathUpstreams, Role: admin, Reach: access.Fleet, Page: s.createUpstream},
		{Method: http.MethodGet, Pattern: one, Role: viewer, Reach: access.Fleet, Page: s.showUpstream},
		{Method: http.MethodPost, Pattern: one + "/edit", Role: admin, Reach: access.Fleet, Page: s.editUpstream},
		{Method: http.MethodPost, Pattern: one + "/enable", Role: admin, Reach: access.Fleet, Page: s.switchUpstream(true)},
		{Method: http.MethodPost, Pattern: one + "/disable", Role: admin, Reach: access.Fleet, Page: s.switchUpstream(false)},
		{Method: http.MethodPost, Pattern: one + "/move", Role: admin, Reach: access.Fleet, Page: s.moveUpstream},
		{Method: http.MethodPost, Pattern: one + "/check", Role: admin, Reach: access.Fleet, Page: s.checkUpstream},
		{Method: http.MethodPost, Pattern: one + "/delete", Role: admin, Reach: access.Fleet, Page: s.deleteUpstream},
	}
}

func (s *Server) upstreamsPage(r *http.Request) (ui.UpstreamsPage, error) {
	ctx := r.Context()
	page := ui.UpstreamsPage{Admin: pages.MayAdmin(ctx), Form: forms.Upstream{Kind: string(upstream.WebSocket),
		Auth: string(upstream.AuthSecret), Tools: true, Enabled: true}}
	var err error
	if page.Rows, page.Version, err = s.Upstreams.List(pages.ViewerOf(ctx).Actor()); err != nil {
		return page, err
	}
	page.Match.Device = strings.TrimSpace(r.URL.Query().Get("device"))
	if page.Match.Device == "" {
		return page, nil
	}
	id, err := fleet.ParseDeviceID(page.Match.Device)
	var m upstream.Match
	if err == nil {
		m, err = s.Upstreams.Match(ctx, pages.ViewerOf(ctx).Actor(), id)
	}
	switch {
	case err != nil && pages.StatusOf(err) >= http.StatusInternalServerError:
		return page, err
	case err != nil:
		page.Match.Problem = pages.Explain(ctx, err)
	default:
		page.Match.Result = &m
	}
	return page, nil
}

func (s *Server) listUpstreams(r *http.Request) (pages.Answer, error) {
	page, err := s.upstreamsPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func readUpstream(r *http.Request) (forms.Upstream, upstream.Change, error) {
	if err := r.ParseForm(); err != nil {
		return forms.Upstream{}, upstream.Change{}, pages.FormError(err)
	}
	f := forms.PostedUpstream(r.PostForm)
	return f, f.Change(), nil
}

func (s *Server) createUpstream(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	f, change, err := readUpstream(r)
	if err == nil {
		_, err = s.Upstreams.Create(ctx, pages.ViewerOf(ctx).Actor(), policyVersion(r), -1, change)
	}
	if err != nil && pages.StatusOf(err) >= http.StatusInternalServerError {
		return pages.Answer{}, err
	}
	if err != nil {
		page, failed := s.upstreamsPage(r)
		if failed != nil {
			return pages.Answer{}, failed
		}
		page.Form, page.Problem = f, pages.Explain(ctx, err)
		return pages.ShowAgain(page.Page())
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.saved")})
	return pages.GoTo(ui.PathUpstreams)
}

// upstreamPage returns the page of the voice server in the address.
func (s *Server) upstreamPage(r *http.Request) (ui.UpstreamPage, error) {
	ctx := r.Context()
	id, err := uuid.Parse(chi.URLParam(r, "upstream"))
	if err != nil {
		return ui.UpstreamPage{}, pages.ErrNoPage
	}
	version := s.Upstreams.Version()
	u, err := s.Upstreams.Upstream(pages.ViewerOf(ctx).Actor(), id)
	return ui.UpstreamPage{Row: u, Version: version, Admin: pages.MayAdmin(ctx), Form: forms.Upstream{Name: u.Name,
		Kind: string(u.Kind), URL: u.URL, Auth: string(u.Auth), Devices: u.Devices,
		SecretSet: u.Auth != upstream.AuthNone, Tools: u.Tools, Enabled: u.Enabled}}, err
}

func (s *Server) showUpstream(r *http.Request) (pages.Answer, error) {
	page, err := s.upstreamPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) editUpstream(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	page, err := s.upstreamPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	f, change, err := readUpstream(r)
	if err == nil {
		_, err = s.Upstreams.Update(ctx, pages.ViewerOf(ctx).Actor(), policyVersion(r), page.Row.ID, change)
	}
	if err != nil && pages.StatusOf(err) >= http.StatusInternalServerError {
		return pages.Answer{}, err
	}
	if err != nil {
		f.SecretSet = page.Form.SecretSet
		page.Form, page.Problem = f, pages.Explain(ctx, err)
		return pages.ShowAgain(page.Page())
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.saved")})
	return pages.GoTo(ui.PathUpstreams)
}

func (s *Server) switchUpstream(on bool) pages.Handler {
	return func(r *http.Request) (pages.Answer, error) {
		page, err := s.upstreamPage(r)
		if err == nil {
			_, err = s.Upstreams.Update(r.Context(), pages.ViewerOf(r.Context()).Actor(), policyVersion(r), page.Row.ID,
				upstream.Change{Enabled: &on})
		}
		return s.upstreamsChanged(r, err)
	}
}

func (s *Server) moveUpstream(r *http.Request) (pages.Answer, error) {
	page, err := s.upstreamPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	to, err := strconv.Atoi(r.PostFormValue("to"))
	if err != nil {
		return pages.Answer{}, fleet.Refuse(fleet.ErrInvalid, "invalid_form.place")
	}
	_, err = s.Upstreams.Move(r.Context(), pages.ViewerOf(r.Context()).Actor(), policyVersion(r), page.Row.ID, max(to, 0))
	return s.upstreamsChanged(r, err)
}

func (s *Server) deleteUpstream(r *http.Request) (pages.Answer, error) {
	page, err := s.upstreamPage(r)
	if err == nil {
		err = s.Upstreams.Delete(r.Context(), pages.ViewerOf(r.Context()).Actor(), policyVersion(r), page.Row.ID)
	}
	return s.upstreamsChanged(r, err)
}

func (s *Server) checkUpstream(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	page, err := s.upstreamPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	c, err := s.Upstreams.Check(ctx, pages.ViewerOf(ctx).Actor(), page.Row.ID)
	switch {
	case err != nil:
		return pages.Answer{}, err
	case c.OK:
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.upstream_well", "name", page.Row.Name, "d", c.Took)})
	default:
		s.Flash(ctx, ui.Flash{Bad: true, Text: pages.Text(ctx, "flash.upstream_failed", "name", page.Row.Name, "why",
			pages.Text(ctx, "upstream.error."+string(c.Error)))})
	}
	return pages.GoTo(ui.PathUpstreams)
}

func (s *Server) upstreamsChanged(r *http.Request, err error) (pages.Answer, error) {
	ctx := r.Context()
	switch {
	case err != nil && pages.ErrorCode(err) == "upstreams_changed": // the page shows the changed voice servers
		s.Flash(ctx, ui.Flash{Bad: true, Text: i18n.Unmarked(pages.Explain(ctx, err))})
	case err != nil:
		return pages.Answer{}, err
	default:
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.saved")})
	}
	return pages.GoTo(ui.PathUpstreams)
}
