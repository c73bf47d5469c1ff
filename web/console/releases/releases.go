// Package releases has the pages of the console about firmware: images and releases, the campaigns
// that bring them to devices, and the page that installs firmware on a blank board.
//
// It decides no update: package fleet/rollout does. What one device updates is in package device.
package releases

import (
	"log/slog"
	"slices"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/compare"
	"fleetd/fleet/firmware"
	"fleetd/web/console/calls"
	"fleetd/web/console/devices"
	"fleetd/web/console/pages"
	"fleetd/web/console/record"
	"fleetd/web/ui"
)

// Options has the services that the pages use.
type Options struct {
	Campaigns *campaign.Service
	Compare   *compare.Service
	Devices   *fleet.Devices
	Firmware  *firmware.Service
	Log       *slog.Logger
}

// Rooms are the rooms whose pages have parts in common with those of this one.
type Rooms struct {
	Calls   *calls.Server   // the tools of an audience, and names of devices
	Devices *devices.Server // devices that are about to join
	Record  *record.Server  // the spread of versions
}

// A Server has the pages.
type Server struct {
	*pages.Responder
	Options
	calls       *calls.Server
	devices     *devices.Server
	record      *record.Server
	progress    *sharedCache[campaignProgress]
	differences *sharedCache[compare.Result]
}

// New returns the pages.
func New(p *pages.Responder, r Rooms, o Options) *Server {
	return &Server{Responder: p, Options: o, calls: r.Calls, devices: r.Devices, record: r.Record,
		progress:    newSharedCache[campaignProgress](maxProgresses),
		differences: newSharedCache[compare.Result](maxProgresses)}
}

// Routes returns the routes of the pages.
func (s *Server) Routes() []pages.Route {
	return slices.Concat(s.firmwareRoutes(), s.flashRoutes(), s.campaignRoutes())
}

// Views returns the live pages by name.
func (s *Server) Views() pages.Views {
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
