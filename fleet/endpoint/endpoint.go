package endpoint

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"

	"fleetd/fleet"
)

// Limits of endpoints.
const (
	maxEndpoints = 10_000
	maxPatterns  = 64
	maxPattern   = 200 // bytes
)

// namePattern is the form of an endpoint's name, which is part of a device's id and of URLs.
var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,39}$`)

// A SecondPolicy decides what happens when a provider connects while another connection of the
// same endpoint is open.
type SecondPolicy string

const (
	// Replace closes the present connection once the new one has answered initialize: a board
	// connects again before its lost connection is noticed.
	Replace SecondPolicy = "replace"
	// Refuse refuses the new connection while the present one is open.
	Refuse SecondPolicy = "refuse"
)

// SecondPolicies lists the policies.
var SecondPolicies = []SecondPolicy{Replace, Refuse}

// Settings are what an administrator chooses for an endpoint.
type Settings struct {
	Second SecondPolicy `json:"second_connection"` // default: [Replace]
	// Tools are patterns of the tools that are offered; a trailing * matches any ending. None
	// means all.
	Tools []string `json:"tools,omitempty"`
	// Audience is who may call them. Default: [fleet.AudienceModel].
	Audience fleet.Audience `json:"audience"`
	// OfferToVoice adds the tools to those of each board in conversations.
	OfferToVoice bool `json:"offer_to_voice,omitempty"`
	Disabled     bool `json:"disabled,omitempty"` // its connections are refused
}

// Check refuses settings that are not valid, and sets the defaults.
func (s *Settings) Check() error {
	switch s.Second {
	case "":
		s.Second = Replace
	case Replace, Refuse:
	default:
		return fleet.Refuse(fleet.ErrInvalid, "endpoint_field.second", "field", "second_connection", "value",
			fleet.CleanText(string(s.Second), 80)).At("second_connection")
	}
	if len(s.Tools) > maxPatterns {
		return fleet.Refuse(fleet.ErrInvalid, "endpoint_field.many", "field", "tools", "limit", maxPatterns).At("tools")
	}
	for _, p := range s.Tools {
		if p == "" || len(p) > maxPattern || strings.Contains(strings.TrimSuffix(p, "*"), "*") ||
			strings.ContainsFunc(p, func(r rune) bool { return r < ' ' }) {
			return fleet.Refuse(fleet.ErrInvalid, "endpoint_field.pattern", "field", "tools", "value",
				fleet.CleanText(p, maxPattern)).At("tools")
		}
	}
	switch s.Audience {
	case "":
		s.Audience = fleet.AudienceModel
	case fleet.AudienceModel, fleet.AudienceUser:
	default:
		return fleet.Refuse(fleet.ErrInvalid, "endpoint_field.audience", "field", "audience", "value",
			fleet.CleanText(string(s.Audience), 80)).At("audience")
	}
	if s.OfferToVoice && s.Audience == fleet.AudienceUser {
		return fleet.Refuse(fleet.ErrInvalid, "endpoint_field.voice", "field", "offer_to_voice").At("offer_to_voice")
	}
	return nil
}

// Offers reports whether a tool is offered.
func (s Settings) Offers(tool string) bool {
	return len(s.Tools) == 0 || fleet.MatchTool(s.Tools, tool)
}

// A TokenKind is who connects with a token.
type TokenKind string

const (
	Provider TokenKind = "provider" // the program with the tools
	Consumer TokenKind = "consumer" // an MCP client that calls them
)

// TokenKinds lists the kinds.
var TokenKinds = []TokenKind{Provider, Consumer}

// Paths of the WebSockets.
const (
	ProviderPath = "/mcp_endpoint/mcp/"
	ConsumerPath = "/mcp_endpoint/call/"
)

// Address returns the path and query with which a secret connects.
func (k TokenKind) Address(secret string) string {
	path := ProviderPath
	if k == Consumer {
		path = ConsumerPath
	}
	return path + "?token=" + secret
}

// prefixes begin the secrets of each kind, so that a person can distinguish them.
var prefixes = map[TokenKind]string{Provider: "fep_", Consumer: "fec_"}

// A Hash is the SHA-256 of a secret.
type Hash [sha256.Size]byte

// A Token is a token as stored. The zero value is no token.
type Token struct {
	Hash     Hash
	Hint     string // last four characters of the secret
	IssuedBy string
	IssuedAt time.Time
}

// Exists reports whether there is a token.
func (t Token) Exists() bool { return t.Hash != Hash{} }

// newToken returns a token and its secret. The secret is hexadecimal: xiaozhi-esp32-server
// refuses addresses that contain "key" or "call".
func newToken(kind TokenKind, by string, now time.Time) (Token, string) {
	random := make([]byte, 32)
	rand.Read(random) // never fails
	secret := prefixes[kind] + hex.EncodeToString(random)
	return Token{Hash: sha256.Sum256([]byte(secret)), Hint: secret[len(secret)-4:], IssuedBy: by, IssuedAt: now}, secret
}

// An Endpoint is an endpoint as stored.
type Endpoint struct {
	Name string
	Settings
	Provider, Consumer Token
	Version            int64 // counts its changes, from 1
	CreatedAt          time.Time
	UpdatedBy          string
	UpdatedAt          time.Time
}

// Device returns the id of the endpoint's device.
func (e Endpoint) Device() fleet.DeviceID { return DeviceOf(e.Name) }

// DeviceOf returns the id of the device of an endpoint.
func DeviceOf(name string) fleet.DeviceID { return fleet.DeviceID(fleet.EndpointPrefix + name) }

// Token returns the token of a kind.
func (e *Endpoint) Token(kind TokenKind) *Token {
	if kind == Consumer {
		return &e.Consumer
	}
	return &e.Provider
}

// Principal returns the principal that an MCP client with the consumer's token is: a language
// model for which no other device exists. Policies judge and records name it as such; its rights
// end with the token.
func (e Endpoint) Principal() (fleet.Principal, error) {
	scope, err := fleet.NewTokenScope(fleet.KindModel, "id:"+string(e.Device()), []string{"*"})
	if err != nil {
		return fleet.Principal{}, fmt.Errorf("scope of endpoint %s: %w", e.Name, err)
	}
	return fleet.Principal{Kind: fleet.KindModel, ID: string(e.Device()), Name: string(e.Device()),
		Role: fleet.RoleOperator, Scope: scope}, nil
}

// A Status describes the connections of an endpoint.
type Status struct {
	Connected bool
	Since     time.Time // of the connection
	Address   string    // of the provider

	ServerName, ServerVersion string // as the provider says
	Protocol                  string // version of MCP

	Connections int          // of providers since fleetd started
	Replaced    int          // connections that a later one replaced
	Refused     int          // refused second connections
	EndedAt     time.Time    // of the latest connection that ended
	Ended       fleet.Reason // why it ended; zero if none did

	Consumers int // connected now
}

// Reasons maps the codes that say why a connection ended to the names of their parameters. A
// detail is foreign text.
var Reasons = map[string][]string{
	"endpoint_closed":     {},         // by the provider
	"endpoint_broke":      {"detail"}, // the transport failed
	"endpoint_stopped":    {},         // fleetd stopped
	"endpoint_replaced":   {},         // by a later connection
	"endpoint_revoked":    {},         // the token was revoked or issued again
	"endpoint_disabled":   {},
	"endpoint_hung":       {}, // it answered no ping
	"endpoint_initialize": {"detail"},
}
