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
func (a Actor) May(need Role, act string) error {
	if a.Role.Allows(need) {
		return nil
	}
	return Refuse(ErrForbidden, "forbidden", "act", Because("act."+act), "need", need, "actor", a.Name, "role", a.Role)
}

// An Operator is a person who may act.
type Operator struct {
	ID           uuid.UUID
	Name         string
	Role         Role
	PasswordHash string // argon2id
	Locale       string // "en" or "zh-CN"; "" follows the browser
	CreatedAt    time.Time
	DisabledAt   *time.Time
}

// Actor returns the operator as a subject of calls and audit entries.
func (o Operator) Actor() Actor {
	return Actor{Kind: ActorOperator, ID: o.ID.String(), Name: o.Name, Role: o.Role}
}

// A Token lets a program act over REST. Only the SHA-256 of the secret is kept.
type Token struct {
	ID         uuid.UUID
	Name       string
	Role       Role
	Hash       []byte // SHA-256 of the whole secret "flt_..."
	Hint       string // last four characters, to tell tokens apart
	CreatedBy  string
	CreatedAt  time.Time
	LastUsedAt *time.Time
	ExpiresAt  *time.Time
	RevokedAt  *time.Time
}

// Actor returns the token as a subject of calls and audit entries.
func (t Token) Actor() Actor {
	return Actor{Kind: ActorToken, ID: t.ID.String(), Name: t.Name, Role: t.Role}
}

// OperatorStore keeps operators and API tokens.
type OperatorStore interface {
	CreateOperator(ctx context.Context, by Actor, o Operator) error // ErrConflict if the name is taken (any case)
	Operators(ctx context.Context) ([]Operator, error)
	Operator(ctx context.Context, id uuid.UUID) (Operator, error)
	OperatorByName(ctx context.Context, name string) (Operator, error) // any case
	SetOperatorPassword(ctx context.Context, by Actor, id uuid.UUID, hash string) error
	SetOperatorDisabled(ctx context.Context, by Actor, id uuid.UUID, at *time.Time) error
	SetOperatorLocale(ctx context.Context, id uuid.UUID, locale string) error
	CreateToken(ctx context.Context, by Actor, t Token) error
	Tokens(ctx context.Context) ([]Token, error)
	TokenByHash(ctx context.Context, hash []byte) (Token, error)
	RevokeToken(ctx context.Context, by Actor, id uuid.UUID, at time.Time) error
	TouchToken(ctx context.Context, id uuid.UUID, at time.Time) error
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
