package console

import (
	"slices"

	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// releasesTable returns the routes of the pages.
func (s *Server) releasesTable() []pages.Route {
	return slices.Concat(s.firmwareRoutes(), s.flashRoutes(), s.campaignRoutes())
}

// releasesViews returns the live pages by name.
func (s *Server) releasesViews() pages.Views {
	return pages.Views{
		ui.ViewCampaigns:   s.newCampaignView,
		ui.ViewCampaign:    s.newCampaignView,
		ui.ViewDeployments: s.newCampaignView,
		ui.ViewDeployment:  s.newCampaignView,
		ui.ViewFirmware:    s.newFirmwareView,
		ui.ViewRelease:     s.newReleaseView,
		ui.ViewFlash:       s.newFlashView,
	}
}
