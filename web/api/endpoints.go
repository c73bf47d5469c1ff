package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"fleetd/fleet"
	"fleetd/fleet/endpoint"
	"fleetd/web/access"
	"fleetd/web/i18n"
)

func (a *api) registerEndpoints() {
	const path, one, token = "/endpoints", "/endpoints/{endpoint}", "/endpoints/{endpoint}/token"
	register(a, operation{id: "list-endpoints", reach: access.Fleet, models: fleet.ModelsNever, method: http.MethodGet, path: path,
		role: fleet.RoleAdmin, summary: "List endpoints, with their connections",
		about: "By name. An endpoint is an MCP server that connects to fleetd by WebSocket, and a device of the fleet. Tokens are never shown."},
		a.listEndpoints)
	register(a, operation{id: "get-endpoint", reach: access.Fleet, models: fleet.ModelsNever, method: http.MethodGet, path: one,
		role: fleet.RoleAdmin, noun: "endpoint", summary: "Get an endpoint"}, a.getEndpoint)
	register(a, operation{id: "create-endpoint", reach: access.Fleet, models: fleet.ModelsNever, method: http.MethodPost, path: path,
		role: fleet.RoleAdmin, created: true, summary: "Add an endpoint, with a token for its provider",
		about: "Only this answer contains the token. The provider connects to /mcp_endpoint/mcp/?token=..."}, a.createEndpoint)
	register(a, operation{id: "update-endpoint", reach: access.Fleet, models: fleet.ModelsNever, method: http.MethodPatch, path: one,
		role: fleet.RoleAdmin, noun: "endpoint", summary: "Change an endpoint",
		about: "Omitted fields stay as they are. Disabling it ends its connections."}, a.updateEndpoint)
	register(a, operation{id: "delete-endpoint", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodDelete, path: one, role: fleet.RoleAdmin, noun: "endpoint",
		summary: "Remove an endpoint", about: "Its connections end and its device is retired; calls and records stay."},
		a.deleteEndpoint)
	register(a, operation{id: "issue-endpoint-token", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: token, role: fleet.RoleAdmin, created: true, noun: "endpoint",
		summary: "Issue a new token of an endpoint",
		about:   "Only this answer contains it. The token before it is no longer valid, and its connections end."},
		a.issueEndpointToken)
	register(a, operation{id: "revoke-endpoint-token", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodDelete, path: token, role: fleet.RoleAdmin, noun: "endpoint",
		summary: "Revoke a token of an endpoint", about: "The connections that were made with it end."}, a.revokeEndpointToken)
}

// EndpointView is the contract's endpoint.
type EndpointView struct {
	Name     string         `json:"name"`
	DeviceID fleet.DeviceID `json:"device_id" example:"endpoint.workshop-pc" doc:"Device of the fleet that has its tools"`

	SecondConnection endpoint.SecondPolicy `json:"second_connection" enum:"replace,refuse" doc:"What happens to a second connection of the provider: it replaces the present one, or is refused"`
	Tools            []string              `json:"tools" nullable:"false" doc:"Patterns of the tools that are offered; empty: all"`
	Audience         fleet.Audience        `json:"audience" enum:"model,user"`
	OfferToVoice     bool                  `json:"offer_to_voice"`
	Disabled         bool                  `json:"disabled"`

	ProviderToken *endpointTokenView `json:"provider_token" doc:"Of the program with the tools; null: none"`
	ConsumerToken *endpointTokenView `json:"consumer_token" doc:"Of MCP clients that call the tools of this endpoint; null: none"`

	Connected     bool           `json:"connected"`
	Since         *time.Time     `json:"since" doc:"Start of the connection; null: not connected"`
	RemoteAddr    string         `json:"remote_addr"`
	ServerName    string         `json:"server_name" doc:"As the provider calls itself"`
	ServerVersion string         `json:"server_version"`
	Protocol      string         `json:"protocol" example:"2024-11-05" doc:"Version of MCP"`
	Connections   int            `json:"connections" doc:"Of providers, since fleetd started"`
	Replaced      int            `json:"replaced" doc:"Connections that a later one replaced. Many mean that two programs use one token"`
	Refused       int            `json:"refused" doc:"Second connections that were refused"`
	EndedAt       *time.Time     `json:"ended_at" doc:"End of the latest connection that ended; null: none did"`
	Reason        string         `json:"reason" doc:"Why it ended"`
	ReasonCode    string         `json:"reason_code" example:"endpoint_replaced"`
	ReasonOf      map[string]any `json:"reason_params"`
	Consumers     int            `json:"consumers" doc:"MCP clients that are connected with the consumer's token"`

	Version   int64     `json:"version" doc:"Counts the changes of the endpoint, from 1"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedBy string    `json:"updated_by"`
	UpdatedAt time.Time `json:"updated_at"`
}

// TransformSchema marks the properties that may be null.
func (EndpointView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "since", "ended_at", "provider_token", "consumer_token")
}

type endpointTokenView struct {
	Hint     string    `json:"hint" doc:"Last characters of the token"`
	IssuedBy string    `json:"issued_by"`
	IssuedAt time.Time `json:"issued_at"`
}

func viewEndpointToken(t endpoint.Token) *endpointTokenView {
	if !t.Exists() {
		return nil
	}
	return &endpointTokenView{Hint: t.Hint, IssuedBy: t.IssuedBy, IssuedAt: utc(t.IssuedAt)}
}

func viewEndpoint(e endpoint.Listed) EndpointView {
	st := e.Status
	v := EndpointView{Name: e.Name, DeviceID: e.Device(), SecondConnection: e.Second, Tools: orEmpty(e.Tools),
		Audience: e.Audience, OfferToVoice: e.OfferToVoice, Disabled: e.Disabled,
		ProviderToken: viewEndpointToken(e.Provider), ConsumerToken: viewEndpointToken(e.Consumer),
		Connected: st.Connected, Since: utcOrNil(&st.Since), RemoteAddr: st.Address, ServerName: st.ServerName,
		ServerVersion: st.ServerVersion, Protocol: st.Protocol, Connections: st.Connections, Replaced: st.Replaced,
		Refused: st.Refused, EndedAt: utcOrNil(&st.EndedAt), Consumers: st.Consumers,
		ReasonOf: paramsOf(st.Ended), Version: e.Version, CreatedAt: utc(e.CreatedAt), UpdatedBy: e.UpdatedBy,
		UpdatedAt: utc(e.UpdatedAt)}
	if !st.Ended.Is("") {
		v.Reason, v.ReasonCode = i18n.Because(i18n.English, time.UTC, "endpoint.reason.", st.Ended), st.Ended.Code
	}
	return v
}

func (a *api) listEndpoints(_ context.Context, by fleet.Principal, _ *struct{}) (*answer[list[EndpointView]], error) {
	all, err := a.Endpoints.List(by)
	if err != nil {
		return nil, err
	}
	return listOf(all, viewEndpoint), nil
}

// EndpointPath names an endpoint.
type EndpointPath struct {
	Endpoint string `path:"endpoint" maxLength:"80" doc:"Its name"`
}

func (p EndpointPath) pathID() string { return p.Endpoint }

func (a *api) getEndpoint(_ context.Context, by fleet.Principal, in *EndpointPath) (*answer[EndpointView], error) {
	return endpointAnswer(a.Endpoints.Endpoint(by, in.Endpoint))
}

func endpointAnswer(e endpoint.Listed, err error) (*answer[EndpointView], error) {
	if err != nil {
		return nil, err
	}
	return answerWith(viewEndpoint(e)), nil
}

// newEndpointView is an endpoint with a new token.
type newEndpointView struct {
	EndpointView
	Token string `json:"token" doc:"The secret, fep_... of a provider or fec_... of a consumer; shown only once"`
	Path  string `json:"path" example:"/mcp_endpoint/mcp/?token=fep_..." doc:"Where to connect with it, on fleetd's address with ws:// or wss://"`
}

// TransformSchema marks the properties that may be null.
func (newEndpointView) TransformSchema(r huma.Registry, s *huma.Schema) *huma.Schema {
	return EndpointView{}.TransformSchema(r, s)
}

func newEndpointAnswer(e endpoint.Listed, kind endpoint.TokenKind, secret string, err error) (*answer[newEndpointView],
	error) {
	if err != nil {
		return nil, err
	}
	return answerWith(newEndpointView{EndpointView: viewEndpoint(e), Token: secret,
		Path: kind.Address(secret)}), nil
}

// EndpointFields are the settable fields of an endpoint; nil leaves one unchanged.
type EndpointFields struct {
	Second   *string   `json:"second_connection,omitempty" enum:"replace,refuse" doc:"Default for a new one: replace, because boards connect again before their lost connection is noticed"`
	Tools    *[]string `json:"tools,omitempty" nullable:"false" maxItems:"64" example:"[\"get_*\"]" doc:"Patterns of the tools that are offered; a trailing * matches any ending. Empty: all"`
	Audience *string   `json:"audience,omitempty" enum:"model,user" doc:"model: people and language models may use it; user: only people. Default: model"`
	Voice    *bool     `json:"offer_to_voice,omitempty" doc:"Adds its tools to those of each board in conversations"`
	Disabled *bool     `json:"disabled,omitempty" doc:"Its connections are refused"`
	Version  int64     `json:"version,omitempty" minimum:"0" doc:"Version of the endpoint on which the change is based; nothing changes if it differs now. 0: any"`
}

func (f *EndpointFields) change(s *endpoint.Settings) {
	set((*string)(&s.Second), f.Second)
	set(&s.Tools, f.Tools)
	set((*string)(&s.Audience), f.Audience)
	set(&s.OfferToVoice, f.Voice)
	set(&s.Disabled, f.Disabled)
}

type createEndpointInput struct {
	Body struct {
		Name string `json:"name" minLength:"1" maxLength:"40" example:"workshop-pc" doc:"Lower-case letters, digits, _ and -"`
		EndpointFields
	}
}

func (a *api) createEndpoint(ctx context.Context, by fleet.Principal, in *createEndpointInput) (
	*answer[newEndpointView], error) {
	var settings endpoint.Settings
	in.Body.change(&settings)
	e, secret, err := a.Endpoints.Create(ctx, by, in.Body.Name, settings)
	return newEndpointAnswer(e, endpoint.Provider, secret, err)
}

type updateEndpointInput struct {
	EndpointPath
	Body EndpointFields
}

func (a *api) updateEndpoint(ctx context.Context, by fleet.Principal, in *updateEndpointInput) (*answer[EndpointView],
	error) {
	return endpointAnswer(a.Endpoints.Update(ctx, by, in.Endpoint, in.Body.Version, in.Body.change))
}

func (a *api) deleteEndpoint(ctx context.Context, by fleet.Principal, in *EndpointPath) (*empty, error) {
	return &empty{}, a.Endpoints.Delete(ctx, by, in.Endpoint)
}

type issueEndpointTokenInput struct {
	EndpointPath
	Body struct {
		Kind endpoint.TokenKind `json:"kind,omitempty" enum:"provider,consumer" default:"provider" doc:"provider: for the program with the tools; consumer: for MCP clients that call the tools of this endpoint alone, as a language model"`
	}
}

func (a *api) issueEndpointToken(ctx context.Context, by fleet.Principal, in *issueEndpointTokenInput) (
	*answer[newEndpointView], error) {
	e, secret, err := a.Endpoints.Issue(ctx, by, in.Endpoint, 0, in.Body.Kind)
	return newEndpointAnswer(e, in.Body.Kind, secret, err)
}

type revokeEndpointTokenInput struct {
	EndpointPath
	Kind endpoint.TokenKind `query:"kind" enum:"provider,consumer" default:"provider"`
}

func (a *api) revokeEndpointToken(ctx context.Context, by fleet.Principal, in *revokeEndpointTokenInput) (*empty,
	error) {
	_, err := a.Endpoints.Revoke(ctx, by, in.Endpoint, 0, in.Kind)
	return &empty{}, err
}
