package console

import (
	"context"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/endpoint"
	"fleetd/web/access"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// endpointRoutes are the settings of endpoints. Their changes decide which programs outside act for
// the fleet, so they require the password.
func (s *Server) endpointRoutes() []route {
	const get, post, admin = http.MethodGet, http.MethodPost, fleet.RoleAdmin
	one := ui.PathEndpoints + "/{endpoint}"
	routes := []route{
		{method: get, pattern: ui.PathEndpoints, page: s.listEndpoints},
		{method: post, pattern: ui.PathEndpoints, page: s.createEndpoint},
		{method: get, pattern: one, page: s.showEndpoint},
		{method: post, pattern: one + "/edit", page: s.editEndpoint},
		{method: post, pattern: one + "/enable", page: s.switchEndpoint(true)},
		{method: post, pattern: one + "/disable", page: s.switchEndpoint(false)},
		{method: post, pattern: one + "/token", page: s.issueEndpointToken},
		{method: post, pattern: one + "/token/revoke", page: s.revokeEndpointToken},
		{method: post, pattern: one + "/delete", page: s.deleteEndpoint},
	}
	for i := range routes {
		routes[i].role, routes[i].reach, routes[i].confirm = admin, access.Fleet, routes[i].method == post
	}
	return routes
}

// endpointRows returns the endpoints with the number of their tools.
func (s *Server) endpointRows(ctx context.Context, list []endpoint.Listed) ([]ui.EndpointRow, error) {
	ids := make([]fleet.DeviceID, len(list))
	for i, e := range list {
		ids[i] = e.Device()
	}
	devices, err := s.Devices.DevicesByID(ctx, ids)
	if err != nil {
		return nil, err
	}
	tools := make(map[fleet.DeviceID]int, len(devices))
	for _, d := range devices {
		if d.RetiredAt == nil {
			tools[d.ID] = d.ToolsCount
		}
	}
	rows := make([]ui.EndpointRow, len(list))
	for i, e := range list {
		rows[i] = ui.EndpointRow{Listed: e, ToolCount: tools[e.Device()]}
	}
	return rows, nil
}

// endpointPart returns a page of the endpoints with the state in the address, how many have each
// state, and the cursor of the next page. A cursor is the last name of the page before.
func endpointPart(all []endpoint.Listed, list ui.ListURL) (part []endpoint.Listed, counts map[ui.EndpointState]int,
	next string) {
	counts = map[ui.EndpointState]int{"": len(all)}
	state, after, limit := ui.EndpointState(list.Get("state")), list.Get("cursor"), limitOf(list)
	for _, e := range all {
		is := ui.EndpointRow{Listed: e}.State()
		counts[is]++
		switch {
		case state != "" && is != state, e.Name <= after, next != "":
		case len(part) == limit:
			next = part[limit-1].Name
		default:
			part = append(part, e)
		}
	}
	return part, counts, next
}

func endpointList(r *http.Request) ui.ListURL { return listURL(r, ui.PathEndpoints, "state") }

func (s *Server) endpointsPage(ctx context.Context, list ui.ListURL) (page ui.EndpointsPage, err error) {
	all, err := s.Endpoints.List(viewerOf(ctx).actor())
	if err != nil {
		return page, err
	}
	part, counts, next := endpointPart(all, list)
	page = ui.EndpointsPage{Filters: ui.EndpointFilters{List: list, Counts: counts}, Next: next,
		Form: forms.NewEndpoint()}
	page.Rows, err = s.endpointRows(ctx, part)
	return page, err
}

func (s *Server) listEndpoints(r *http.Request) (answer, error) {
	page, err := s.endpointsPage(r.Context(), endpointList(r))
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

// endpointFields are the fields of the form that show their own errors.
var endpointFields = []string{"name", "second_connection", "tools", "audience", "offer_to_voice"}

// createEndpoint returns the page itself: the secret is shown only once and must not be stored for a
// next page.
func (s *Server) createEndpoint(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	ctx := r.Context()
	f := forms.PostedEndpoint(r.PostForm)
	f.New = true
	var settings endpoint.Settings
	f.Change(&settings)
	e, secret, err := s.Endpoints.Create(ctx, viewerOf(ctx).actor(), f.Name, settings)
	if err == nil {
		return s.showSecret(ctx, e, endpoint.Provider, secret)
	}
	problems, ok := fieldProblems(ctx, err, endpointFields)
	if !ok {
		return answer{}, err
	}
	page, err := s.endpointsPage(ctx, endpointList(r))
	if err != nil {
		return answer{}, err
	}
	page.Form, page.Problems = f, problems
	return showAgain(page.Page())
}

// showSecret shows the page of an endpoint with a new token.
func (s *Server) showSecret(ctx context.Context, e endpoint.Listed, kind endpoint.TokenKind, secret string) (answer,
	error) {
	page, err := s.endpointPage(ctx, e)
	if err != nil {
		return answer{}, err
	}
	page.Secret = ui.EndpointSecret{Kind: kind, Token: secret, Public: s.PublicURL, Local: LocalOnly(s.PublicURL)}
	return answer{page: page.Page(), whole: true}, nil
}

func (s *Server) endpointPage(ctx context.Context, e endpoint.Listed) (page ui.EndpointPage, err error) {
	rows, err := s.endpointRows(ctx, []endpoint.Listed{e})
	if err != nil {
		return page, err
	}
	return ui.EndpointPage{Row: rows[0], Form: forms.FillEndpoint(e.Endpoint)}, nil
}

// endpointAt returns the endpoint in the address.
func (s *Server) endpointAt(r *http.Request) (endpoint.Listed, error) {
	return s.Endpoints.Endpoint(viewerOf(r.Context()).actor(), programName(r, "endpoint"))
}

func (s *Server) showEndpoint(r *http.Request) (answer, error) {
	e, err := s.endpointAt(r)
	if err != nil {
		return answer{}, err
	}
	page, err := s.endpointPage(r.Context(), e)
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

func (s *Server) editEndpoint(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	ctx, name := r.Context(), programName(r, "endpoint")
	f := forms.PostedEndpoint(r.PostForm)
	_, err := s.Endpoints.Update(ctx, viewerOf(ctx).actor(), name, f.Version, f.Change)
	if err == nil {
		return s.programChanged(r, ui.EndpointPath(name), text(ctx, "flash.saved"), nil)
	}
	problems, ok := fieldProblems(ctx, err, endpointFields)
	if !ok {
		return answer{}, err
	}
	e, err := s.endpointAt(r)
	if err != nil {
		return answer{}, err
	}
	page, err := s.endpointPage(ctx, e)
	if err != nil {
		return answer{}, err
	}
	f.Name = name
	page.Form, page.Problems = f, problems
	return showAgain(page.Page())
}

func (s *Server) switchEndpoint(on bool) handler {
	return func(r *http.Request) (answer, error) {
		ctx, name := r.Context(), programName(r, "endpoint")
		_, err := s.Endpoints.Update(ctx, viewerOf(ctx).actor(), name, policyVersion(r),
			func(e *endpoint.Settings) { e.Disabled = !on })
		return s.programChanged(r, ui.EndpointPath(name), text(ctx, "flash.saved"), err)
	}
}

// issueEndpointToken returns the page itself, as createEndpoint does. The version in the form
// prevents that a reload of that page makes another token.
func (s *Server) issueEndpointToken(r *http.Request) (answer, error) {
	ctx, name := r.Context(), programName(r, "endpoint")
	kind := endpoint.TokenKind(r.PostFormValue("kind"))
	e, secret, err := s.Endpoints.Issue(ctx, viewerOf(ctx).actor(), name, policyVersion(r), kind)
	if err != nil {
		return s.programChanged(r, ui.EndpointPath(name), "", err)
	}
	return s.showSecret(ctx, e, kind, secret)
}

func (s *Server) revokeEndpointToken(r *http.Request) (answer, error) {
	ctx, name := r.Context(), programName(r, "endpoint")
	_, err := s.Endpoints.Revoke(ctx, viewerOf(ctx).actor(), name, policyVersion(r),
		endpoint.TokenKind(r.PostFormValue("kind")))
	return s.programChanged(r, ui.EndpointPath(name), text(ctx, "flash.token_revoked"), err)
}

// deleteEndpoint requires the typed name, because the endpoint's device retires.
func (s *Server) deleteEndpoint(r *http.Request) (answer, error) {
	ctx := r.Context()
	e, err := s.endpointAt(r)
	if err != nil {
		return answer{}, err
	}
	if r.PostFormValue("confirm") != e.Name {
		return answer{}, errNotConfirmed
	}
	err = s.Endpoints.Delete(ctx, viewerOf(ctx).actor(), e.Name)
	return s.programChanged(r, ui.PathEndpoints, text(ctx, "endpoints.was_deleted", "name", e.Name), err)
}

// An endpointsView follows the list of endpoints. No event announces what a connection does.
type endpointsView struct {
	server *Server
	list   ui.ListURL
	shown  map[string]ui.EndpointRow // by name, as sent; also those that no longer match the filter
	fresh  map[string]bool           // those that appeared, which the page does not show
	counts map[ui.EndpointState]int
}

func (s *Server) newEndpointsView(r *http.Request) (view, error) {
	if _, err := s.Endpoints.List(viewerOf(r.Context()).actor()); err != nil {
		return nil, err
	}
	return &endpointsView{server: s, list: endpointList(r), fresh: make(map[string]bool)}, nil
}

func (v *endpointsView) pace() time.Duration { return paceCounts }

func (v *endpointsView) wants(*fleet.Event) bool { return false }

func (v *endpointsView) render(context.Context, []fleet.Event) (updates, error) {
	return updates{}, nil
}

func (v *endpointsView) begin(ctx context.Context) (updates, error) {
	page, err := v.server.endpointsPage(ctx, v.list)
	if err != nil {
		return updates{}, err
	}
	v.shown = make(map[string]ui.EndpointRow, len(page.Rows))
	for _, row := range page.Rows {
		v.shown[row.Name] = ui.EndpointRow{} // the page may be older
	}
	return v.look(ctx)
}

func (v *endpointsView) look(ctx context.Context) (u updates, err error) {
	all, err := v.server.Endpoints.List(viewerOf(ctx).actor())
	if err != nil {
		return u, err
	}
	part, counts, _ := endpointPart(all, v.list)
	for _, e := range part {
		if _, shown := v.shown[e.Name]; !shown && !v.fresh[e.Name] {
			v.fresh[e.Name] = true
			u.fresh++
		}
	}
	if !maps.Equal(counts, v.counts) {
		v.counts = counts
		u.patches = append(u.patches, ui.EndpointFilters{List: v.list, Counts: counts}.View())
	}
	rows, err := v.server.endpointRows(ctx, slices.DeleteFunc(all, func(e endpoint.Listed) bool {
		_, shown := v.shown[e.Name]
		return !shown
	}))
	if err != nil {
		return u, err
	}
	here := make(map[string]bool, len(rows))
	for _, row := range rows {
		here[row.Name] = true
		v.send(&u, row)
	}
	for name := range v.shown {
		if !here[name] {
			gone := ui.EndpointRow{Deleted: true}
			gone.Name = name
			v.send(&u, gone)
		}
	}
	return u, nil
}

// send sends a row if it changed.
func (v *endpointsView) send(u *updates, row ui.EndpointRow) {
	if !reflect.DeepEqual(v.shown[row.Name], row) {
		v.shown[row.Name] = row
		u.patches = append(u.patches, row.Row())
	}
}

// An endpointView follows the page of one endpoint.
type endpointView struct {
	server *Server
	name   string
	sent   ui.EndpointRow
}

func (s *Server) newEndpointView(r *http.Request) (view, error) {
	v := &endpointView{server: s, name: r.URL.Query().Get("name")}
	_, err := s.Endpoints.Endpoint(viewerOf(r.Context()).actor(), v.name)
	return v, err
}

func (v *endpointView) pace() time.Duration { return paceCounts }

func (v *endpointView) wants(*fleet.Event) bool { return false }

func (v *endpointView) render(context.Context, []fleet.Event) (updates, error) { return updates{}, nil }

func (v *endpointView) begin(ctx context.Context) (updates, error) { return v.look(ctx) }

func (v *endpointView) look(ctx context.Context) (u updates, err error) {
	row := ui.EndpointRow{Deleted: true}
	e, err := v.server.Endpoints.Endpoint(viewerOf(ctx).actor(), v.name)
	if err == nil {
		var rows []ui.EndpointRow
		if rows, err = v.server.endpointRows(ctx, []endpoint.Listed{e}); err == nil {
			row = rows[0]
		}
	}
	if err = unless(err, fleet.ErrNotFound); err != nil || reflect.DeepEqual(v.sent, row) {
		return u, err
	}
	v.sent = row
	u.patches = append(u.patches, row.Now())
	return u, nil
}
