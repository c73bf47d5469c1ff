// Package console serves the console: pages for people and their live streams.
//
// A handler reads the request, asks the services of package fleet, and answers
// with a component of package ui or an error. One adapter renders; it alone
// knows how an error becomes a status and a page. The routes are in one
// table (routes.go) with the role that each needs.
//
// It knows no SQL, no broker and no rule of the fleet. A live stream runs on the
// goroutine of its request and ends with it, or when the server stops; pages with
// several counts read them at the same time. Each lock guards one small cache or
// the list of open streams.
package console

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/audit"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/heavy"
	"fleetd/fleet/operator"
	"fleetd/fleet/picture"
	"fleetd/fleet/policy"
	"fleetd/fleet/system"
	"fleetd/fleet/telemetry"
	"fleetd/fleet/upstream"
	"fleetd/fleet/webhook"
	"fleetd/internal/bounded"
	"fleetd/web/ui"
)

// Options configures a [Server]. All but OTAURL, Heavy, Version, System, Log and Now are required.
type Options struct {
	Devices   *fleet.Devices
	Calls     *call.Service
	FanOuts   *call.FanOuts
	Firmware  *firmware.Service
	Campaigns *campaign.Service
	Approvals *call.Approvals
	Webhooks  *webhook.Service
	Upstreams *upstream.Service
	Alerts    *alert.Service
	// DatabaseAway is since when the database has not answered; zero while it does. nil: it always does.
	DatabaseAway func() time.Time
	Enrolments   *enrolment.Service
	Rules        *enrolment.Rules
	Presences    *fleet.Presences
	Operators    *operator.Service
	Filters      *fleet.Filters
	ToolPins     *policy.ToolPins
	Policies     *policy.Service
	Tester       *policy.Tester
	Serials      *enrolment.Serials
	Keys         *enrolment.SigningKeys
	Snapshots    *picture.Service
	Pictures     picture.Records
	Stats        call.StatsStore
	Samples      fleet.PresenceSampleRecords
	Reports      Reports // what devices report about themselves
	CoreDumps    *telemetry.CoreDumps
	Logs         *telemetry.Logs
	Audit        audit.Store
	Events       *fleet.Events

	Conversations fleet.ConversationRecords
	Talking       *fleet.OpenConversations // nil: no device is shown in conversation

	Sessions scs.CtxStore // of signed-in operators
	// Authority follows what operators may do: live pages end soon after that ends, or
	// is something else.
	Authority interface {
		Follow(ctx context.Context, p fleet.Principal) (context.Context, context.CancelFunc)
	}

	Heavy *heavy.Limits // default: some that no other part shares

	PublicURL     string // as people and devices reach fleetd; https makes cookies Secure
	NetworkURL    string // as boards could reach fleetd if it listened to them; "" unless PublicURL is [LocalOnly]
	OTAURL        string // to paste into a device; default: PublicURL and /xiaozhi/ota/
	EnrolmentMode fleet.EnrolmentMode
	MarkProofs    bool // a proof of a serial number marks a request and does not let in
	Version       string
	System        []ui.SystemFact // about this process, for the settings page
	Report        SystemReporter  // for the page about it

	Log *slog.Logger
	Now func() time.Time // default: time.Now
}

// A SystemReporter says how this fleetd runs.
type SystemReporter func(ctx context.Context) (system.Report, error)

// A Server is the console.
type Server struct {
	Options
	public       *url.URL
	sessions     *scs.SessionManager
	streams      *streams
	limits       limits
	waiting      waitingCount
	summaries    summaryCache
	filterCounts filterCounts
	progress     progresses
	started      time.Time
}

// New makes a server. It fails if PublicURL is not an http or https URL.
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
	if o.Heavy == nil {
		o.Heavy = &heavy.Limits{}
	}
	if o.OTAURL == "" {
		o.OTAURL = otaURL(o.PublicURL)
	}
	s := &Server{Options: o, public: public, streams: newStreams(), limits: newLimits(o.Now), started: o.Now().UTC(),
		filterCounts: filterCounts{scopes: bounded.New[string, *countedFilters](countedScopes)},
		progress:     progresses{all: bounded.New[uuid.UUID, *progressEntry](maxProgresses)}}
	s.sessions = s.newSessions(public.Scheme == "https")
	return s, nil
}

// CloseStreams ends the live streams of all pages: they never finish by themselves.
func (s *Server) CloseStreams() { s.streams.close() }

func (s *Server) now() time.Time { return s.Now().UTC() }

func otaURL(public string) string { return strings.TrimSuffix(public, "/") + "/xiaozhi/ota/" }

// LocalOnly reports whether the address is one that a machine has for itself alone.
func LocalOnly(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
