package console

import (
	"slices"

	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// callsTable returns the routes of the pages.
func (s *Server) callsTable() []pages.Route {
	return slices.Concat(s.callRoutes(), s.conversationRoutes(), s.fanOutRoutes(), s.approvalRoutes(),
		s.scheduleRoutes(), s.catalogueRoutes(), s.pictureRoutes())
}

// callsViews returns the live pages by name.
func (s *Server) callsViews() pages.Views {
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
