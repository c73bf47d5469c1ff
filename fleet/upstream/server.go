package upstream

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// Limits of voice servers.
const (
	MaxUpstreams         = 100
	MaxUpstreamURLBytes  = 500
	MaxUpstreamKeyBytes  = 1000
	upstreamDownFailures = 3
)

// A Kind is how fleetd finds a voice server.
type Kind string

const (
	WebSocket Kind = "websocket" // at a fixed address
	OTA       Kind = "ota"       // at the address that its OTA address returns for each device
	None      Kind = "none"      // these devices have no voice
)

// Kinds lists every kind.
var Kinds = []Kind{WebSocket, OTA, None}

// An Auth is how fleetd authenticates to a voice server.
type Auth string

const (
	AuthNone   Auth = "none"
	AuthSecret Auth = "secret" // the secret signs a token for each device
	AuthToken  Auth = "token"  // the secret is the token for all devices
)

// Auths lists every way to authenticate.
var Auths = []Auth{AuthNone, AuthSecret, AuthToken}

// FixedID is the id of the voice server given on the command line.
var FixedID = uuid.MustParse("00000000-0000-7000-8000-0000000000f1")

// A Server is a voice server, or the choice of none, for the devices of a query. If several
// match a device, the first is used.
type Server struct {
	ID        uuid.UUID
	Position  int // from 0
	Name      string
	Kind      Kind
	URL       string // without credentials; "" for none
	Auth      Auth
	Secret    []byte // sealed; nil if none
	Devices   string // query; "" for every device
	Tools     bool   // its language model may list and call the tools of devices
	Enabled   bool
	Fixed     bool   // given on the command line: always last, and cannot be changed here
	UpdatedBy string // "" if fixed
	CreatedAt time.Time
	UpdatedAt time.Time
}

// clean checks the fields but Secret.
func (u *Server) clean() (err error) {
	if u.Name, err = fleet.CleanLine("name", u.Name, fleet.MaxNameLength); err != nil {
		return err
	}
	if u.Name == "" {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_name.upstream").At("name")
	}
	if !slices.Contains(Kinds, u.Kind) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_upstream_kind", "value", string(u.Kind)).At("kind")
	}
	switch u.URL = strings.TrimSpace(u.URL); u.Kind {
	case None:
		u.URL, u.Auth, u.Tools = "", AuthNone, false
	case OTA:
		u.Auth = AuthNone // the OTA address provides tokens
	}
	if u.Kind != None {
		if err := CheckURL(u.URL, u.Kind.schemes()...); err != nil {
			return err
		}
	}
	if !slices.Contains(Auths, u.Auth) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_upstream_auth", "value", string(u.Auth)).At("auth")
	}
	u.Devices = strings.TrimSpace(u.Devices)
	if _, err := fleet.ParseQuery(u.Devices); err != nil {
		if e, ok := err.(*fleet.Error); ok {
			return e.At("devices")
		}
		return err
	}
	return nil
}

func (k Kind) schemes() []string {
	if k == OTA {
		return []string{"http", "https"}
	}
	return []string{"ws", "wss"}
}

// CheckURL returns nil if the URL can be that of a voice server: it has one of the schemes, a
// host, and no credentials, which would be shown.
func CheckURL(text string, schemes ...string) error {
	refuse := func(what string) error {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_upstream_url."+what, "schemes", strings.Join(schemes, ", "),
			"limit", MaxUpstreamURLBytes).At("url")
	}
	u, err := url.Parse(text)
	switch {
	case text == "":
		return refuse("missing")
	case len(text) > MaxUpstreamURLBytes, fleet.CleanText(text, MaxUpstreamURLBytes) != text, err != nil, u.Opaque != "",
		u.Fragment != "":
		return refuse("form")
	case u.User != nil:
		return refuse("credentials")
	case !slices.Contains(schemes, u.Scheme):
		return refuse("scheme")
	case u.Hostname() == "":
		return refuse("form")
	}
	return nil
}

// origin returns the scheme, host and port for which a token is valid.
func (u *Server) origin() string {
	parsed, err := url.Parse(u.URL)
	if err != nil {
		return ""
	}
	return parsed.Scheme + "://" + parsed.Host
}

// withoutValues returns a URL as shown to principals who may not change it, without the
// values in its query: some voice servers accept a secret there.
func withoutValues(text string) string {
	address, query, found := strings.Cut(text, "?")
	if !found || query == "" {
		return text
	}
	terms := strings.Split(query, "&")
	for i, t := range terms {
		if name, _, ok := strings.Cut(t, "="); ok {
			terms[i] = name + "=…"
		} else {
			terms[i] = "…"
		}
	}
	return address + "?" + strings.Join(terms, "&")
}

// Detail returns the voice server's fields for audit entries.
func (u *Server) Detail() map[string]any {
	return map[string]any{"name": u.Name, "kind": u.Kind, "url": withoutValues(u.URL), "auth": u.Auth, "devices": u.Devices,
		"tools": u.Tools, "enabled": u.Enabled, "position": u.Position}
}

// Health is how well the conversations of a voice server have started since it was changed.
type Health struct {
	LastSuccess *time.Time    // nil before the first
	HelloIn     time.Duration // time until its hello, at the last success
	Failures    int           // in a row since the last success; from before fleetd started also untried ones
	Failed      int64         // in total, since fleetd started or the voice server was changed
	LastFailure *time.Time
	LastError   fleet.ConversationEnd // of the last failure
	RetryAt     *time.Time            // until then fleetd answers devices without trying the server; nil: it tries
	Open        int                   // open conversations
}

// Down reports whether the voice server has failed so often that fleetd answers devices
// without it.
func (h Health) Down() bool { return h.Failures >= upstreamDownFailures }

// And returns the health of a voice server that two edges use.
func (h Health) And(other Health) Health {
	later := func(a, b *time.Time) bool { return a != nil && (b == nil || a.After(*b)) }
	failures := 0
	if !later(other.LastSuccess, h.LastFailure) {
		failures = h.Failures
	}
	if !later(h.LastSuccess, other.LastFailure) {
		failures += other.Failures
	}
	both := h
	if later(other.LastSuccess, h.LastSuccess) {
		both.LastSuccess, both.HelloIn = other.LastSuccess, other.HelloIn
	}
	if later(other.LastFailure, h.LastFailure) {
		both.LastFailure, both.LastError = other.LastFailure, other.LastError
	}
	if other.RetryAt == nil || h.RetryAt != nil && later(h.RetryAt, other.RetryAt) {
		both.RetryAt = other.RetryAt
	}
	both.Failures, both.Failed, both.Open = failures, h.Failed+other.Failed, h.Open+other.Open
	return both
}

// after adds the health on record from before fleetd started.
func (h Health) after(past Health) Health {
	if h.LastSuccess != nil {
		return h
	}
	h.LastSuccess, h.HelloIn = past.LastSuccess, past.HelloIn
	h.Failures += past.Failures
	if h.LastFailure == nil {
		h.LastFailure, h.LastError = past.LastFailure, past.LastError
	}
	return h
}

// healthFrom computes health from conversations, newest first.
func healthFrom(list []fleet.Conversation) (h Health) {
	for _, c := range list {
		switch {
		case c.HelloIn > 0:
			at := c.Begin.Add(c.HelloIn).UTC()
			h.LastSuccess, h.HelloIn = &at, c.HelloIn
			return h
		case c.Ended.Failed() && c.Ended != fleet.EndedFull: // fleetd was full, not the server
			h.Failures++
			if h.LastFailure == nil {
				at := c.End.UTC()
				h.LastFailure, h.LastError = &at, c.Ended
			}
		}
	}
	return h
}

// A State is a voice server with its health.
type State struct {
	Server
	Health Health
}

// A Check is the result of a trial connection to a voice server.
type Check struct {
	OK    bool
	Error fleet.ConversationEnd // "" if OK
	Took  time.Duration
}

// An Account is the answer of a voice server's OTA address for a device. All of it is
// untrusted.
type Account struct {
	Upstream uuid.UUID
	Device   fleet.DeviceID
	OTAURL   string // address of the request
	ClientID string // of the device at the time of the request
	URL      string // of the WebSocket; "" if the server gave none
	Token    []byte // sealed; nil if none
	// Code binds the device to an account when it is entered at the voice server. It is "" if
	// the device is bound or the server binds no devices.
	Code      string
	Message   string
	Challenge string
	AskedAt   time.Time // when the server answered
}

// AccountStore stores the answers of OTA addresses.
type AccountStore interface {
	// UpstreamAccount returns [fleet.ErrNotFound] if nothing is stored.
	UpstreamAccount(ctx context.Context, upstream uuid.UUID, device fleet.DeviceID) (Account, error)
	// SaveUpstreamAccount replaces the stored account. It drops the account of a deleted
	// voice server.
	SaveUpstreamAccount(ctx context.Context, a Account) error
}

// Store stores voice servers. Each change gives the version of the table that it is based on,
// is stored with its audit entry, and creates the next version. It returns
// [fleet.ErrConflict] if the table has another version by now.
type Store interface {
	AccountStore
	Conversations(ctx context.Context, f fleet.ConversationFilter) (fleet.Page[fleet.Conversation], error) // newest first
	Upstreams(ctx context.Context) (list []Server, version int64, err error)                               // by position
	UpstreamVersion(ctx context.Context) (int64, error)
	CreateUpstream(ctx context.Context, by fleet.Principal, version int64, u Server) error
	UpdateUpstream(ctx context.Context, by fleet.Principal, version int64, u Server) error
	DeleteUpstream(ctx context.Context, by fleet.Principal, version int64, u Server) error
	// OrderUpstreams sets the positions of the voice servers to the order of ids.
	OrderUpstreams(ctx context.Context, by fleet.Principal, version int64, ids []uuid.UUID, moved Server) error
}
