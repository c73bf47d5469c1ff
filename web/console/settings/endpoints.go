package settings

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
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// endpointRoutes are the settings of endpoints. Their changes decide which programs outside act for
// the fleet, so they require the password.
func (s *Server) endpointRoutes() []pages.Route {
	const get, post, admin = http.MethodGet, http.MethodPost, fleet.RoleAdmin
	one := ui.PathEndpoints + "/{endpoint}"
	routes := []pages.Route{
		{Method: get, Pattern: ui.PathEndpoints, Page: s.listEndpoints},
		{Method: post, Pattern: ui.PathEndpoints, Page: s.createEndpoint},
		{Method: get, Pattern: one, Page: s.showEndpoint},
		{Method: post, Pattern: one + "/edit", Page: s.editEndpoint},
		{Method: post, Pattern: one + "/enable", Page: s.switchEndpoint(true)},
		{Method: post, Pattern: one + "/disable", Page: s.switchEndpoint(false)},
		{Method: post, Pattern: one + "/token", Page: s.issueEndpointToken},
		{Method: post, Pattern: one + "/token/revoke", Page: s.revokeEndpointToken},
		{Method: post, Pattern: one + "/delete", Page: s.deleteEndpoint},
	}
	for i := range routes {
		routes[i].Role, routes[i].Reach, routes[i].Confirm = admin, access.Fleet, routes[i].Method == post
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
	state, after, limit := ui.EndpointState(list.Get("state")), list.Get("cursor"), pages.LimitOf(list)
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

func endpointList(r *http.Request) ui.ListURL { return pages.ListURL(r, ui.PathEndpoints, "state") }

func (s *Server) endpointsPage(ctx context.Context, list ui.ListURL) (page ui.EndpointsPage, err error) {
	all, err := s.Endpoints.List(pages.ViewerOf(ctx).Actor())
	if err != nil {
		return page, err
	}
	part, counts, next := endpointPart(all, list)
	page = ui.EndpointsPage{Filters: ui.EndpointFilters{List: list, Counts: counts}, Next: next,
		Form: forms.NewEndpoint()}
	page.Rows, err = s.endpointRows(ctx, part)
	return page, err
}

func (s *Server) listEndpoints(r *http.Request) (pages.Answer, error) {
	page, err := s.endpointsPage(r.Context(), endpointList(r))
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// endpointFields are the fields of the form that show their own errors.
var endpointFields = []string{"name", "second_connection", "tools", "audience", "offer_to_voice"}

// createEndpoint returns the page itself: the secret is shown only once and must not be stored for a
// next page.
func (s *Server) createEndpoint(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	ctx := r.Context()
	f := forms.PostedEndpoint(r.PostForm)
	f.New = true
	var settings endpoint.Settings
	f.Change(&settings)
	e, secret, err := s.Endpoints.Create(ctx, pages.ViewerOf(ctx).Actor(), f.Name, settings)
	if err == nil {
		return s.showSecret(ctx, e, endpoint.Provider, secret)
	}
	problems, ok := fieldProblems(ctx, err, endpointFields)
	if !ok {
		return pages.Answer{}, err
	}
	page, err := s.endpointsPage(ctx, endpointList(r))
	if err != nil {
		return pages.Answer{}, err
	}
	page.Form, page.Problems = f, problems
	return pages.ShowAgain(page.Page())
}

// showSecret shows the page of an endpoint with a new token.
func (s *Server) showSecret(ctx context.Context, e endpoint.Listed, kind endpoint.TokenKind,
	secret string) (pages.Answer, error) {
	page, err := s.endpointPage(ctx, e)
	if err != nil {
		return pages.Answer{}, err
	}
	page.Secret = ui.EndpointSecret{Kind: kind, Token: secret, Public: s.PublicURL, Local: pages.LocalOnly(s.PublicURL)}
	return pages.Answer{Page: page.Page(), Whole: true}, nil
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
	return s.Endpoints.Endpoint(pages.ViewerOf(r.Context()).Actor(), programName(r, "endpoint"))
}

func (s *Server) showEndpoint(r *http.Request) (pages.Answer, error) {
	e, err := s.endpointAt(r)
	if err != nil {
		return pages.Answer{}, err
	}
	page, err := s.endpointPage(r.Context(), e)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) editEndpoint(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	ctx, name := r.Context(), programName(r, "endpoint")
	f := forms.PostedEndpoint(r.PostForm)
	_, err := s.Endpoints.Update(ctx, pages.ViewerOf(ctx).Actor(), name, f.Version, f.Change)
	if err == nil {
		return s.programChanged(r, ui.EndpointPath(name), pages.Text(ctx, "flash.saved"), nil)
	}
	problems, ok := fieldProblems(ctx, err, endpointFields)
	if !ok {
		return pages.Answer{}, err
	}
	e, err := s.endpointAt(r)
	if err != nil {
		return pages.Answer{}, err
	}
	page, err := s.endpointPage(ctx, e)
	if err != nil {
		return pages.Answer{}, err
	}
	f.Name = name
	page.Form, page.Problems = f, problems
	return pages.ShowAgain(page.Page())
}

func (s *Server) switchEndpoint(on bool) pages.Handler {
	return func(r *http.Request) (pages.Answer, error) {
		ctx, name := r.Context(), programName(r, "endpoint")
		_, err := s.Endpoints.Update(ctx, pages.ViewerOf(ctx).Actor(), name, policyVersion(r),
			func(e *endpoint.Settings) { e.Disabled = !on })
		return s.programChanged(r, ui.EndpointPath(name), pages.Text(ctx, "flash.saved"), err)
	}
}

// issueEndpointToken returns the page itself, as createEndpoint does. The version in the form
// prevents that a reload of that page makes another token.
func (s *Server) issueEndpointToken(r *http.Request) (pages.Answer, error) {
	ctx, name := r.Context(), programName(r, "endpoint")
	kind := endpoint.TokenKind(r.PostFormValue("kind"))
	e, secret, err := s.Endpoints.Issue(ctx, pages.ViewerOf(ctx).Actor(), name, policyVersion(r), kind)
	if err != nil {
		return s.programChanged(r, ui.EndpointPath(name), "", err)
	}
	return s.showSecret(ctx, e, kind, secret)
}

func (s *Server) revokeEndpointToken(r *http.Request) (pages.Answer, error) {
	ctx, name := r.Context(), programName(r, "endpoint")
	_, err := s.Endpoints.Revoke(ctx, pages.ViewerOf(ctx).Actor(), name, policyVersion(r),
		endpoint.TokenKind(r.PostFormValue("kind")))
	return s.programChanged(r, ui.EndpointPath(name), pages.Text(ctx, "flash.token_revoked"), err)
}

// deleteEndpoint requires the typed name, because the endpoint's device retires.
func (s *Server) deleteEndpoint(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	e, err := s.endpointAt(r)
	if err != nil {
		return pages.Answer{}, err
	}
	if r.PostFormValue("confirm") != e.Name {
		return pages.Answer{}, pages.ErrNotConfirmed
	}
	err = s.Endpoints.Delete(ctx, pages.ViewerOf(ctx).Actor(), e.Name)
	return s.programChanged(r, ui.PathEndpoints, pages.Text(ctx, "endpoints.was_deleted", "name", e.Name), err)
}

// An endpointsView follows the list of endpoints. No event announces what a connection does.
type endpointsView struct {
	server *Server
	list   ui.ListURL
	shown  map[string]ui.EndpointRow // by name, as sent; also those that no longer match the filter
	fresh  map[string]bool           // those that appeared, which the page does not show
	counts map[ui.EndpointState]int
}

func (s *Server) newEndpointsView(r *http.Request) (pages.View, error) {
	if _, err := s.Endpoints.List(pages.ViewerOf(r.Context()).Actor()); err != nil {
		return nil, err
	}
	return &endpointsView{server: s, list: endpointList(r), fresh: make(map[string]bool)}, nil
}

func (v *endpointsView) Pace() time.Duration { return pages.PaceCounts }

func (v *endpointsView) Wants(*fleet.Event) bool { return false }

func (v *endpointsView) Render(context.Context, []fleet.Event) (pages.Updates, error) {
	return pages.Updates{}, nil
}

func (v *endpointsView) Begin(ctx context.Context) (pages.Updates, error) {
	page, err := v.server.endpointsPage(ctx, v.list)
	if err != nil {
		return pages.Updates{}, err
	}
	v.shown = make(map[string]ui.EndpointRow, len(page.Rows))
	for _, row := range page.Rows {
		v.shown[row.Name] = ui.EndpointRow{} // the page may be older
	}
	return v.Look(ctx)
}

func (v *endpointsView) Look(ctx context.Context) (u pages.Updates, err error) {
	all, err := v.server.Endpoints.List(pages.ViewerOf(ctx).Actor())
	if err != nil {
		return u, err
	}
	part, counts, _ := endpointPart(all, v.list)
	for _, e := range part {
		if _, shown := v.shown[e.Name]; !shown && !v.fresh[e.Name] {
			v.fresh[e.Name] = true
			u.Fresh++
		}
	}
	if !maps.Equal(counts, v.counts) {
		v.counts = counts
		u.Patches = append(u.Patches, ui.EndpointFilters{List: v.list, Counts: counts}.View())
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
func (v *endpointsView) send(u *pages.Updates, row ui.EndpointRow) {
	if !reflect.DeepEqual(v.shown[row.Name], row) {
		v.shown[row.Name] = row
		u.Patches = append(u.Patches, row.Row())
	}
}

// An endpointView follows the page of one endpoint.
type endpointView struct {
	server *Server
	name   string
	sent   ui.EndpointRow
}

func (s *Server) newEndpointView(r *http.Request) (pages.View, error) {
	v := &endpointView{server: s, name: r.URL.Query().Get("name")}
	_, err := s.Endpoints.Endpoint(pages.ViewerOf(r.Context()).Actor(), v.name)
	return v, err
}

func (v *endpointView) Pace() time.Duration { return pages.PaceCounts }

func (v *endpointView) Wants(*fleet.Event) bool { return false }

func (v *endpointView) Render(context.Context, []fleet.Event) (pages.Updates, error) {
	return pages.Updates{}, nil
}

func (v *endpointView) Begin(ctx context.Context) (pages.Updates, error) { return v.Look(ctx) }

func (v *endpointView) Look(ctx context.Context) (u pages.Updates, err error) {
	row := ui.EndpointRow{Deleted: true}
	e, err := v.server.Endpoints.Endpoint(pages.ViewerOf(ctx).Actor(), v.name)
	if err == nil {
		var rows []ui.EndpointRow
		if rows, err = v.server.endpointRows(ctx, []endpoint.Listed{e}); err == nil {
			row = rows[0]
		}
	}
	if err = pages.Unless(err, fleet.ErrNotFound); err != nil || reflect.DeepEqual(v.sent, row) {
		return u, err
	}
	v.sent = row
	u.Patches = append(u.Patches, row.Now())
	return u, nil
}
