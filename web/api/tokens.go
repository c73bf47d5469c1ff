package api

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/operator"
	"fleetd/web/access"
	"fleetd/web/i18n"
)

func (a *api) registerTokens() {
	register(a, operation{id: "list-tokens", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/tokens", role: fleet.RoleViewer,
		summary: "List API tokens, without their secrets"}, a.listTokens)
	register(a, operation{id: "create-token", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/tokens", role: fleet.RoleAdmin,
		created: true,
		summary: "Create an API token", about: "Only this answer contains its secret."}, a.createToken)
	register(a, operation{id: "revoke-token", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodDelete, path: "/tokens/{id}", role: fleet.RoleAdmin,
		noun:    "token",
		summary: "Revoke an API token"}, a.revokeToken)
}

type TokenView struct {
	ID          uuid.UUID           `json:"id" format:"uuid"`
	Name        string              `json:"name"`
	Kind        fleet.PrincipalKind `json:"kind" enum:"program,model" doc:"A model can never call user-only tools"`
	Role        fleet.Role          `json:"role" enum:"viewer,operator,admin"`
	Scope       string              `json:"scope" doc:"Filter of the devices that the token can see; empty: all"`
	Tools       []string            `json:"tools" nullable:"false" doc:"Patterns of the tools it may call; see tool_access"`
	ToolAccess  string              `json:"tool_access" enum:"all,some,none" doc:"If empty, a program can call all tools and a model none; * means all"`
	ScopeClaims []string            `json:"scope_claims" nullable:"false" doc:"Fields of the scope that rely on what a device reported about itself when it was let in; tags are chosen by people"`
	PerMinute   int                 `json:"per_minute" doc:"Maximum requests a minute; 0: no limit"`
	Hint        string              `json:"hint" doc:"Last characters of the secret"`
	CreatedBy   string              `json:"created_by"`
	CreatedAt   time.Time           `json:"created_at"`
	LastUsedAt  *time.Time          `json:"last_used_at"`
	ExpiresAt   *time.Time          `json:"expires_at"`
	RevokedAt   *time.Time          `json:"revoked_at"`
}

func token(t operator.Token) TokenView {
	scope := cmp.Or(t.Scope, &fleet.Scope{})
	return TokenView{ID: t.ID, Name: t.Name, Kind: t.Kind, Role: t.Role, Scope: scope.Filter.Text,
		ScopeClaims: orEmpty(scope.Filter.Claims()),
		Tools:       orEmpty(scope.Tools), ToolAccess: toolAccess(t.Scope), PerMinute: t.PerMinute, Hint: t.Hint,
		CreatedBy: t.CreatedBy, CreatedAt: utc(t.CreatedAt),
		LastUsedAt: utcOrNil(t.LastUsedAt), ExpiresAt: utcOrNil(t.ExpiresAt), RevokedAt: utcOrNil(t.RevokedAt)}
}

func toolAccess(s *fleet.Scope) string {
	switch {
	case s.AllTools():
		return "all"
	case s.NoTools:
		return "none"
	}
	return "some"
}

func (a *api) listTokens(ctx context.Context, _ fleet.Principal, _ *struct{}) (*answer[list[TokenView]], error) {
	tokens, err := a.Operators.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	return listOf(tokens, token), nil
}

type createTokenInput struct {
	Body struct {
		Name      string              `json:"name" minLength:"1" maxLength:"120" doc:"Of the program that will use it"`
		Kind      fleet.PrincipalKind `json:"kind,omitempty" enum:"program,model" default:"program" doc:"model: a language model makes the calls, so user-only tools are not allowed"`
		Role      fleet.Role          `json:"role,omitempty" enum:"viewer,operator,admin" default:"operator"`
		Scope     string              `json:"scope,omitempty" maxLength:"1024" doc:"Filter of id, name, board, chip and tag; the token cannot see other devices"`
		Tools     []string            `json:"tools,omitempty" nullable:"false" maxItems:"50" doc:"Patterns of the tools it may call; a * at the end matches any ending, a single * all tools. Empty: a program may call all, a model none"`
		PerMinute int                 `json:"per_minute,omitempty" minimum:"0" maximum:"100000" doc:"Maximum requests a minute; 0: no limit"`
		ExpiresAt *time.Time          `json:"expires_at,omitempty" doc:"When the token expires; if omitted, it is valid until revoked"`
	}
}

// newTokenView is a token with its secret.
type newTokenView struct {
	TokenView
	Secret  string `json:"token" doc:"The secret, flt_...; shown only once"`
	Warning string `json:"warning,omitempty" doc:"Warning that the token cannot call any tool, and how to change that"`
}

func (a *api) createToken(ctx context.Context, by fleet.Principal, in *createTokenInput) (*answer[newTokenView],
	error) {
	expires := utcOrNil(in.Body.ExpiresAt)
	if expires != nil && !expires.After(time.Now()) {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_expires_at").At("expires_at")
	}
	t, secret, err := a.Operators.NewToken(ctx, by, operator.TokenRequest{Name: in.Body.Name, Kind: in.Body.Kind,
		Role: in.Body.Role, Scope: in.Body.Scope, Tools: in.Body.Tools, PerMinute: in.Body.PerMinute, ExpiresAt: expires})
	if err != nil {
		return nil, err
	}
	v := newTokenView{TokenView: token(t), Secret: secret}
	if v.ToolAccess == "none" {
		v.Warning = i18n.Text(i18n.English, "tokens.no_tools_warning")
	}
	return answerWith(v), nil
}

func (a *api) revokeToken(ctx context.Context, by fleet.Principal, in *IDPath) (*empty, error) {
	return &empty{}, a.Operators.Revoke(ctx, by, in.uuid())
}
