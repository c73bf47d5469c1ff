package ui

import (
	"context"
	"net/url"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/endpoint"
	"fleetd/web/forms"
	"fleetd/web/i18n"
)

// PathEndpoints is the list of endpoints: GET list (state), POST create. Below it, by the name of one:
// GET shows it, POST "edit", "enable", "disable", "token" (kind), "token/revoke" (kind) and "delete"
// (confirm: the name).
const PathEndpoints = "/settings/endpoints"

// EndpointPath is the page of one endpoint, or one of its acts.
func EndpointPath(name string, parts ...string) string {
	return PathEndpoints + "/" + strings.Join(append([]string{url.PathEscape(name)}, parts...), "/")
}

// An EndpointState summarizes an endpoint for the list.
type EndpointState string

const (
	EndpointConnected EndpointState = "connected"
	EndpointAway      EndpointState = "away"
	EndpointDisabled  EndpointState = "disabled"
	endpointDeleted   EndpointState = "deleted"
)

// endpointFilters are the choices of the list. "" is all.
var endpointFilters = []EndpointState{"", EndpointConnected, EndpointAway, EndpointDisabled}

var endpointTones = map[EndpointState]tone{EndpointConnected: toneGood, EndpointAway: toneNone,
	EndpointDisabled: toneNone, endpointDeleted: toneNone}

// An EndpointsPage lists endpoints, and has the form for a new one.
type EndpointsPage struct {
	Filters  EndpointFilters
	Rows     []EndpointRow
	Next     string
	Form     forms.Endpoint
	Problems FieldProblems
}

// EndpointFilters are the states to choose from, with how many endpoints have each; "" is all. A live
// stream sends it as a patch.
type EndpointFilters struct {
	List   ListURL
	Counts map[EndpointState]int
}

// An EndpointRow is one endpoint in the list. A live stream sends it as a patch.
type EndpointRow struct {
	endpoint.Listed
	ToolCount int  // of its device
	Deleted   bool // the endpoint no longer exists
}

// An EndpointPage shows one endpoint: GET [EndpointPath].
type EndpointPage struct {
	Row      EndpointRow
	Secret   EndpointSecret
	Form     forms.Endpoint
	Problems FieldProblems
}

// An EndpointSecret is a token that was just made: only this page shows it. The zero value shows nothing.
type EndpointSecret struct {
	Kind   endpoint.TokenKind
	Token  string
	Public string // fleetd's URL
	Local  bool   // only fleetd's machine can reach it
}

func (v EndpointRow) slot() string { return "endpoint-" + v.Name }

// State returns the endpoint's state.
func (v EndpointRow) State() EndpointState {
	switch {
	case v.Deleted:
		return endpointDeleted
	case v.Disabled:
		return EndpointDisabled
	case v.Connected:
		return EndpointConnected
	}
	return EndpointAway
}

// why returns why the endpoint is not connected, or "": marked, for [phrase].
func (v EndpointRow) why(ctx context.Context) string {
	switch {
	case v.State() != EndpointAway:
		return ""
	case !v.Provider.Exists():
		return t(ctx, "endpoints.no_token")
	case v.Ended.Is(""):
		return t(ctx, "endpoints.never")
	}
	return EndpointReason(ctx, v.Ended)
}

// EndpointReason returns the reason why a connection ended, with its foreign parts marked.
func EndpointReason(ctx context.Context, r fleet.Reason) string {
	return i18n.BecauseMarked(page(ctx).Lang, page(ctx).Zone, "endpoint.reason.", r)
}

// server returns the name and version of the MCP server.
func (v EndpointRow) server() string { return strings.TrimSpace(v.ServerName + " " + v.ServerVersion) }

func (v EndpointRow) offer() programOffer {
	return programOffer{v.Settings.Tools, v.Audience, v.OfferToVoice}
}

// eventsURL follows the endpoints that the page shows.
func (v EndpointsPage) eventsURL() string { return EventsURL(ViewEndpoints, v.Filters.List.Values) }

func (v EndpointPage) eventsURL() string {
	return EventsURL(ViewEndpoint, url.Values{"name": {v.Row.Name}})
}

// address returns the URL of the WebSocket for a kind of token.
func (s EndpointSecret) address(kind endpoint.TokenKind) string {
	return "ws" + strings.TrimPrefix(strings.TrimSuffix(s.Public, "/"), "http") + kind.Address(s.Token)
}

// plain reports whether the token crosses a network unencrypted.
func (s EndpointSecret) plain() bool { return !s.Local && strings.HasPrefix(s.Public, "http:") }

// empty reports whether there are no endpoints.
func (v EndpointsPage) empty() bool { return v.Filters.Counts[""] == 0 }
