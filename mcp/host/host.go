package host

//lint:file-ignore SA1019 log messages are deprecated since 2026-07-28, and what servers have

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/plugin"
)

// Devices is the host's interface to the domain.
type Devices interface {
	// SaveProgram makes the unit a device in service, with the version that it reports.
	SaveProgram(ctx context.Context, id fleet.DeviceID, kind fleet.DeviceKind, version string) error
	// RetireProgram retires the device of a unit that was removed.
	RetireProgram(ctx context.Context, id fleet.DeviceID) error

	Connected(c fleet.Connection)
	Disconnected(c fleet.Connection, clean bool, cause fleet.Cause)
	Unresponsive(c fleet.Connection, cause fleet.Cause)
	Responded(id fleet.DeviceID)
	// SaveListing stores the tools that the unit offers.
	SaveListing(ctx context.Context, l fleet.ToolListing) error
}

// Options configures a [Host]. Devices and HTTP are required.
type Options struct {
	Devices Devices
	Node    string // names this process in connections
	Version string // of fleetd, sent to servers
	Log     *slog.Logger

	// HTTP reaches plug-ins by URL. Its Transport decides which addresses may be reached.
	HTTP *http.Client
	// StateDir has a directory for each program's files, as HOME and TMPDIR. Default: none.
	StateDir string
	// OwnUsers gives each program without a user a uid of this process's choice, from FirstUID.
	// It requires root.
	OwnUsers bool
	FirstUID int // default: 61184, as systemd's dynamic users
	// Key makes the fingerprints of manifests, which may have secrets among their variables.
	Key []byte

	StartTimeout time.Duration // until a server has answered initialize. Default: 20s
	PingEvery    time.Duration // default: 15s
	PingTimeout  time.Duration // default: 10s
	DrainTimeout time.Duration // for calls in flight on a plug-in that is replaced. Default: 30s
	// Delays are those between starts of a plug-in that ends; the last one repeats.
	Delays []time.Duration
}

// Host holds the sessions with all plug-ins and endpoints.
type Host struct {
	o        Options
	changes  changes
	epoch    epochs
	mu       sync.Mutex
	units    map[fleet.DeviceID]*unit
	plugins  map[string]*running // by name
	users    users
	wanted   []plugin.Plugin
	apply    chan struct{}
	sessions sync.WaitGroup
}

var _ fleet.Link = (*Host)(nil)

// New returns a host.
func New(o Options) *Host {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.FirstUID = cmp.Or(o.FirstUID, 61184)
	o.StartTimeout = cmp.Or(o.StartTimeout, 20*time.Second)
	o.PingEvery = cmp.Or(o.PingEvery, 15*time.Second)
	o.PingTimeout = cmp.Or(o.PingTimeout, 10*time.Second)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 30*time.Second)
	if o.Delays == nil {
		o.Delays = []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 15 * time.Second,
			time.Minute}
	}
	return &Host{o: o, units: map[fleet.DeviceID]*unit{}, plugins: map[string]*running{}, apply: make(chan struct{}, 1)}
}

// unit returns the unit of a device, and makes it if it does not exist.
func (h *Host) unit(id fleet.DeviceID, kind fleet.DeviceKind) *unit {
	h.mu.Lock()
	defer h.mu.Unlock()
	u := h.units[id]
	if u == nil {
		u = &unit{host: h, id: id, kind: kind, audience: fleet.AudienceModel}
		h.units[id] = u
	}
	return u
}

// session returns the session of a device, nil while it has none.
func (h *Host) session(id fleet.DeviceID) *session {
	h.mu.Lock()
	u := h.units[id]
	h.mu.Unlock()
	if u == nil {
		return nil
	}
	return u.current()
}

// Connection returns the connection of a device.
func (h *Host) Connection(id fleet.DeviceID) (fleet.Connection, bool) {
	if s := h.session(id); s != nil {
		return s.Connection, true
	}
	return fleet.Connection{}, false
}

// Introduced reports whether the device is connected and its tools have been listed.
func (h *Host) Introduced(id fleet.DeviceID) bool {
	s := h.session(id)
	return s != nil && s.listed.Load()
}

// epochs numbers connections. Numbers increase, also across restarts of the process.
type epochs struct {
	mu   sync.Mutex
	last int64
}

func (e *epochs) next(now time.Time) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = max(e.last+1, now.UnixNano())
	return e.last
}

// A Log is a notifications/message of a unit.
type Log struct {
	Level  sdk.LoggingLevel
	Logger string
	Data   json.RawMessage
}

// A Change is what a unit announced.
type Change struct {
	Device  fleet.DeviceID
	Lists   bool   // its prompts or resources may be others
	Updated string // URI of a resource with new contents
	Log     *Log
}

// changes delivers the changes of all units to one receiver.
type changes struct {
	mu      sync.Mutex
	receive func(Change)
}

// OnChange makes the host pass changes to receive, which must not block.
func (h *Host) OnChange(receive func(Change)) {
	h.changes.mu.Lock()
	defer h.changes.mu.Unlock()
	h.changes.receive = receive
}

func (h *Host) changed(c Change) {
	h.changes.mu.Lock()
	receive := h.changes.receive
	h.changes.mu.Unlock()
	if receive != nil {
		receive(c)
	}
}

// Audience returns who a unit is for.
func (h *Host) Audience(id fleet.DeviceID) fleet.Audience {
	h.mu.Lock()
	u := h.units[id]
	h.mu.Unlock()
	if u == nil {
		return fleet.AudienceModel
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.audience
}

// Server returns the MCP session of a device, for its prompts and resources; nil while it has
// none. Calls of its tools go through [Host.Queue].
func (h *Host) Server(id fleet.DeviceID) *sdk.ClientSession {
	if s := h.session(id); s != nil {
		return s.client
	}
	return nil
}
