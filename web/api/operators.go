package api

import (
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
		summary: "Lock an operator out or in, or set the password", about: "What is left out stays."}, a.updateOperator)
}

type operatorView struct {
	ID         uuid.UUID  `json:"id" format:"uuid"`
	Name       string     `json:"name"`
	Role       fleet.Role `json:"role" enum:"viewer,operator,admin"`
	CreatedAt  time.Time  `json:"created_at"`
	DisabledAt *time.Time `json:"disabled_at" doc:"Since when the operator is locked out"`
}

func operator(o fleet.Operator) operatorView {
	return operatorView{ID: o.ID, Name: o.Name, Role: o.Role, CreatedAt: utc(o.CreatedAt),
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
		Password string     `json:"password" minLength:"10" maxLength:"1000"`
	}
}

func (a *api) createOperator(ctx context.Context, by fleet.Principal, in *createOperatorInput) (*answer[operatorView],
	error) {
	o, err := a.Operators.Create(ctx, by, in.Body.Name, in.Body.Role, in.Body.Password)
	if err != nil {
		return nil, err
	}
	return answerWith(operator(o)), nil
}

type updateOperatorInput struct {
	IDPath
	Body struct {
		Disabled *bool   `json:"disabled,omitempty"`
		Password *string `json:"password,omitempty" minLength:"10" maxLength:"1000"`
	}
}

func (a *api) updateOperator(ctx context.Context, by fleet.Principal, in *updateOperatorInput) (*answer[operatorView],
	error) {
	id := in.uuid()
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
