package console

import (
	"net/http"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/ui"
)

func (s *Server) changeRoutes() []route {
	return []route{{method: http.MethodGet, pattern: ui.PathChanges, role: fleet.RoleViewer, reach: access.List,
		page: s.showChanges}}
}

func (s *Server) showChanges(r *http.Request) (answer, error) {
	ctx := r.Context()
	sum, err := s.Changes.Since(ctx, viewerOf(ctx).actor(), r.URL.Query().Get("since"))
	if errorCode(err) == "invalid_changes_span" {
		return show(ui.ChangesPage{Problem: explain(ctx, err)}.Page())
	}
	if err != nil {
		return answer{}, err
	}
	return show(ui.ChangesPage{Summary: sum}.Page())
}
