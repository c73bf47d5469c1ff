// Package console serves the console: pages for people and their live streams.
//
// The pages are in packages below this one, its rooms, each with the words of one subject; package
// pages has what they share. This package has what surrounds them: the sign-in and its session, the
// guards of every route, the engine of live streams, and the pages about several subjects at once, such
// as the overview and the search. All routes are in one table (routes.go) with the role that each
// requires.
//
// It contains no SQL, no MQTT and no rule of the fleet. A live stream runs on the goroutine of its
// request and ends with it, or when the server stops; pages with several counts read them
// concurrently. Each lock guards one small cache or the list of open streams.
package console

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/alexedwards/scs/v2"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/attempts"
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
	"fleetd/web/console/device"
	"fleetd/web/console/devices"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// Options configures a [Server]. All but OTAURL, Heavy, Version, System, Log and Now are required.
type Options struct {
	Devices    *fleet.Devices
	Calls      *call.Service
	FanOuts    *call.FanOuts
	Schedules  *schedule.Service
	Firmware   *firmware.Service
	Campaigns  *campaign.Service
	Approvals  *call.Approvals
	Webhooks   *webhook.Service
	LogStreams *logstream.Service
	Redaction  *redaction.Service
	Upstreams  *upstream.Service
	Alerts     *alert.Service
	Endpoints  *endpoint.Service
	Plugins    *plugin.Service
	History    *history.Service
	Trends     *trend.Service
	Places     *place.Service
	Changes    *changes.Service
	Compare    *compare.Service
	// PluginsDir is the directory of the plug-ins that are files; "" for none.
	PluginsDir string
	// Program returns what a program that is a device says about itself; false while it is not
	// connected. nil: no program is.
	Program func(fleet.DeviceID) (ui.ProgramServer, bool)
	// DatabaseAway returns the time since which the database has been unavailable, or zero while it
	// is available. nil: always available.
	DatabaseAway    func() time.Time
	Enrolments      *enrolment.Service
	Rules           *enrolment.Rules
	Presences       *fleet.Presences
	Operators       *operator.Service
	Filters         *fleet.Filters
	ToolPins        *policy.ToolPins
	ToolQuarantines *policy.ToolQuarantines
	Catalogue       *catalogue.Service
	Policies        *policy.Service
	Tester          *policy.Tester
	Serials         *enrolment.Serials
	Keys            *enrolment.SigningKeys
	Snapshots       *picture.Service
	Pictures        picture.Records
	Stats           call.StatsStore
	Samples         fleet.PresenceSampleRecords
	Reports         Reports // reports of devices about themselves
	CoreDumps       *telemetry.CoreDumps
	Logs            *telemetry.Logs
	Audit           audit.Store
	Record          *record.Service
	Publisher       *publish.Publisher
	Events          *fleet.Events

	Conversations fleet.ConversationRecords
	Talking       *fleet.OpenConversations // nil: conversations of devices are not shown

	Sessions scs.CtxStore // of signed-in operators
	// Authority reports changes of operators' access: live pages end soon after their viewer's
	// access changes.
	Authority interface {
		Follow(ctx context.Context, p fleet.Principal) (context.Context, context.CancelFunc)
	}

	// Attempts bounds wrong passwords. Default: counts that end with the process.
	Attempts *attempts.Limiter
	Heavy    *heavy.Limits // default: limits that no other part shares

	PublicURL     string // the URL for people and devices; https makes cookies Secure
	NetworkURL    string // the URL for boards if fleetd listened on the network; "" unless PublicURL is [pages.LocalOnly]
	Styleguide    bool   // administrators see the page of all components
	OTAURL        string // the URL to configure in a device; default: PublicURL and /xiaozhi/ota/
	MQTTEndpoint  string // host:port of the broker, as devices reach it
	EnrolmentMode fleet.EnrolmentMode
	MarkProofs    bool // a proof of a serial number marks a request but does not admit the device
	Version       string
	APIDocument   func() ([]byte, error) // the OpenAPI document of REST
	System        []ui.SystemFact        // about this process, for the settings page
	Report        SystemReporter         // for the page about this process
	Cluster       *cluster.Service       // required with InCluster
	InCluster     bool

	Log *slog.Logger
	Now func() time.Time // default: time.Now
}

// Reports reads the reports of devices with the included firmware.
type Reports interface {
	device.Reports
	devices.Reports
}

// A SystemReporter reports how this fleetd runs.
type SystemReporter func(ctx context.Context) (system.Report, error)

// A Server is the console.
type Server struct {
	Options
	*pages.Responder
	rooms
	public     *url.URL
	sessions   *scs.SessionManager
	streams    *streams
	views      pages.Views
	waiting    waitingCount
	operations func() ([]ui.APIGroup, error) // of REST, read once
}

// New returns a server. It fails if PublicURL is not an http or https URL.
func New(o Options) (*Server, error) {
	public, err := url.Parse(o.PublicURL)
	if err != nil || public.Host == "" || (public.Scheme != "http" && public.Scheme != "https") {
		return nil, fmt.Errorf("the public URL %q cannot be used: write http://host:port or https://host", o.PublicURL)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Attempts == nil {
		o.Attempts = attempts.New(attempts.Options{Now: o.Now})
	}
	if o.Heavy == nil {
		o.Heavy = &heavy.Limits{}
	}
	if o.OTAURL == "" {
		o.OTAURL = otaURL(o.PublicURL)
	}
	s := &Server{Options: o, public: public, streams: newStreams()}
	s.operations = sync.OnceValues(func() ([]ui.APIGroup, error) {
		document, err := o.APIDocument()
		if err != nil {
			return nil, err
		}
		return readOperations(document)
	})
	s.sessions = newSessions(o.Sessions, public.Scheme == "https")
	s.Responder = pages.New(pages.Options{Sessions: s.sessions, Frame: s.frame, Log: o.Log, Now: o.Now})
	s.sessions.ErrorFunc = s.Fail
	s.rooms = s.newRooms()
	s.views = s.allViews()
	return s, nil
}

// CloseStreams ends the live streams of all pages, which otherwise never finish.
func (s *Server) CloseStreams() { s.streams.close() }

// Now returns the present time in UTC. [Options] and [pages.Responder] both have one.
func (s *Server) Now() time.Time { return s.Responder.Now() }

func otaURL(public string) string { return strings.TrimSuffix(public, "/") + "/xiaozhi/ota/" }
