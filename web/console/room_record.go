package console

import (
	"slices"

	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// recordTable returns the routes of the pages.
func (s *Server) recordTable() []pages.Route {
	return slices.Concat(s.alertRoutes(), s.webhookRoutes(), s.logStreamRoutes(), s.redactionRoutes(), s.auditRoutes(),
		s.recordRoutes(), s.historyRoutes(), s.dashboardRoutes(), s.changeRoutes())
}

// recordViews returns the live pages by name.
func (s *Server) recordViews() pages.Views {
	return pages.Views{
		ui.ViewAlerts: s.newAlertsView,
		ui.ViewAudit:  s.newAuditView,
	}
}
