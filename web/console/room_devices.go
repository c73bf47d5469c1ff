package console

import (
	"slices"

	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// devicesTable returns the routes of the pages.
func (s *Server) devicesTable() []pages.Route {
	return slices.Concat(s.listRoutes(), s.claimRoutes(), s.enrolmentRoutes(), s.replaceRoutes(), s.keyRoutes(),
		s.filterRoutes(), s.mqtt5Routes(), s.bulkRoutes(), s.fileRoutes(), s.completeRoutes())
}

// devicesViews returns the live pages by name.
func (s *Server) devicesViews() pages.Views {
	return pages.Views{
		ui.ViewDevices: s.newListView,
	}
}
