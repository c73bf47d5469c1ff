package console

import (
	"net/http"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/ui"
)

// systemRoutes is the page about this fleetd. It is for admins, because it shows versions and paths
// of files.
func (s *Server) systemRoutes() []route {
	return []route{{method: http.MethodGet, pattern: ui.PathSystem, role: fleet.RoleAdmin, reach: access.Fleet,
		page: s.showSystem}}
}

func (s *Server) showSystem(r *http.Request) (answer, error) {
	report, err := s.Report(r.Context())
	if err != nil {
		return answer{}, err
	}
	return show(ui.SystemPage{Report: report}.Page())
}
