// Package devices has the pages of the console about many devices: the list and its filters, what is
// done to many devices at once, and how devices join the fleet and leave it.
//
// The pages of one device are in package device. The package admits no device: package
// fleet/enrolment does.
package devices

import (
	"slices"

	"github.com/go-chi/httprate"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/picture"
	"fleetd/internal/bounded"
	"fleetd/web/console/device"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// Options has the services that the pages use, and facts that they show.
type Options struct {
	Campaigns  *campaign.Service
	Devices    *fleet.Devices
	Enrolments *enrolment.Service
	FanOuts    *call.FanOuts
	Filters    *fleet.Filters
	Keys       *enrolment.SigningKeys
	Pictures   picture.Records
	Presences  *fleet.Presences
	Reports    Reports // of devices about themselves
	Rules      *enrolment.Rules
	Serials    *enrolment.Serials

	OTAURL        string // to configure in a device
	NetworkOTAURL string // OTAURL if fleetd listened on the network; "" if it does
	MQTTEndpoint  string // host:port of the broker, as devices reach it
	EnrolmentMode fleet.EnrolmentMode
	MarkProofs    bool // a proof of a serial number marks a request but does not admit the device
}

// A Server has the pages.
type Server struct {
	*pages.Responder
	Options
	device       *device.Server
	claims       *httprate.RateLimiter // by address; enrolment limits wrong codes by operator
	summaries    summaryCache
	filterCounts filterCounts
}

// New returns the pages. d has the pages of one device.
func New(p *pages.Responder, d *device.Server, o Options) *Server {
	return &Server{Responder: p, Options: o, device: d, claims: newClaims(),
		filterCounts: filterCounts{scopes: bounded.New[string, *countedFilters](countedScopes)}}
}

// Routes returns the routes of the pages.
func (s *Server) Routes() []pages.Route {
	return slices.Concat(s.listRoutes(), s.claimRoutes(), s.enrolmentRoutes(), s.replaceRoutes(), s.keyRoutes(),
		s.filterRoutes(), s.mqtt5Routes(), s.bulkRoutes(), s.fileRoutes(), s.completeRoutes())
}

// Views returns the live pages by name.
func (s *Server) Views() pages.Views {
	return pages.Views{
		ui.ViewDevices: s.newListView,
	}
}
