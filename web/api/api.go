// Package api is the REST interface, /api/v1: devices, their tools and calls, their firmware, and
// permissions, for programs with a token.
//
// It contains no rules of the fleet. It reads a request, calls package fleet, and formats the
// result according to the contract: snake_case JSON, times in RFC 3339 and UTC, durations in
// milliseconds, lists with items and a cursor, failures as problems (RFC 9457) with a stable code.
// The input, the output and the required role of an operation are declared once; the router, the
// guard and the OpenAPI document all read this declaration.
//
// It contains no pages. An event stream runs on the goroutine of its request; one lock guards the
// list of open streams, and one the latest events.
package api

import (
	"context"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/httprate"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/audit"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/catalogue"
	"fleetd/fleet/changes"
	"fleetd/fleet/cluster"
	"fleetd/fleet/compare"
	"fleetd/fleet/endpoint"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/heavy"
	"fleetd/fleet/history"
	"fleetd/fleet/logstream"
	"fleetd/fleet/operator"
	"fleetd/fleet/picture"
	"fleetd/fleet/place"
	"fleetd/fleet/plugin"
	"fleetd/fleet/policy"
	"fleetd/fleet/publish"
	"fleetd/fleet/record"
	"fleetd/fleet/redaction"
	"fleetd/fleet/schedule"
	"fleetd/fleet/system"
	"fleetd/fleet/telemetry"
	"fleetd/fleet/trend"
	"fleetd/fleet/upstream"
	"fleetd/fleet/webhook"
	"fleetd/web/request"
)

// prefix is the path at which package web mounts the handler; links in responses begin with it.
const prefix = "/api/v1"

// Options configures the API. All fields but Heavy, Version, Heartbeat, Log and Stopping are
// required.
type Options struct {
	Devices         *fleet.Devices
	Calls           *call.Service
	FanOuts         *call.FanOuts
	History         *history.Service
	Trends          *trend.Service
	Places          *place.Service
	Changes         *changes.Service
	Compare         *compare.Service
	Schedules       *schedule.Service
	Enrolment       *enrolment.Service
	Rules           *enrolment.Rules
	Serials         *enrolment.Serials
	Keys            *enrolment.SigningKeys
	Presence        interface{ IsConnected(id fleet.DeviceID) bool }
	Operators       *operator.Service
	Filters         *fleet.Filters
	ToolPins        *policy.ToolPins
	ToolQuarantines *policy.ToolQuarantines
	Catalogue       *catalogue.Service
	Policies        *policy.Service
	Tester          *policy.Tester
	Snapshots       *picture.Service
	Firmware        *firmware.Service
	Campaigns       *campaign.Service
	Approvals       *call.Approvals
	Webhooks        *webhook.Service
	LogStreams      *logstream.Service
	Redaction       *redaction.Service
	Upstreams       *upstream.Service
	Endpoints       *endpoint.Service
	Plugins         *plugin.Service
	Alerts          *alert.Service
	CoreDumps       *telemetry.CoreDumps
	Conversations   fleet.ConversationRecords
	Pictures        picture.Records
	Stats           call.StatsStore
	Samples         fleet.PresenceSampleRecords
	Reports         *telemetry.Reports
	Audit           audit.Store
	Record          *record.Service
	Publisher       *publish.Publisher
	Idempotency     fleet.IdempotencyStore
	Heavy           *heavy.Limits // default: limits that no other part shares
	Events          *fleet.Events
	Report          func(ctx context.Context) (system.Report, error) // a report about this fleetd
	Cluster         *cluster.Service
	Authority       Follower

	MQTTEndpoint string        // host:port of the broker, as devices reach it
	Version      string        // of fleetd, for the OpenAPI document
	Heartbeat    time.Duration // how often a quiet event stream sends a heartbeat. Default: 15s
	Log          *slog.Logger

	// Stopping is closed when the server stops: event streams, which otherwise never finish, end
	// then. Default: never.
	Stopping <-chan struct{}
}

// A Follower returns a context that ends soon after the principal's access ends or changes from p.
// Package authority implements it.
type Follower interface {
	Follow(ctx context.Context, p fleet.Principal) (context.Context, context.CancelFunc)
}

type api struct {
	Options
	router   *chi.Mux
	huma     huma.API
	failures *httprate.RateLimiter // failed authentications by address
	streams  streamCount
	feed     *eventFeed
}

// failuresPerMinute is how many bad tokens one address may send per minute before its requests with
// bad tokens are refused. Good tokens from there continue to work.
const failuresPerMinute = 30

// New returns the handler for everything below /api/v1; mount it there.
func New(o Options) http.Handler { return newAPI(o).handler() }

func newAPI(o Options) *api {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = 15 * time.Second
	}
	if o.Heavy == nil {
		o.Heavy = &heavy.Limits{}
	}
	a := &api{Options: o, router: chi.NewMux(), feed: newEventFeed(o.Events)}
	a.failures = httprate.NewRateLimiter(failuresPerMinute, time.Minute,
		httprate.WithResponseHeaders(httprate.ResponseHeaders{RetryAfter: "Retry-After"}))
	a.huma = huma.NewAPI(document(o.Version), adapter{a})
	a.registerDevices()
	a.registerDeviceActs()
	a.registerTimeline()
	a.registerEnrolment()
	a.registerTools()
	a.registerReports()
	a.registerFirmware()
	a.registerCalls()
	a.registerFanOuts()
	a.registerSchedules()
	a.registerHistory()
	a.registerTrends()
	a.registerPlaces()
	a.registerChanges()
	a.registerCompare()
	a.registerImages()
	a.registerLayouts()
	a.registerReleases()
	a.registerFloors()
	a.registerCampaigns()
	a.registerCampaignActs()
	a.registerDeployments()
	a.registerSnapshots()
	a.registerCoreDumps()
	a.registerConversations()
	a.registerTokens()
	a.registerOperators()
	a.registerFilters()
	a.registerPolicies()
	a.registerToolPins()
	a.registerToolQuarantines()
	a.registerCatalogue()
	a.registerSerials()
	a.registerKeys()
	a.registerStats()
	a.registerAudit()
	a.registerRecord()
	a.registerApprovals()
	a.registerWebhooks()
	a.registerLogStreams()
	a.registerRedaction()
	a.registerUpstreams()
	a.registerEndpoints()
	a.registerPlugins()
	a.registerAlerts()
	a.registerAlertMail()
	a.registerSystem()
	a.registerCluster()
	a.registerEvents()
	a.serveDocument()
	a.router.NotFound(a.noSuchPath)
	a.router.MethodNotAllowed(a.noSuchMethod)
	return a
}

// Header values of every response.
var noSniff, noStore = []string{"nosniff"}, []string{"no-store"}

// handler adds the parts of every response.
func (a *api) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer a.recovered(w, r)
		h := w.Header()
		h["X-Content-Type-Options"], h["Cache-Control"] = noSniff, noStore
		a.router.ServeHTTP(w, r)
	})
}

// recovered turns a panic into a problem. Bytes that were already written remain.
func (a *api) recovered(w http.ResponseWriter, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler {
		panic(v)
	}
	p := internalProblem(request.ID(w))
	a.Log.Error("panic in a request", "request", p.RequestID, "method", r.Method, "path", r.URL.Path, "err", v, "stack",
		string(debug.Stack()))
	p.write(w)
}

func (a *api) noSuchPath(w http.ResponseWriter, _ *http.Request) {
	refused(http.StatusNotFound, fleet.Refuse(fleet.ErrNotFound, "not_found.address", "document", prefix+"/openapi.json")).
		write(w)
}

func (a *api) noSuchMethod(w http.ResponseWriter, r *http.Request) {
	path := chi.RouteContext(r.Context()).RoutePath
	if path == "" {
		path = r.URL.Path
	}
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodDelete} {
		if a.router.Match(chi.NewRouteContext(), m, path) {
			w.Header().Add("Allow", m)
		}
	}
	refused(http.StatusMethodNotAllowed, fleet.Refuse(fleet.ErrInvalid, "method_not_allowed", "method", r.Method)).write(w)
}
