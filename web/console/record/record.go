// Package record has the pages of the console about what happened: the audit log and the sealed
// record, changes and history, charts, alerts, and the webhooks and log streams that report events
// elsewhere.
//
// No page changes an entry of the record. The package imports no other room.
package record

import (
	"slices"

	"fleetd/fleet/alert"
	"fleetd/fleet/audit"
	"fleetd/fleet/changes"
	"fleetd/fleet/history"
	"fleetd/fleet/logstream"
	"fleetd/fleet/publish"
	"fleetd/fleet/record"
	"fleetd/fleet/redaction"
	"fleetd/fleet/trend"
	"fleetd/fleet/webhook"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// Options has the services that the pages use.
type Options struct {
	Alerts     *alert.Service
	Audit      audit.Store
	Changes    *changes.Service
	History    *history.Service
	LogStreams *logstream.Service
	Publisher  *publish.Publisher
	Record     *record.Service
	Redaction  *redaction.Service
	Trends     *trend.Service
	Webhooks   *webhook.Service
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
	return slices.Concat(s.alertRoutes(), s.webhookRoutes(), s.logStreamRoutes(), s.redactionRoutes(), s.auditRoutes(),
		s.recordRoutes(), s.historyRoutes(), s.dashboardRoutes(), s.changeRoutes())
}

// Views returns the live pages by name.
func (s *Server) Views() pages.Views {
	return pages.Views{
		ui.ViewAlerts: s.newAlertsView,
		ui.ViewAudit:  s.newAuditView,
	}
}
