// Package device has the pages of one device: what it is, its acts and tools, its health, logs and
// crashes, its configuration, its screen and its firmware.
//
// Lists of devices and the way of a device into the fleet are in package devices, which imports this
// one. Calls are shown by package calls.
package device

import (
	"slices"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/history"
	"fleetd/fleet/picture"
	"fleetd/fleet/policy"
	"fleetd/fleet/telemetry"
	"fleetd/fleet/upstream"
	"fleetd/web/console/calls"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// Options has the services that the pages use.
type Options struct {
	Calls           *call.Service
	Campaigns       *campaign.Service
	CoreDumps       *telemetry.CoreDumps
	Devices         *fleet.Devices
	Enrolments      *enrolment.Service
	Events          *fleet.Events
	Firmware        *firmware.Service
	History         *history.Service
	Logs            *telemetry.Logs
	Pictures        picture.Records
	Reports         Reports // of devices about themselves
	Snapshots       *picture.Service
	Stats           call.StatsStore
	Talking         *fleet.OpenConversations // nil: conversations of devices are not shown
	ToolPins        *policy.ToolPins
	ToolQuarantines *policy.ToolQuarantines
	Upstreams       *upstream.Service
	// Program returns what a program that is a device says about itself; false while it is not
	// connected. nil: no program is.
	Program func(fleet.DeviceID) (ui.ProgramServer, bool)
}

// A Server has the pages.
type Server struct {
	*pages.Responder
	Options
	calls *calls.Server
}

// New returns the pages. They show calls as c does.
func New(p *pages.Responder, c *calls.Server, o Options) *Server {
	return &Server{Responder: p, Options: o, calls: c}
}

// Routes returns the routes of the pages.
func (s *Server) Routes() []pages.Route {
	return slices.Concat(s.deviceRoutes(), s.toolRoutes(), s.healthRoutes(), s.logRoutes())
}

// Views returns the live pages by name.
func (s *Server) Views() pages.Views {
	return pages.Views{
		ui.ViewDevice: s.newDeviceView,
	}
}
