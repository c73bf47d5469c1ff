package console

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/upstream"
	"fleetd/web/access"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

func (s *Server) upstreamRoutes() []route {
	const viewer, admin = fleet.RoleViewer, fleet.RoleAdmin
	one := ui.PathUpstreams + "/{upstream}"
	return []route{
		{method: http.MethodGet, pattern: ui.PathUpstreams, role: viewer, reach: access.Fleet, page: s.listUpstreams},
		{method: http.MethodPost, pattern: ui.PathUpstreams, role: admin, reach: access.Fleet, page: s.createUpstream},
		{method: http.MethodGet, pattern: one, role: viewer, reach: access.Fleet, page: s.showUpstream},
		{method: http.MethodPost, pattern: one + "/edit", role: admin, reach: access.Fleet, page: s.editUpstream},
		{method: http.MethodPost, pattern: one + "/enable", role: admin, reach: access.Fleet, page: s.switchUpstream(true)},
		{method: http.MethodPost, pattern: one + "/disable", role: admin, reach: access.Fleet, page: s.switchUpstream(false)},
		{method: http.MethodPost, pattern: one + "/move", role: admin, reach: access.Fleet, page: s.moveUpstream},
		{method: http.MethodPost, pattern: one + "/check", role: admin, reach: access.Fleet, page: s.checkUpstream},
		{method: http.MethodPost, pattern: one + "/delete", role: admin, reach: access.Fleet, page: s.deleteUpstream},
	}
}

func (s *Server) upstreamsPage(r *http.Request) (ui.UpstreamsPage, error) {
	ctx := r.Context()
	page := ui.UpstreamsPage{Admin: mayAdmin(ctx), Form: ui.UpstreamForm{Kind: string(upstream.WebSocket),
		Auth: string(upstream.AuthSecret), Tools: true, Enabled: true}}
	var err error
	if page.Rows, page.Version, err = s.Upstreams.List(viewerOf(ctx).actor()); err != nil {
		return page, err
	}
	page.Match.Device = strings.TrimSpace(r.URL.Query().Get("device"))
	if page.Match.Device == "" {
		return page, nil
	}
	id, err := fleet.ParseDeviceID(page.Match.Device)
	var m upstream.Match
	if err == nil {
		m, err = s.Upstreams.Match(ctx, viewerOf(ctx).actor(), id)
	}
	switch {
	case err != nil && statusOf(err) >= http.StatusInternalServerError:
		return page, err
	case err != nil:
		page.Match.Problem = explain(ctx, err)
	default:
		page.Match.Result = &m
	}
	return page, nil
}

func (s *Server) listUpstreams(r *http.Request) (answer, error) {
	page, err := s.upstreamsPage(r)
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

// readUpstream reads the form. An empty secret leaves the old one unchanged.
func readUpstream(r *http.Request) (f ui.UpstreamForm, c upstream.Change, err error) {
	if err := r.ParseForm(); err != nil {
		return f, c, formError(err)
	}
	get := r.PostFormValue
	f = ui.UpstreamForm{Name: get("name"), Kind: get("kind"), URL: get("url"), Auth: get("auth"),
		Devices: get("devices"), Tools: get("tools") != "", Enabled: get("enabled") != ""}
	kind, auth, secret := upstream.Kind(f.Kind), upstream.Auth(f.Auth), get("secret")
	if kind != upstream.WebSocket { // whatever the form contains
		auth, secret = upstream.AuthNone, ""
	}
	return f, upstream.Change{Name: &f.Name, Kind: &kind, URL: &f.URL, Auth: &auth, Secret: &secret,
		Devices: &f.Devices, Tools: &f.Tools, Enabled: &f.Enabled}, nil
}

func (s *Server) createUpstream(r *http.Request) (answer, error) {
	ctx := r.Context()
	f, change, err := readUpstream(r)
	if err == nil {
		_, err = s.Upstreams.Create(ctx, viewerOf(ctx).actor(), policyVersion(r), -1, change)
	}
	if err != nil && statusOf(err) >= http.StatusInternalServerError {
		return answer{}, err
	}
	if err != nil {
		page, failed := s.upstreamsPage(r)
		if failed != nil {
			return answer{}, failed
		}
		page.Form, page.Problem = f, explain(ctx, err)
		return showAgain(page.Page())
	}
	s.flash(ctx, ui.Flash{Text: text(ctx, "flash.saved")})
	return goTo(ui.PathUpstreams)
}

// upstreamPage returns the page of the voice server in the address.
func (s *Server) upstreamPage(r *http.Request) (ui.UpstreamPage, error) {
	ctx := r.Context()
	id, err := uuid.Parse(chi.URLParam(r, "upstream"))
	if err != nil {
		return ui.UpstreamPage{}, errNoPage
	}
	version := s.Upstreams.Version()
	u, err := s.Upstreams.Upstream(viewerOf(ctx).actor(), id)
	return ui.UpstreamPage{Row: u, Version: version, Admin: mayAdmin(ctx), Form: ui.UpstreamForm{Name: u.Name,
		Kind: string(u.Kind), URL: u.URL, Auth: string(u.Auth), Devices: u.Devices,
		SecretSet: u.Auth != upstream.AuthNone, Tools: u.Tools, Enabled: u.Enabled}}, err
}

func (s *Server) showUpstream(r *http.Request) (answer, error) {
	page, err := s.upstreamPage(r)
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

func (s *Server) editUpstream(r *http.Request) (answer, error) {
	ctx := r.Context()
	page, err := s.upstreamPage(r)
	if err != nil {
		return answer{}, err
	}
	f, change, err := readUpstream(r)
	if err == nil {
		_, err = s.Upstreams.Update(ctx, viewerOf(ctx).actor(), policyVersion(r), page.Row.ID, change)
	}
	if err != nil && statusOf(err) >= http.StatusInternalServerError {
		return answer{}, err
	}
	if err != nil {
		f.SecretSet = page.Form.SecretSet
		page.Form, page.Problem = f, explain(ctx, err)
		return showAgain(page.Page())
	}
	s.flash(ctx, ui.Flash{Text: text(ctx, "flash.saved")})
	return goTo(ui.PathUpstreams)
}

func (s *Server) switchUpstream(on bool) handler {
	return func(r *http.Request) (answer, error) {
		page, err := s.upstreamPage(r)
		if err == nil {
			_, err = s.Upstreams.Update(r.Context(), viewerOf(r.Context()).actor(), policyVersion(r), page.Row.ID,
				upstream.Change{Enabled: &on})
		}
		return s.upstreamsChanged(r, err)
	}
}

func (s *Server) moveUpstream(r *http.Request) (answer, error) {
	page, err := s.upstreamPage(r)
	if err != nil {
		return answer{}, err
	}
	to, err := strconv.Atoi(r.PostFormValue("to"))
	if err != nil {
		return answer{}, fleet.Refuse(fleet.ErrInvalid, "invalid_form.place")
	}
	_, err = s.Upstreams.Move(r.Context(), viewerOf(r.Context()).actor(), policyVersion(r), page.Row.ID, max(to, 0))
	return s.upstreamsChanged(r, err)
}

func (s *Server) deleteUpstream(r *http.Request) (answer, error) {
	page, err := s.upstreamPage(r)
	if err == nil {
		err = s.Upstreams.Delete(r.Context(), viewerOf(r.Context()).actor(), policyVersion(r), page.Row.ID)
	}
	return s.upstreamsChanged(r, err)
}

func (s *Server) checkUpstream(r *http.Request) (answer, error) {
	ctx := r.Context()
	page, err := s.upstreamPage(r)
	if err != nil {
		return answer{}, err
	}
	c, err := s.Upstreams.Check(ctx, viewerOf(ctx).actor(), page.Row.ID)
	switch {
	case err != nil:
		return answer{}, err
	case c.OK:
		s.flash(ctx, ui.Flash{Text: text(ctx, "flash.upstream_well", "name", page.Row.Name, "d", c.Took)})
	default:
		s.flash(ctx, ui.Flash{Bad: true, Text: text(ctx, "flash.upstream_failed", "name", page.Row.Name, "why",
			text(ctx, "upstream.error."+string(c.Error)))})
	}
	return goTo(ui.PathUpstreams)
}

func (s *Server) upstreamsChanged(r *http.Request, err error) (answer, error) {
	ctx := r.Context()
	switch {
	case err != nil && errorCode(err) == "upstreams_changed": // the page shows the changed voice servers
		s.flash(ctx, ui.Flash{Bad: true, Text: i18n.Unmarked(explain(ctx, err))})
	case err != nil:
		return answer{}, err
	default:
		s.flash(ctx, ui.Flash{Text: text(ctx, "flash.saved")})
	}
	return goTo(ui.PathUpstreams)
}
