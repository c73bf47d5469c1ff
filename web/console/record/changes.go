package record

import (
	"net/http"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

func (s *Server) changeRoutes() []pages.Route {
	return []pages.Route{{Method: http.MethodGet, Pattern: ui.PathChanges, Role: fleet.RoleViewer, Reach: access.List,
		Page: s.showChanges}}
}

func (s *Server) showChanges(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	sum, err := s.Changes.Since(ctx, pages.ViewerOf(ctx).Actor(), r.URL.Query().Get("since"))
	if pages.ErrorCode(err) == "invalid_changes_span" {
		return pages.Show(ui.ChangesPage{Problem: pages.Explain(ctx, err)}.Page())
	}
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(ui.ChangesPage{Summary: sum}.Page())
}
