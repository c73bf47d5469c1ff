package calls

import (
	"net/http"

	"fleetd/fleet"
	"fleetd/fleet/catalogue"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// catalogueRoutes are the pages of all tools of the fleet. A release decides what language models may
// call, so it requires the password.
func (s *Server) catalogueRoutes() []pages.Route {
	one := ui.PathTools + "/{tool}"
	return []pages.Route{
		{Method: http.MethodGet, Pattern: ui.PathTools, Role: fleet.RoleViewer, Reach: access.List, Page: s.showCatalogue},
		{Method: http.MethodPost, Pattern: ui.PathTools, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.changeCatalogue,
			Confirm: true},
		{Method: http.MethodGet, Pattern: one, Role: fleet.RoleViewer, Reach: access.List, Page: s.showCatalogueTool},
		{Method: http.MethodPost, Pattern: one, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.changeCatalogue,
			Confirm: true},
	}
}

func (s *Server) showCatalogue(r *http.Request) (pages.Answer, error) {
	list := pages.ListURL(r, ui.PathTools, "name", "board", "version", "audience", "waiting")
	f := catalogue.Filter{Name: list.Get("name"), Board: list.Get("board"), Version: list.Get("version"),
		Waiting: list.Get("waiting") != "", Limit: pages.LimitOf(list), Cursor: list.Get("cursor")}
	if a := fleet.Audience(list.Get("audience")); a == fleet.AudienceModel || a == fleet.AudienceUser {
		f.Audience = a
	}
	found, err := s.Catalogue.List(r.Context(), f)
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(list.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	page := ui.CataloguePage{List: list, Prev: found.Prev, Next: found.Next, Waits: s.Catalogue.Waits(),
		NoUsage: found.NoUsage, Admin: pages.MayAdmin(r.Context())}
	if page.Waiting, page.WaitingAll, err = s.Catalogue.Waiting(r.Context(),
		pages.ViewerOf(r.Context()).Actor()); err != nil {
		return pages.Answer{}, err
	}
	for _, e := range found.Items {
		page.Rows = append(page.Rows, ui.CatalogueRow{Entry: e, NoUsage: found.NoUsage})
	}
	return pages.Show(page.Page())
}

func (s *Server) showCatalogueTool(r *http.Request) (pages.Answer, error) {
	t, err := s.Catalogue.Tool(r.Context(), pages.ToolName(r), s.Catalogue.Since())
	if err != nil {
		return pages.Answer{}, err
	}
	page := ui.CatalogueToolPage{Tool: t, Waits: s.Catalogue.Waits(), Admin: pages.MayAdmin(r.Context())}
	if len(t.Definitions) > 1 {
		from, to, err := t.Find(r.URL.Query().Get("from"), r.URL.Query().Get("to"))
		if err != nil {
			return pages.Answer{}, err
		}
		diff := catalogue.Compare(from, to)
		page.Diff = &diff
	}
	return pages.Show(page.Page())
}

// changeCatalogue releases the definitions that the administrator has read, or changes the setting.
func (s *Server) changeCatalogue(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	ctx := r.Context()
	by := pages.ViewerOf(ctx).Actor()
	back := ui.PathTools
	if name := pages.ToolName(r); name != "" {
		back = ui.CatalogueToolPath(name)
	}
	if w := r.PostForm.Get("waits"); w != "" {
		if err := s.Catalogue.SetWaits(ctx, by, catalogue.Waits(w)); err != nil {
			return pages.Answer{}, err
		}
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.saved")})
		return pages.GoTo(back)
	}
	var keys []catalogue.Key
	for _, value := range r.PostForm["definition"] {
		key, err := ui.ParseDefinition(value)
		if err != nil {
			return pages.Answer{}, err
		}
		keys = append(keys, key)
	}
	released, err := s.Catalogue.Release(ctx, by, keys)
	if err != nil {
		return pages.Answer{}, err
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.definitions_released", "n", len(released))})
	return pages.GoTo(back)
}
