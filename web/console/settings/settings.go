// Package settings has the pages of the console about what administrators set up: operators and
// tokens, policies, plug-ins and endpoints, voice servers, the cluster, and facts about this fleetd.
//
// It signs no operator in and counts no devices: package console passes the functions for that. It
// imports no other room.
package settings

import (
	"context"
	"net/http"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/cluster"
	"fleetd/fleet/endpoint"
	"fleetd/fleet/operator"
	"fleetd/fleet/plugin"
	"fleetd/fleet/policy"
	"fleetd/fleet/system"
	"fleetd/fleet/upstream"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// Options has the services that the pages use, and facts that they show.
type Options struct {
	Devices   *fleet.Devices
	Endpoints *endpoint.Service
	Operators *operator.Service
	Plugins   *plugin.Service
	Policies  *policy.Service
	Tester    *policy.Tester
	Upstreams *upstream.Service
	Cluster   *cluster.Service // required with InCluster
	InCluster bool

	// CheckPassword returns an error unless the password is the signed-in operator's.
	CheckPassword func(ctx context.Context, o operator.Operator, password string) error
	// OpenSession signs the operator in again in this browser.
	OpenSession func(*http.Request, operator.Operator) error
	// EndStreams ends all live streams: permitted readers reconnect, and are checked again.
	EndStreams func()
	// CountDevices counts the devices that the viewer sees.
	CountDevices func(context.Context) (int, error)

	PluginsDir    string // of the plug-ins that are files; "" for none
	PublicURL     string
	OTAURL        string
	EnrolmentMode fleet.EnrolmentMode
	Version       string
	Started       time.Time
	System        []ui.SystemFact // about this process
	Report        func(context.Context) (system.Report, error)
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
	return slices.Concat(s.settingsRoutes(), s.operatorRoutes(), s.policyRoutes(), s.upstreamRoutes(), s.pluginRoutes(),
		s.endpointRoutes(), s.systemRoutes(), s.clusterRoutes())
}

// Views returns the live pages by name.
func (s *Server) Views() pages.Views {
	return pages.Views{
		ui.ViewPlugins:   s.newPluginsView,
		ui.ViewPlugin:    s.newPluginView,
		ui.ViewEndpoints: s.newEndpointsView,
		ui.ViewEndpoint:  s.newEndpointView,
		ui.ViewCluster:   s.newClusterView,
	}
}
