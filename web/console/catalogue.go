package console

import (
	"net/http"

	"fleetd/fleet"
	"fleetd/fleet/catalogue"
	"fleetd/web/access"
	"fleetd/web/ui"
)

// catalogueRoutes are the pages of all tools of the fleet. A release decides what language models may
// call, so it requires the password.
func (s *Server) catalogueRoutes() []route {
	one := ui.PathTools + "/{tool}"
	return []route{
		{method: http.MethodGet, pattern: ui.PathTools, role: fleet.RoleViewer, reach: access.List, page: s.showCatalogue},
		{method: http.MethodPost, pattern: ui.PathTools, role: fleet.RoleAdmin, reach: access.Fleet, page: s.changeCatalogue,
			confirm: true},
		{method: http.MethodGet, pattern: one, role: fleet.RoleViewer, reach: access.List, page: s.showCatalogueTool},
		{method: http.MethodPost, pattern: one, role: fleet.RoleAdmin, reach: access.Fleet, page: s.changeCatalogue,
			confirm: true},
	}
}

func (s *Server) showCatalogue(r *http.Request) (answer, error) {
	list := listURL(r, ui.PathTools, "name", "board", "version", "audience", "waiting")
	f := catalogue.Filter{Name: list.Get("name"), Board: list.Get("board"), Version: list.Get("version"),
		Waiting: list.Get("waiting") != "", Limit: limitOf(list), Cursor: list.Get("cursor")}
	if a := fleet.Audience(list.Get("audience")); a == fleet.AudienceModel || a == fleet.AudienceUser {
		f.Audience = a
	}
	found, err := s.Catalogue.List(r.Context(), f)
	if errorCode(err) == "invalid_cursor" {
		return goTo(list.At(""))
	}
	if err != nil {
		return answer{}, err
	}
	page := ui.CataloguePage{List: list, Prev: found.Prev, Next: found.Next, Waits: s.Catalogue.Waits(),
		NoUsage: found.NoUsage, Admin: mayAdmin(r.Context())}
	if page.Waiting, page.WaitingAll, err = s.Catalogue.Waiting(r.Context(), viewerOf(r.Context()).actor()); err != nil {
		return answer{}, err
	}
	for _, e := range found.Items {
		page.Rows = append(page.Rows, ui.CatalogueRow{Entry: e, NoUsage: found.NoUsage})
	}
	return show(page.Page())
}

func (s *Server) showCatalogueTool(r *http.Request) (answer, error) {
	t, err := s.Catalogue.Tool(r.Context(), toolName(r), s.Catalogue.Since())
	if err != nil {
		return answer{}, err
	}
	page := ui.CatalogueToolPage{Tool: t, Waits: s.Catalogue.Waits(), Admin: mayAdmin(r.Context())}
	if len(t.Definitions) > 1 {
		from, to, err := t.Find(r.URL.Query().Get("from"), r.URL.Query().Get("to"))
		if err != nil {
			return answer{}, err
		}
		diff := catalogue.Compare(from, to)
		page.Diff = &diff
	}
	return show(page.Page())
}

// changeCatalogue releases the definitions that the administrator has read, or changes the setting.
func (s *Server) changeCatalogue(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	ctx := r.Context()
	by := viewerOf(ctx).actor()
	back := ui.PathTools
	if name := toolName(r); name != "" {
		back = ui.CatalogueToolPath(name)
	}
	if w := r.PostForm.Get("waits"); w != "" {
		if err := s.Catalogue.SetWaits(ctx, by, catalogue.Waits(w)); err != nil {
			return answer{}, err
		}
		s.flash(ctx, ui.Flash{Text: text(ctx, "flash.saved")})
		return goTo(back)
	}
	var keys []catalogue.Key
	for _, value := range r.PostForm["definition"] {
		key, err := ui.ParseDefinition(value)
		if err != nil {
			return answer{}, err
		}
		keys = append(keys, key)
	}
	released, err := s.Catalogue.Release(ctx, by, keys)
	if err != nil {
		return answer{}, err
	}
	s.flash(ctx, ui.Flash{Text: text(ctx, "flash.definitions_released", "n", len(released))})
	return goTo(back)
}
