package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// A Role says what a principal may do. Each role may do all that the one
// before it may.
type Role string

const (
	RoleViewer   Role = "viewer"   // reads everything but secrets
	RoleOperator Role = "operator" // calls tools, holds, claims, approves
	RoleAdmin    Role = "admin"    // manages operators, tokens and settings
)

// Allows reports whether r may do what needs role need.
func (r Role) Allows(need Role) bool { return rank(r) >= rank(need) && rank(need) > 0 }

// Valid reports whether r is one of the three roles.
func (r Role) Valid() bool { return rank(r) > 0 }

// ErrUnknownRole says that no operator can have the role.
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

// PrincipalKind says what sort of principal acts.
type PrincipalKind string

const (
	KindOperator PrincipalKind = "operator" // a person, signed in to the console
	KindProgram  PrincipalKind = "program"  // a program with an API token
	KindModel    PrincipalKind = "model"    // a language model with a token: never calls user-only tools
	KindVoice    PrincipalKind = "voice"    // the language model of a voice server: as a model
	KindCampaign PrincipalKind = "campaign"
	KindSystem   PrincipalKind = "system" // fleetd itself, or its command line on the same machine
)

// PrincipalKinds lists every kind.
var PrincipalKinds = []PrincipalKind{KindOperator, KindProgram, KindModel, KindVoice, KindCampaign, KindSystem}

// IsModel reports whether a language model decides what a principal of this
// kind does.
func (k PrincipalKind) IsModel() bool { return k == KindModel || k == KindVoice }

// A Principal is whoever acts: the subject of every call record and audit
// entry. The records keep its kind, ID, name and role.
type Principal struct {
	Kind PrincipalKind
	ID   string // operator or token id; "" for the system
	Name string
	Role Role // the highest that it has on any device
	// Scope narrows where and for what the role holds; nil: everywhere, for
	// everything. It is shared: do not change it.
	Scope *Scope
}

// Same reports whether both are the same principal.
func (p Principal) Same(other Principal) bool {
	return p.Kind == other.Kind && p.ID == other.ID && p.Name == other.Name
}

// SameAccess reports whether both may do the same: their roles and filters are equal.
func (p Principal) SameAccess(other Principal) bool {
	a, b := cmp.Or(p.Scope, &Scope{}), cmp.Or(other.Scope, &Scope{})
	return p.Role == other.Role && a.Filter.Text == b.Filter.Text && a.Rest == b.Rest &&
		slices.Equal(a.Tools, b.Tools) && a.NoTools == b.NoTools
}

// FleetRole is the role in what concerns the fleet and no single device:
// releases, settings, operators. "": it has no such role.
func (p Principal) FleetRole() Role {
	if p.Scope == nil || p.Scope.Filter.Empty() {
		return p.Role
	}
	return p.Scope.Rest
}

// RoleOn is the role that the principal has on a device; "": for this
// principal, the device does not exist.
func (p Principal) RoleOn(d Device) Role {
	if p.Scope == nil || p.Scope.Filter.Covers(d) {
		return p.Role
	}
	return p.Scope.Rest
}

// Within is the filter of the devices on which the principal has role need; the
// empty one if that is every device. What goes on finding devices on its behalf is
// joined with it; see [Query.And].
func (p Principal) Within(need Role) Query {
	if p.Scope == nil || p.Scope.Filter.Empty() || p.Scope.Rest.Allows(need) {
		return Query{}
	}
	return p.Scope.Filter
}

// Sees reports whether the device exists for the principal.
func (p Principal) Sees(d Device) bool { return p.RoleOn(d) != "" }

// May returns nil if the principal may do what needs role need and concerns no
// single device.
func (p Principal) May(need Role, act string) error { return p.mayAs(p.FleetRole(), need, act) }

// MaySomewhere returns nil if the principal may do, to some device at least,
// what needs role need. What it acts on is then judged device by device.
func (p Principal) MaySomewhere(need Role, act string) error { return p.mayAs(p.Role, need, act) }

// MayOn returns nil if the principal may do to the device what needs role need,
// and [ErrNotFound] if the device does not exist for it.
func (p Principal) MayOn(d Device, need Role, act string) error {
	role := p.RoleOn(d)
	if role == "" {
		return fmt.Errorf("device %s, outside of the scope of %s %q: %w", d.ID, p.Kind, p.Name, ErrNotFound)
	}
	return p.mayAs(role, need, act)
}

// ForModels says whether a language model, a principal of kind model or voice,
// may make a request. Each operation of REST and each tool of the MCP server
// declares it; the domain refuses the same acts, see [Principal.MayDecide].
type ForModels string

const (
	// ModelsMay: a model may, as a person or a program of its role and scope: reads,
	// calls, fan-outs, dry runs, drafts.
	ModelsMay ForModels = "yes"
	// ModelsOwn: a model may with what it made itself, such as its draft; see
	// [Principal.MayAsMaker].
	ModelsOwn ForModels = "own"
	// ModelsNever: only people and programs may. It decides what policies, scopes and
	// approvals rest on, or shows what only admins need.
	ModelsNever ForModels = "no"
)

// Valid reports whether f is one of the constants above.
func (f ForModels) Valid() bool { return f == ModelsMay || f == ModelsOwn || f == ModelsNever }

// Admit refuses a language model a request that is not for models. operation
// names the request in words.
func (f ForModels) Admit(p Principal, operation string) error {
	if !p.Kind.IsModel() || f == ModelsMay || f == ModelsOwn {
		return nil
	}
	return Refuse(ErrForbidden, "person_needed.operation", "operation", operation, "actor", p.Name)
}

// modelActs are the acts that a language model may do as anybody else with its
// role: they plan or call, and calls are judged by the gate. [Principal.MayDecide]
// refuses a model all others that need more than to read.
var modelActs = map[string]bool{"make_campaign": true, "make_fanout": true}

// modelOwnActs are those that a language model may do with what it made itself.
// Whoever knows the maker asks [Principal.MayAsMaker] as well.
var modelOwnActs = map[string]bool{"change_campaign": true, "start_campaign": true, "discard_campaign": true,
	"cancel_fanout": true, "cancel_call": true}

// MayDecide returns nil if a principal of this kind may do the act: a language
// model acts on behalf of people, and decides nothing that policies, scopes or
// approvals rest on.
func (p Principal) MayDecide(act string) error {
	if p.Kind.IsModel() && !modelActs[act] && !modelOwnActs[act] {
		return Refuse(ErrForbidden, "person_needed.act", "act", Because("act."+act), "actor", p.Name)
	}
	return nil
}

// MayAsMaker returns nil if the principal may do the act to what maker made. A
// language model may only where it is the maker.
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

// ErrActorGone means that the principal that asked for something may not act any
// more: its token was revoked or has expired, or the operator was disabled.
var ErrActorGone = fmt.Errorf("the principal that asked is gone: %w", ErrForbidden)

// ActorGone is [ErrActorGone] with its code.
func ActorGone(p Principal) *Error {
	return Refuse(ErrActorGone, CodeActorGone, "actor", p.Name)
}

// Codes of what ends work that goes on after its request was answered.
const (
	CodeActorGone  = "actor_gone"   // see [ErrActorGone]
	CodeOutOfScope = "out_of_scope" // the device is outside of the principal's scope now
)

// An Authority reads again what a principal may do. Work that goes on after its
// request was answered asks it each time it is about to act.
type Authority interface {
	// PrincipalNow returns the principal as it may act now, or an error that matches
	// [ErrActorGone]. Any other error means that the rights could not be read: then
	// the principal must not act yet.
	PrincipalNow(ctx context.Context, p Principal) (Principal, error)
}

// MayEndWait returns nil if the principal may do the act to a call that waits, and
// [ErrNotFound] if the call does not exist for it. Principals other than the
// maker need the rights that making the call needs.
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
