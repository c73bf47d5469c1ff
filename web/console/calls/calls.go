// Package calls has the pages of the console about calls of tools: those made, those that wait for
// an approval or are scheduled, bulk calls, conversations, the tools of the fleet, and the pictures
// that calls brought.
//
// A form for a call to one device is on the pages of that device (package device). The package
// judges no call: package fleet/call does. It imports no other room.
package calls

import (
	"slices"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/catalogue"
	"fleetd/fleet/compare"
	"fleetd/fleet/picture"
	"fleetd/fleet/schedule"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// Options has the services that the pages use.
type Options struct {
	Approvals     *call.Approvals
	Calls         *call.Service
	Campaigns     *campaign.Service
	Catalogue     *catalogue.Service
	Compare       *compare.Service
	Conversations fleet.ConversationRecords
	Devices       *fleet.Devices
	FanOuts       *call.FanOuts
	Pictures      picture.Records
	Schedules     *schedule.Service
	Snapshots     *picture.Service
}

// A Server has the pages.
type Server struct {
	*pages.Responder
	Options
}

// New returns the pages.
func New(p *pages.Responder, o Options) *Server { return &Server{Responder: p, Options: o} }

// Routes returns the routes of the pages.
func (s *Server) Routes() []pages.Route {
	return slices.Concat(s.callRoutes(), s.conversationRoutes(), s.fanOutRoutes(), s.approvalRoutes(),
		s.scheduleRoutes(), s.catalogueRoutes(), s.pictureRoutes())
}

// Views returns the live pages by name.
func (s *Server) Views() pages.Views {
	return pages.Views{
		ui.ViewCalls:         s.newCallsView,
		ui.ViewCall:          s.newCallView,
		ui.ViewConversations: s.newConversationsView,
		ui.ViewConversation:  s.newConversationView,
		ui.ViewFanOuts:       s.newFanOutsView,
		ui.ViewFanOut:        s.newFanOutView,
		ui.ViewApprovals:     s.newApprovalsView,
	}
}
