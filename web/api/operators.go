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
)

func (a *api) registerOperators() {
	register(a, operation{id: "list-operators", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/operators", role: fleet.RoleViewer,
		summary: "List operators"}, a.listOperators)
	register(a, operation{id: "create-operator", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/operators", role: fleet.RoleAdmin,
		created: true,
		summary: "Add an operator"}, a.createOperator)
	register(a, operation{id: "update-operator", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPatch, path: "/operators/{id}", role: fleet.RoleAdmin,
		noun:    "operator",
		summary: "Change an operator's role, scope or password, or disable or enable the operator",
		about: "Omitted fields stay as they are. Changes apply from the operator's next request. " +
			"Operators cannot change their own role or scope, and the last admin of the whole fleet stays one."}, a.updateOperator)
	const sessions = "/operators/{id}/sessions"
	register(a, operation{id: "list-operator-sessions", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: sessions, role: fleet.RoleAdmin,
		noun: "operator", summary: "List an operator's sessions in the console"}, a.listSessions)
	register(a, operation{id: "end-operator-sessions", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodDelete, path: sessions, role: fleet.RoleAdmin,
		noun: "operator", summary: "Sign an operator out everywhere"}, a.endSessions)
	register(a, operation{id: "end-operator-session", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodDelete, path: sessions + "/{session}", role: fleet.RoleAdmin,
		noun: "session", summary: "Sign an operator out of one browser"}, a.endSession)
}

type operatorView struct {
	ID          uuid.UUID  `json:"id" format:"uuid"`
	Name        string     `json:"name"`
	Role        fleet.Role `json:"role" enum:"viewer,operator,admin"`
	Scope       string     `json:"scope" doc:"Filter of the devices to which the role applies; empty: all"`
	ScopeClaims []string   `json:"scope_claims" nullable:"false" doc:"Fields of the scope that rely on what a device reported about itself when it was let in; tags are chosen by people"`
	Rest        fleet.Role `json:"rest" enum:",viewer,operator,admin" doc:"Role on all other devices; empty: the operator cannot see them"`
	CreatedAt   time.Time  `json:"created_at"`
	DisabledAt  *time.Time `json:"disabled_at" doc:"When the operator was disabled"`

	SignedInAt   *time.Time `json:"signed_in_at" doc:"Latest sign-in to the console"`
	SignedInFrom string     `json:"signed_in_from" doc:"Its address"`
}

func viewOfOperator(o operator.Operator) operatorView {
	scope := cmp.Or(o.Scope, &fleet.Scope{})
	return operatorView{ID: o.ID, Name: o.Name, Role: o.Role, Scope: scope.Filter.Text, Rest: scope.Rest,
		ScopeClaims: orEmpty(scope.Filter.Claims()),
		CreatedAt:   utc(o.CreatedAt),
		DisabledAt:  utcOrNil(o.DisabledAt), SignedInAt: utcOrNil(o.SignedInAt), SignedInFrom: o.SignedInFrom}
}

func (a *api) listOperators(ctx context.Context, _ fleet.Principal, _ *struct{}) (*answer[list[operatorView]], error) {
	operators, err := a.Operators.Operators(ctx)
	if err != nil {
		return nil, err
	}
	return listOf(operators, viewOfOperator), nil
}

type createOperatorInput struct {
	Body struct {
		Name     string     `json:"name" minLength:"1" maxLength:"200"`
		Role     fleet.Role `json:"role" enum:"viewer,operator,admin"`
		Scope    string     `json:"scope,omitempty" maxLength:"1024" doc:"Filter of id, name, board, chip and tag for the devices to which the role applies; empty: all"`
		Rest     fleet.Role `json:"rest,omitempty" enum:",viewer,operator,admin" doc:"Role on all other devices; empty: the operator cannot see them"`
		Password string     `json:"password" minLength:"10" maxLength:"1000"`
	}
}

func (a *api) createOperator(ctx context.Context, by fleet.Principal, in *createOperatorInput) (*answer[operatorView],
	error) {
	o, err := a.Operators.Create(ctx, by, operator.Request{Name: in.Body.Name, Password: in.Body.Password,
		Access: operator.Access{Role: in.Body.Role, Scope: in.Body.Scope, Rest: in.Body.Rest}})
	if err != nil {
		return nil, err
	}
	return answerWith(viewOfOperator(o)), nil
}

type updateOperatorInput struct {
	IDPath
	Body struct {
		Role     *fleet.Role `json:"role,omitempty" enum:"viewer,operator,admin"`
		Scope    *string     `json:"scope,omitempty" maxLength:"1024" doc:"As for a new operator; empty: all devices"`
		Rest     *fleet.Role `json:"rest,omitempty" enum:",viewer,operator,admin"`
		Disabled *bool       `json:"disabled,omitempty"`
		Password *string     `json:"password,omitempty" minLength:"10" maxLength:"1000"`
	}
}

func (a *api) updateOperator(ctx context.Context, by fleet.Principal, in *updateOperatorInput) (*answer[operatorView],
	error) {
	id := in.uuid()
	if b := in.Body; b.Role != nil || b.Scope != nil || b.Rest != nil {
		o, err := a.Operators.Operator(ctx, id)
		if err != nil {
			return nil, err
		}
		now := viewOfOperator(o)
		to := operator.Access{Role: now.Role, Scope: now.Scope, Rest: now.Rest}
		set(&to.Role, b.Role)
		set(&to.Scope, b.Scope)
		set(&to.Rest, b.Rest)
		if err := a.Operators.SetAccess(ctx, by, id, to); err != nil {
			return nil, err
		}
	}
	if in.Body.Password != nil {
		if err := a.Operators.SetPassword(ctx, by, id, *in.Body.Password); err != nil {
			return nil, err
		}
	}
	if in.Body.Disabled != nil {
		if err := a.Operators.SetDisabled(ctx, by, id, *in.Body.Disabled); err != nil {
			return nil, err
		}
	}
	o, err := a.Operators.Operator(ctx, id)
	if err != nil {
		return nil, err
	}
	return answerWith(viewOfOperator(o)), nil
}

type sessionView struct {
	ID        uuid.UUID `json:"id" format:"uuid"`
	Browser   string    `json:"browser" doc:"Short name; empty if it is not known"`
	UserAgent string    `json:"user_agent"`
	Address   string    `json:"address" doc:"Of the latest request"`
	CreatedAt time.Time `json:"created_at"`
	SeenAt    time.Time `json:"seen_at" doc:"Latest request, to within a minute"`
	ExpiresAt time.Time `json:"expires_at"`
}

func session(l operator.Login) sessionView {
	return sessionView{ID: l.ID, Browser: operator.BrowserName(l.Agent), UserAgent: l.Agent, Address: l.Address,
		CreatedAt: utc(l.CreatedAt), SeenAt: utc(l.SeenAt), ExpiresAt: utc(l.ExpiresAt)}
}

func (a *api) listSessions(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[list[sessionView]], error) {
	if _, err := a.Operators.Operator(ctx, in.uuid()); err != nil {
		return nil, err
	}
	logins, err := a.Operators.Logins(ctx, by, in.uuid())
	if err != nil {
		return nil, err
	}
	return listOf(logins, session), nil
}

func (a *api) endSessions(ctx context.Context, by fleet.Principal, in *IDPath) (*empty, error) {
	if _, err := a.Operators.Operator(ctx, in.uuid()); err != nil {
		return nil, err
	}
	_, err := a.Operators.EndLogins(ctx, by, in.uuid(), uuid.Nil)
	return &empty{}, err
}

type endSessionInput struct {
	IDPath
	Session string `path:"session" format:"uuid"`
}

func (in *endSessionInput) pathID() string { return in.Session }

func (a *api) endSession(ctx context.Context, by fleet.Principal, in *endSessionInput) (*empty, error) {
	id, _ := uuid.Parse(in.Session) // huma has validated the UUID
	return &empty{}, a.Operators.EndLogin(ctx, by, in.uuid(), id)
}
