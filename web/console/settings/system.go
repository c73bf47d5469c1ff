package settings

import (
	"net/http"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// systemRoutes is the page about this fleetd. It is for admins, because it shows versions and paths
// of files.
func (s *Server) systemRoutes() []pages.Route {
	return []pages.Route{{Method: http.MethodGet, Pattern: ui.PathSystem, Role: fleet.RoleAdmin, Reach: access.Fleet,
		Page: s.showSystem}}
}

func (s *Server) showSystem(r *http.Request) (pages.Answer, error) {
	report, err := s.Report(r.Context())
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(ui.SystemPage{Report: report}.Page())
}
