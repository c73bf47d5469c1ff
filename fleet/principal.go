package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// A Role is a set of rights. Each role includes the rights of the one before it.
type Role string

const (
	RoleViewer   Role = "viewer"   // reads everything but secrets
	RoleOperator Role = "operator" // calls tools, holds, claims, approves
	RoleAdmin    Role = "admin"    // manages operators, tokens and settings
)

// Allows reports whether r includes the rights of role need.
func (r Role) Allows(need Role) bool { return rank(r) >= rank(need) && rank(need) > 0 }

// Valid reports whether r is one of the three roles.
func (r Role) Valid() bool { return rank(r) > 0 }

// ErrUnknownRole returns the error for a role that does not exist.
func ErrUnknownRole(r Role) *Error {
	return Refuse(ErrInvalid, "invalid_role", "value", string(r)).At("role")
}

func rank(r Role) int {
	switch r {
	case RoleViewer:
		return 1
	case RoleOperator:
		return 2
	case RoleAdmin:
		return 3
	}
	return 0
}

// PrincipalKind is the kind of a principal.
type PrincipalKind string

const (
	KindOperator PrincipalKind = "operator" // a person, signed in to the console
	KindProgram  PrincipalKind = "program"  // a program with an API token
	KindModel    PrincipalKind = "model"    // a language model with a token: never calls user-only tools
	KindVoice    PrincipalKind = "voice"    // the language model of a voice server: like a model
	KindCampaign PrincipalKind = "campaign"
	KindSystem   PrincipalKind = "system" // fleetd itself, or its command line on the same machine
)

// PrincipalKinds lists every kind.
var PrincipalKinds = []PrincipalKind{KindOperator, KindProgram, KindModel, KindVoice, KindCampaign, KindSystem}

// IsModel reports whether a language model controls a principal of this kind.
func (k PrincipalKind) IsModel() bool { return k == KindModel || k == KindVoice }

// A Principal is whoever acts: the subject of every call record and audit
// entry. The records keep its kind, ID, name and role.
type Principal struct {
	Kind PrincipalKind
	ID   string // operator or token id; "" for the system
	Name string
	Role Role // the highest role that it has on any device
	// Scope narrows the devices and tools to which the role applies; nil means no limit. It
	// is shared: do not change it.
	Scope *Scope
}

// Same reports whether both are the same principal.
func (p Principal) Same(other Principal) bool {
	return p.Kind == other.Kind && p.ID == other.ID && p.Name == other.Name
}

// SameAccess reports whether both have the same rights: equal roles and filters.
func (p Principal) SameAccess(other Principal) bool {
	a, b := cmp.Or(p.Scope, &Scope{}), cmp.Or(other.Scope, &Scope{})
	return p.Role == other.Role && a.Filter.Text == b.Filter.Text && a.Rest == b.Rest &&
		slices.Equal(a.Tools, b.Tools) && a.NoTools == b.NoTools
}

// FleetRole returns the role for everything that concerns the fleet and not one device:
// releases, settings, operators. "" means no such role.
func (p Principal) FleetRole() Role {
	if p.Scope == nil || p.Scope.Filter.Empty() {
		return p.Role
	}
	return p.Scope.Rest
}

// RoleOn returns the role that the principal has on a device. "" means that the device does
// not exist for the principal.
func (p Principal) RoleOn(d Device) Role {
	if p.Scope == nil || p.Scope.Filter.Covers(d) {
		return p.Role
	}
	return p.Scope.Rest
}

// Within returns the filter of the devices on which the principal has role need, an empty
// query if that is every device. Work that continues to find devices on the principal's
// behalf adds it with [Query.And].
func (p Principal) Within(need Role) Query {
	if p.Scope == nil || p.Scope.Filter.Empty() || p.Scope.Rest.Allows(need) {
		return Query{}
	}
	return p.Scope.Filter
}

// Sees reports whether the device exists for the principal.
func (p Principal) Sees(d Device) bool { return p.RoleOn(d) != "" }

// May returns nil if the principal may do an act that needs role need and concerns no single
// device.
func (p Principal) May(need Role, act string) error { return p.mayAs(p.FleetRole(), need, act) }

// MaySomewhere returns nil if the principal may do an act that needs role need on at least
// one device. Each device must then be checked separately.
func (p Principal) MaySomewhere(need Role, act string) error { return p.mayAs(p.Role, need, act) }

// MayOn returns nil if the principal may do an act on the device that needs role need, and
// [ErrNotFound] if the device does not exist for the principal.
func (p Principal) MayOn(d Device, need Role, act string) error {
	role := p.RoleOn(d)
	if role == "" {
		return fmt.Errorf("device %s is outside the scope of %s %q: %w", d.ID, p.Kind, p.Name, ErrNotFound)
	}
	return p.mayAs(role, need, act)
}

// ForModels is whether a language model, a principal of kind model or voice, may make a
// request. Each operation of REST and each tool of the MCP server declares it; the domain
// refuses the same acts, see [Principal.MayDecide].
type ForModels string

const (
	// ModelsMay allows a model what its role and scope allow a person or a program: reads,
	// calls, fan-outs, dry runs, drafts.
	ModelsMay ForModels = "yes"
	// ModelsOwn allows a model the request for objects that it made itself, such as its
	// draft; see [Principal.MayAsMaker].
	ModelsOwn ForModels = "own"
	// ModelsNever allows only people and programs. The request decides what policies, scopes
	// and approvals depend on, or shows what only admins need.
	ModelsNever ForModels = "no"
)

// Valid reports whether f is one of the constants above.
func (f ForModels) Valid() bool { return f == ModelsMay || f == ModelsOwn || f == ModelsNever }

// Admit returns an error if a language model makes a request that models may not make.
// operation names the request in words.
func (f ForModels) Admit(p Principal, operation string) error {
	if !p.Kind.IsModel() || f == ModelsMay || f == ModelsOwn {
		return nil
	}
	return Refuse(ErrForbidden, "person_needed.operation", "operation", operation, "actor", p.Name)
}

// modelActs are the acts that a language model may do like anyone with its role: they plan or
// call, and the gate checks calls. [Principal.MayDecide] refuses a model every other act that
// needs more than reading.
var modelActs = map[string]bool{"make_campaign": true, "make_fanout": true}

// modelOwnActs are the acts that a language model may do on objects that it made itself. Code
// that has the maker also checks [Principal.MayAsMaker].
var modelOwnActs = map[string]bool{"change_campaign": true, "start_campaign": true, "discard_campaign": true,
	"cancel_fanout": true, "cancel_call": true}

// MayDecide returns nil if a principal of this kind may do the act. A language model acts on
// behalf of people and may not decide what policies, scopes or approvals depend on.
func (p Principal) MayDecide(act string) error {
	if p.Kind.IsModel() && !modelActs[act] && !modelOwnActs[act] {
		return Refuse(ErrForbidden, "person_needed.act", "act", Because("act."+act), "actor", p.Name)
	}
	return nil
}

// MayAsMaker returns nil if the principal may do the act on an object that maker made. A
// language model may only if it is the maker.
func (p Principal) MayAsMaker(maker Principal, act string) error {
	if p.Kind.IsModel() && !modelActs[act] && !p.Same(maker) {
		return Refuse(ErrForbidden, "person_needed.own", "act", Because("act."+act), "actor", p.Name)
	}
	return p.MayDecide(act)
}

func (p Principal) mayAs(role, need Role, act string) error {
	if role.Allows(need) {
		if need == RoleViewer {
			return nil
		}
		return p.MayDecide(act)
	}
	return Refuse(ErrForbidden, "forbidden", "act", Because("act."+act), "need", need, "actor", p.Name, "role",
		cmp.Or(role, RoleViewer))
}

// ErrActorGone means that the principal behind a request may no longer act: its token was
// revoked or has expired, or the operator was disabled.
var ErrActorGone = fmt.Errorf("the principal may no longer act: %w", ErrForbidden)

// ActorGone returns [ErrActorGone] with its code.
func ActorGone(p Principal) *Error {
	return Refuse(ErrActorGone, CodeActorGone, "actor", p.Name)
}

// Codes of the reasons that end work which continues after its request was answered.
const (
	CodeActorGone  = "actor_gone"   // see [ErrActorGone]
	CodeOutOfScope = "out_of_scope" // the device has left the principal's scope
)

// An Authority reads the current rights of a principal. Work that continues after its request
// was answered calls it before each act.
type Authority interface {
	// PrincipalNow returns the principal with its current rights, or an error that matches
	// [ErrActorGone]. Any other error means that the rights could not be read; the principal
	// must not act then.
	PrincipalNow(ctx context.Context, p Principal) (Principal, error)
}

// MayEndWait returns nil if the principal may do the act on a waiting call, and [ErrNotFound]
// if the call does not exist for it. Principals other than the maker need the rights for
// making the call.
func (p Principal) MayEndWait(c Call, d Device, act string) error {
	if !p.Sees(d) {
		return fmt.Errorf("call %s: %w", c.ID, ErrNotFound)
	}
	if err := p.MayAsMaker(c.Actor, act); err != nil || c.Actor.Same(p) {
		return err
	}
	if !p.Scope.AllowsTool(c.Tool) {
		return Refuse(ErrForbidden, "tool_not_allowed.act", "act", Because("act."+act), "actor", p.Name,
			"tool", c.Tool)
	}
	return p.MayOn(d, RoleOperator, act)
}
