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

// An UpstreamKind is how a voice server is found.
type Kind string

const (
	WebSocket Kind = "websocket" // at a fixed address
	OTA       Kind = "ota"       // its OTA address answers each device's boot poll with one
	None      Kind = "none"      // these devices have no voice
)

// UpstreamKinds lists every kind.
var Kinds = []Kind{WebSocket, OTA, None}

// An UpstreamAuth is how fleetd proves to a voice server that it may connect.
type Auth string

const (
	AuthNone   Auth = "none"
	AuthSecret Auth = "secret" // tokens for each device are made with it
	AuthToken  Auth = "token"  // it is the token, of all devices
)

// UpstreamAuths lists every way.
var Auths = []Auth{AuthNone, AuthSecret, AuthToken}

// FixedUpstreamID is the id of the voice server that the command line names.
var FixedID = uuid.MustParse("00000000-0000-7000-8000-0000000000f1")

// An Upstream is a voice server, or the choice of none, for the devices of a
// query. Of several that fit a device the first one counts.
type Server struct {
	ID        uuid.UUID
	Position  int // from 0
	Name      string
	Kind      Kind
	URL       string // without credentials; "" for none
	Auth      Auth
	Secret    []byte // sealed; nil without one
	Devices   string // query; "": any device
	Tools     bool   // its language model may list and call the tools of devices
	Enabled   bool
	Fixed     bool   // of the command line: the last one, and not to be changed here
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
		u.Auth = AuthNone // it hands out tokens
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

// CheckUpstreamURL returns nil if the URL can be one of a voice server: with one
// of the schemes and a host, and without credentials, which would be shown.
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

// origin is what a token is good for: scheme, host and port.
func (u *Server) origin() string {
	parsed, err := url.Parse(u.URL)
	if err != nil {
		return ""
	}
	return parsed.Scheme + "://" + parsed.Host
}

// withoutValues is a URL as those see it who may not change it: there are voice servers
// that take a secret in the query.
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

// Detail is an upstream as audit entries have it.
func (u *Server) Detail() map[string]any {
	return map[string]any{"name": u.Name, "kind": u.Kind, "url": withoutValues(u.URL), "auth": u.Auth, "devices": u.Devices,
		"tools": u.Tools, "enabled": u.Enabled, "position": u.Position}
}

// UpstreamHealth is how the conversations of a voice server began, since it was
// changed.
type Health struct {
	LastSuccess *time.Time    // nil before the first
	HelloIn     time.Duration // until its hello, the last time
	Failures    int           // in a row, since the last success; before a start also those that were not tried
	Failed      int64         // ever, since fleetd started or the voice server was changed
	LastFailure *time.Time
	LastError   fleet.ConversationEnd // of the last failure
	RetryAt     *time.Time            // until then devices are answered without trying it; nil: it is tried
	Open        int                   // conversations that are open
}

// Down reports whether the voice server failed so often that devices are answered
// without it.
func (h Health) Down() bool { return h.Failures >= upstreamDownFailures }

// after adds what is on record of the time before fleetd started.
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

// healthFrom reads health from conversations, newest first.
func healthFrom(list []fleet.Conversation) (h Health) {
	for _, c := range list {
		switch {
		case c.HelloIn > 0:
			at := c.Begin.Add(c.HelloIn).UTC()
			h.LastSuccess, h.HelloIn = &at, c.HelloIn
			return h
		case c.Ended.Failed() && c.Ended != fleet.EndedFull: // that was fleetd's
			h.Failures++
			if h.LastFailure == nil {
				at := c.End.UTC()
				h.LastFailure, h.LastError = &at, c.Ended
			}
		}
	}
	return h
}

// An UpstreamState is a voice server with its health.
type State struct {
	Server
	Health Health
}

// An UpstreamCheck is what came of trying a voice server now.
type Check struct {
	OK    bool
	Error fleet.ConversationEnd // "" if OK
	Took  time.Duration
}

// An UpstreamAccount is what the OTA address of a voice server answered for a
// device. All of it is the server's: untrusted.
type Account struct {
	Upstream uuid.UUID
	Device   fleet.DeviceID
	OTAURL   string // that was asked
	ClientID string // of the device, when it was asked
	URL      string // of the WebSocket; "": the server gave none
	Token    []byte // sealed; nil without one
	// Code binds the device to an account, entered at the voice server; "": the
	// device is bound, or the server binds none.
	Code      string
	Message   string
	Challenge string
	AskedAt   time.Time // when the server answered
}

// UpstreamAccountStore keeps what OTA addresses answered.
type AccountStore interface {
	// UpstreamAccount fails with [fleet.ErrNotFound] if nothing is stored.
	UpstreamAccount(ctx context.Context, upstream uuid.UUID, device fleet.DeviceID) (Account, error)
	// SaveUpstreamAccount replaces what is stored. The account of a voice server
	// that was removed is dropped.
	SaveUpstreamAccount(ctx context.Context, a Account) error
}

// UpstreamStore keeps voice servers. Each change names the version of the table
// that it was made from, is stored with its audit entry, and makes the next
// version; it fails with [fleet.ErrConflict] if the table has another version by now.
type Store interface {
	AccountStore
	Conversations(ctx context.Context, f fleet.ConversationFilter) (fleet.Page[fleet.Conversation], error) // newest first
	Upstreams(ctx context.Context) (list []Server, version int64, err error)                               // by position
	UpstreamVersion(ctx context.Context) (int64, error)
	CreateUpstream(ctx context.Context, by fleet.Principal, version int64, u Server) error
	UpdateUpstream(ctx context.Context, by fleet.Principal, version int64, u Server) error
	DeleteUpstream(ctx context.Context, by fleet.Principal, version int64, u Server) error
	// OrderUpstreams gives the voice servers their positions, in the order of ids.
	OrderUpstreams(ctx context.Context, by fleet.Principal, version int64, ids []uuid.UUID, moved Server) error
}
