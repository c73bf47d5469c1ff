package console

import (
	"slices"

	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// deviceTable returns the routes of the pages.
func (s *Server) deviceTable() []pages.Route {
	return slices.Concat(s.deviceRoutes(), s.toolRoutes(), s.healthRoutes(), s.logRoutes())
}

// deviceViews returns the live pages by name.
func (s *Server) deviceViews() pages.Views {
	return pages.Views{
		ui.ViewDevice: s.newDeviceView,
	}
}
