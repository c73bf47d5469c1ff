package web

import (
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/ui"
)

func (s *Server) filterRoutes() []route {
	return []route{
		{method: http.MethodPost, pattern: ui.PathFilters, role: fleet.RoleOperator, reach: access.Fleet,
			page: s.saveFilter},
		{method: http.MethodPost, pattern: ui.PathFilters + "/{filter}/delete", role: fleet.RoleOperator,
			reach: access.Fleet, page: s.deleteFilter},
	}
}

// saveFilter gives the query of a device list a name. A refusal is shown with
// that list.
func (s *Server) saveFilter(r *http.Request) (answer, error) {
	ctx := r.Context()
	f := fleet.Filter{Name: r.PostFormValue("name"), Title: r.PostFormValue("title"), Query: r.URL.Query().Get("q")}
	saved, err := s.Filters.Create(ctx, viewerOf(ctx).actor(), f)
	switch {
	case err == nil:
		s.flash(ctx, ui.Flash{Text: text(ctx, "flash.saved")})
		return goTo(ui.QueryPath(saved.Query))
	case statusOf(err) >= http.StatusInternalServerError:
		return answer{}, err
	}
	page, failed := s.devicesPage(r)
	if failed != nil {
		return answer{}, failed
	}
	page.Saved.Name, page.Saved.Title, page.Saved.Problem = f.Name, f.Title, explain(ctx, err)
	return showAgain(page.Page())
}

func (s *Server) deleteFilter(r *http.Request) (answer, error) {
	ctx := r.Context()
	id, err := uuid.Parse(chi.URLParam(r, "filter"))
	if err != nil {
		return answer{}, errNoPage
	}
	if err := s.Filters.Delete(ctx, viewerOf(ctx).actor(), id); err != nil {
		return answer{}, err
	}
	s.flash(ctx, ui.Flash{Text: text(ctx, "flash.saved")})
	return goTo(ui.PathDevices)
}
