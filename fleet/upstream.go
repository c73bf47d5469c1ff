package fleet

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Limits of voice servers.
const (
	MaxUpstreams         = 100
	MaxUpstreamURLBytes  = 500
	MaxUpstreamKeyBytes  = 1000
	upstreamDownFailures = 3
)

// An UpstreamKind is how a voice server is found.
type UpstreamKind string

const (
	UpstreamWebSocket UpstreamKind = "websocket" // at a fixed address
	UpstreamOTA       UpstreamKind = "ota"       // its OTA address answers each device's boot poll with one
	UpstreamNone      UpstreamKind = "none"      // these devices have no voice
)

// UpstreamKinds lists every kind.
var UpstreamKinds = []UpstreamKind{UpstreamWebSocket, UpstreamOTA, UpstreamNone}

// An UpstreamAuth is how fleetd proves to a voice server that it may connect.
type UpstreamAuth string

const (
	UpstreamAuthNone   UpstreamAuth = "none"
	UpstreamAuthSecret UpstreamAuth = "secret" // tokens for each device are made with it
	UpstreamAuthToken  UpstreamAuth = "token"  // it is the token, of all devices
)

// UpstreamAuths lists every way.
var UpstreamAuths = []UpstreamAuth{UpstreamAuthNone, UpstreamAuthSecret, UpstreamAuthToken}

// FixedUpstreamID is the id of the voice server that the command line names.
var FixedUpstreamID = uuid.MustParse("00000000-0000-7000-8000-0000000000f1")

// An Upstream is a voice server, or the choice of none, for the devices of a
// query. Of several that fit a device the first one counts.
type Upstream struct {
	ID        uuid.UUID
	Position  int // from 0
	Name      string
	Kind      UpstreamKind
	URL       string // without credentials; "" for none
	Auth      UpstreamAuth
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
func (u *Upstream) clean() (err error) {
	if u.Name, err = CleanLine("name", u.Name, MaxNameLength); err != nil {
		return err
	}
	if u.Name == "" {
		return Refuse(ErrInvalid, "invalid_name.upstream").At("name")
	}
	if !slices.Contains(UpstreamKinds, u.Kind) {
		return Refuse(ErrInvalid, "invalid_upstream_kind", "value", CleanText(string(u.Kind), 40)).At("kind")
	}
	switch u.URL = strings.TrimSpace(u.URL); u.Kind {
	case UpstreamNone:
		u.URL, u.Auth, u.Tools = "", UpstreamAuthNone, false
	case UpstreamOTA:
		u.Auth = UpstreamAuthNone // it hands out tokens
	}
	if u.Kind != UpstreamNone {
		if err := CheckUpstreamURL(u.URL, u.Kind.schemes()...); err != nil {
			return err
		}
	}
	if !slices.Contains(UpstreamAuths, u.Auth) {
		return Refuse(ErrInvalid, "invalid_upstream_auth", "value", CleanText(string(u.Auth), 40)).At("auth")
	}
	u.Devices = strings.TrimSpace(u.Devices)
	if _, err := ParseQuery(u.Devices); err != nil {
		if e, ok := err.(*Error); ok {
			return e.At("devices")
		}
		return err
	}
	return nil
}

func (k UpstreamKind) schemes() []string {
	if k == UpstreamOTA {
		return []string{"http", "https"}
	}
	return []string{"ws", "wss"}
}

// CheckUpstreamURL returns nil if the URL can be one of a voice server: with one
// of the schemes and a host, and without credentials, which would be shown.
func CheckUpstreamURL(text string, schemes ...string) error {
	refuse := func(what string) error {
		return Refuse(ErrInvalid, "invalid_upstream_url."+what, "schemes", strings.Join(schemes, ", "),
			"limit", MaxUpstreamURLBytes).At("url")
	}
	u, err := url.Parse(text)
	switch {
	case text == "":
		return refuse("missing")
	case len(text) > MaxUpstreamURLBytes, CleanText(text, MaxUpstreamURLBytes) != text, err != nil, u.Opaque != "",
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
func (u *Upstream) origin() string {
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
func (u *Upstream) Detail() map[string]any {
	return map[string]any{"name": u.Name, "kind": u.Kind, "url": withoutValues(u.URL), "auth": u.Auth, "devices": u.Devices,
		"tools": u.Tools, "enabled": u.Enabled, "position": u.Position}
}

// UpstreamHealth is how the conversations of a voice server began, since it was
// changed.
type UpstreamHealth struct {
	LastSuccess *time.Time    // nil before the first
	HelloIn     time.Duration // until its hello, the last time
	Failures    int           // in a row, since the last success; before a start also those that were not tried
	Failed      int64         // ever, since fleetd started or the voice server was changed
	LastFailure *time.Time
	LastError   ConversationEnd // of the last failure
	RetryAt     *time.Time      // until then devices are answered without trying it; nil: it is tried
	Open        int             // conversations that are open
}

// Down reports whether the voice server failed so often that devices are answered
// without it.
func (h UpstreamHealth) Down() bool { return h.Failures >= upstreamDownFailures }

// after adds what is on record of the time before fleetd started.
func (h UpstreamHealth) after(past UpstreamHealth) UpstreamHealth {
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
func healthFrom(list []Conversation) (h UpstreamHealth) {
	for _, c := range list {
		switch {
		case c.HelloIn > 0:
			at := c.Begin.Add(c.HelloIn).UTC()
			h.LastSuccess, h.HelloIn = &at, c.HelloIn
			return h
		case c.Ended.Failed() && c.Ended != EndedFull: // that was fleetd's
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
type UpstreamState struct {
	Upstream
	Health UpstreamHealth
}

// An UpstreamCheck is what came of trying a voice server now.
type UpstreamCheck struct {
	OK    bool
	Error ConversationEnd // "" if OK
	Took  time.Duration
}

// An UpstreamAccount is what the OTA address of a voice server answered for a
// device. All of it is the server's: untrusted.
type UpstreamAccount struct {
	Upstream uuid.UUID
	Device   DeviceID
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
type UpstreamAccountStore interface {
	// UpstreamAccount fails with [ErrNotFound] if nothing is stored.
	UpstreamAccount(ctx context.Context, upstream uuid.UUID, device DeviceID) (UpstreamAccount, error)
	// SaveUpstreamAccount replaces what is stored. The account of a voice server
	// that was removed is dropped.
	SaveUpstreamAccount(ctx context.Context, a UpstreamAccount) error
}

// UpstreamStore keeps voice servers. Each change names the version of the table
// that it was made from, is stored with its audit entry, and makes the next
// version; it fails with [ErrConflict] if the table has another version by now.
type UpstreamStore interface {
	UpstreamAccountStore
	Conversations(ctx context.Context, f ConversationFilter) (Page[Conversation], error) // newest first
	Upstreams(ctx context.Context) (list []Upstream, version int64, err error)           // by position
	UpstreamVersion(ctx context.Context) (int64, error)
	CreateUpstream(ctx context.Context, by Principal, version int64, u Upstream) error
	UpdateUpstream(ctx context.Context, by Principal, version int64, u Upstream) error
	DeleteUpstream(ctx context.Context, by Principal, version int64, u Upstream) error
	// OrderUpstreams gives the voice servers their positions, in the order of ids.
	OrderUpstreams(ctx context.Context, by Principal, version int64, ids []uuid.UUID, moved Upstream) error
}
