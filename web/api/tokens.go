package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/access"
)

func (a *api) registerTokens() {
	register(a, operation{id: "list-tokens", reach: access.Fleet,
		method: http.MethodGet, path: "/tokens", role: fleet.RoleViewer,
		summary: "List API tokens, without their secrets"}, a.listTokens)
	register(a, operation{id: "create-token", reach: access.Fleet,
		method: http.MethodPost, path: "/tokens", role: fleet.RoleAdmin,
		created: true,
		summary: "Make an API token", about: "Its secret is in this answer alone."}, a.createToken)
	register(a, operation{id: "revoke-token", reach: access.Fleet,
		method: http.MethodDelete, path: "/tokens/{id}", role: fleet.RoleAdmin,
		noun:    "token",
		summary: "Revoke an API token"}, a.revokeToken)
}

type TokenView struct {
	ID         uuid.UUID  `json:"id" format:"uuid"`
	Name       string     `json:"name"`
	Role       fleet.Role `json:"role" enum:"viewer,operator,admin"`
	Hint       string     `json:"hint" doc:"Last characters of the secret"`
	CreatedBy  string     `json:"created_by"`
	CreatedAt  time.Time  `json:"created_at"`
	LastUsedAt *time.Time `json:"last_used_at"`
	ExpiresAt  *time.Time `json:"expires_at"`
	RevokedAt  *time.Time `json:"revoked_at"`
}

func token(t fleet.Token) TokenView {
	return TokenView{ID: t.ID, Name: t.Name, Role: t.Role, Hint: t.Hint, CreatedBy: t.CreatedBy,
		CreatedAt:  utc(t.CreatedAt),
		LastUsedAt: utcOrNil(t.LastUsedAt), ExpiresAt: utcOrNil(t.ExpiresAt), RevokedAt: utcOrNil(t.RevokedAt)}
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
		Name      string     `json:"name" minLength:"1" maxLength:"120" doc:"Of the program that will use it"`
		Role      fleet.Role `json:"role,omitempty" enum:"viewer,operator,admin" default:"operator"`
		ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"When the token expires; without it, the token lasts until revoked"`
	}
}

// newTokenView is a token with its secret.
type newTokenView struct {
	TokenView
	Secret string `json:"token" doc:"The secret, flt_...; shown this once"`
}

func (a *api) createToken(ctx context.Context, by fleet.Principal, in *createTokenInput) (*answer[newTokenView],
	error) {
	expires := utcOrNil(in.Body.ExpiresAt)
	if expires != nil && !expires.After(time.Now()) {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_expires_at").At("expires_at")
	}
	t, secret, err := a.Operators.NewToken(ctx, by, fleet.TokenRequest{Name: in.Body.Name, Role: in.Body.Role,
		ExpiresAt: expires})
	if err != nil {
		return nil, err
	}
	return answerWith(newTokenView{token(t), secret}), nil
}

func (a *api) revokeToken(ctx context.Context, by fleet.Principal, in *IDPath) (*empty, error) {
	return &empty{}, a.Operators.Revoke(ctx, by, in.uuid())
}
