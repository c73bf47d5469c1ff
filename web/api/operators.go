package api

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/access"
)

func (a *api) registerOperators() {
	register(a, operation{id: "list-operators", reach: access.Fleet,
		method: http.MethodGet, path: "/operators", role: fleet.RoleViewer,
		summary: "List operators"}, a.listOperators)
	register(a, operation{id: "create-operator", reach: access.Fleet,
		method: http.MethodPost, path: "/operators", role: fleet.RoleAdmin,
		created: true,
		summary: "Add an operator"}, a.createOperator)
	register(a, operation{id: "update-operator", reach: access.Fleet,
		method: http.MethodPatch, path: "/operators/{id}", role: fleet.RoleAdmin,
		noun:    "operator",
		summary: "Change what an operator may do, lock one out or in, or set the password",
		about: "What is left out stays. It holds from the operator's next request on. " +
			"Operators cannot change their own role or scope, and the last admin of the whole fleet stays one."}, a.updateOperator)
}

type operatorView struct {
	ID         uuid.UUID  `json:"id" format:"uuid"`
	Name       string     `json:"name"`
	Role       fleet.Role `json:"role" enum:"viewer,operator,admin"`
	Scope      string     `json:"scope" doc:"Filter of the devices on which the role holds; empty: all"`
	Rest       fleet.Role `json:"rest" enum:",viewer,operator,admin" doc:"Role on all other devices; empty: they do not exist for the operator"`
	CreatedAt  time.Time  `json:"created_at"`
	DisabledAt *time.Time `json:"disabled_at" doc:"Since when the operator is locked out"`
}

func operator(o fleet.Operator) operatorView {
	scope := cmp.Or(o.Scope, &fleet.Scope{})
	return operatorView{ID: o.ID, Name: o.Name, Role: o.Role, Scope: scope.Filter.Text, Rest: scope.Rest,
		CreatedAt:  utc(o.CreatedAt),
		DisabledAt: utcOrNil(o.DisabledAt)}
}

func (a *api) listOperators(ctx context.Context, _ fleet.Principal, _ *struct{}) (*answer[list[operatorView]], error) {
	operators, err := a.Operators.Operators(ctx)
	if err != nil {
		return nil, err
	}
	return listOf(operators, operator), nil
}

type createOperatorInput struct {
	Body struct {
		Name     string     `json:"name" minLength:"1" maxLength:"200"`
		Role     fleet.Role `json:"role" enum:"viewer,operator,admin"`
		Scope    string     `json:"scope,omitempty" maxLength:"1024" doc:"Filter over id, name, board, chip and tag of the devices on which the role holds; empty: all"`
		Rest     fleet.Role `json:"rest,omitempty" enum:",viewer,operator,admin" doc:"Role on all other devices; empty: they do not exist for the operator"`
		Password string     `json:"password" minLength:"10" maxLength:"1000"`
	}
}

func (a *api) createOperator(ctx context.Context, by fleet.Principal, in *createOperatorInput) (*answer[operatorView],
	error) {
	o, err := a.Operators.Create(ctx, by, fleet.OperatorRequest{Name: in.Body.Name, Password: in.Body.Password,
		Access: fleet.Access{Role: in.Body.Role, Scope: in.Body.Scope, Rest: in.Body.Rest}})
	if err != nil {
		return nil, err
	}
	return answerWith(operator(o)), nil
}

type updateOperatorInput struct {
	IDPath
	Body struct {
		Role     *fleet.Role `json:"role,omitempty" enum:"viewer,operator,admin"`
		Scope    *string     `json:"scope,omitempty" maxLength:"1024" doc:"As of a new operator; empty: all devices"`
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
		now := operator(o)
		to := fleet.Access{Role: now.Role, Scope: now.Scope, Rest: now.Rest}
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
	return answerWith(operator(o)), nil
}
