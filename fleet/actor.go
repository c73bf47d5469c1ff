package fleet

import (
	"context"
	"time"

	"github.com/google/uuid"
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

// ActorKind says what sort of principal acts.
type ActorKind string

const (
	ActorOperator ActorKind = "operator" // a person, signed in to the console
	ActorToken    ActorKind = "token"    // a program with an API token
	ActorLLM      ActorKind = "llm"      // a model behind the MCP gateway: never calls user-only tools
	ActorCampaign ActorKind = "campaign"
	ActorSystem   ActorKind = "system" // fleetd itself, or its command line on the same machine
)

// An Actor is whoever asks for something: the subject of every call record and
// audit entry.
type Actor struct {
	Kind ActorKind
	ID   string // operator or token id; "" for the system
	Name string
	Role Role
}

// Same reports whether two actors are the same principal.
func (a Actor) Same(b Actor) bool { return a.Kind == b.Kind && a.ID == b.ID && a.Name == b.Name }

// May returns nil if the actor's role allows what needs role need.
func (a Actor) May(need Role, what string) error {
	if a.Role.Allows(need) {
		return nil
	}
	return Errorf(ErrForbidden, "forbidden", "%s needs the role %s; %s has %s", what, need, a.Name, a.Role)
}

// An AuditEntry says who did what to which, when. It is written in the
// transaction of the change it records; tool calls have records of their own
// (see [Call]) and are not repeated here.
type AuditEntry struct {
	ID      uuid.UUID
	At      time.Time
	Actor   Actor
	Action  string // "device.hold", "token.create", ...
	Subject string // id of what was changed
	Detail  map[string]any
}

// AuditStore reads audit entries, newest first.
type AuditStore interface {
	AuditEntries(ctx context.Context, f AuditFilter) (Page[AuditEntry], error)
}

// An AuditFilter narrows a list of audit entries. Zero fields do not filter.
type AuditFilter struct {
	Subject, Action, Actor string
	Limit                  int
	Cursor                 string
}
