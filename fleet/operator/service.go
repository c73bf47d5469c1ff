package operator

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alexedwards/argon2id"
	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"fleetd/fleet"
	"fleetd/fleet/internal/password"
)

// tokenPrefix marks an API token for people and secret scanners.
const tokenPrefix = "flt_"

// MinPassword is the minimum length of an operator's password in bytes.
const MinPassword = 10

// An Operator is a person who may act.
type Operator struct {
	ID           uuid.UUID
	Name         string
	Role         fleet.Role
	Scope        *fleet.Scope // nil: the role applies everywhere
	PasswordHash string       // argon2id
	Locale       string       // "en" or "zh-CN"; "" uses the browser's language
	CreatedAt    time.Time
	DisabledAt   *time.Time
	SignedInAt   *time.Time // latest sign-in; nil before the first
	SignedInFrom string     // address of the latest sign-in
}

// Principal returns the operator as the principal of calls and audit entries.
func (o Operator) Principal() fleet.Principal {
	return fleet.Principal{Kind: fleet.KindOperator, ID: o.ID.String(), Name: o.Name, Role: o.Role, Scope: o.Scope}
}

// A Token is the right of a program or a language model to act. Only the SHA-256 of its
// secret is stored.
type Token struct {
	ID         uuid.UUID
	Name       string
	Kind       fleet.PrincipalKind // KindProgram or KindModel
	Role       fleet.Role
	Scope      *fleet.Scope // nil: the role applies everywhere, for all tools; see [fleet.NewTokenScope]
	PerMinute  int          // maximum requests per minute; 0 for no limit
	Hash       []byte       // SHA-256 of the whole secret "flt_..."
	Hint       string       // last four characters, to distinguish tokens
	CreatedBy  string
	CreatedAt  time.Time
	LastUsedAt *time.Time
	ExpiresAt  *time.Time
	RevokedAt  *time.Time
}

// Principal returns the token as the principal of calls and audit entries.
func (t Token) Principal() fleet.Principal {
	return fleet.Principal{Kind: t.Kind, ID: t.ID.String(), Name: t.Name, Role: t.Role, Scope: t.Scope}
}

// Store stores operators and API tokens.
type Store interface {
	LoginStore
	CreateOperator(ctx context.Context, by fleet.Principal,
		o Operator) error // ErrConflict if the name exists (in any case)
	Operators(ctx context.Context) ([]Operator, error)
	Operator(ctx context.Context, id uuid.UUID) (Operator, error)
	OperatorByName(ctx context.Context, name string) (Operator, error) // any case
	// SetOperatorPassword also ends the operator's logins.
	SetOperatorPassword(ctx context.Context, by fleet.Principal, id uuid.UUID, hash string) error
	// SetOperatorDisabled and SetOperatorAccess refuse (last_admin) a change that would leave
	// no enabled operator who is an admin of the whole fleet. Disabling an operator ends
	// their logins.
	SetOperatorDisabled(ctx context.Context, by fleet.Principal, id uuid.UUID, at *time.Time) error
	SetOperatorAccess(ctx context.Context, by fleet.Principal, id uuid.UUID, role fleet.Role, scope *fleet.Scope) error
	SetOperatorLocale(ctx context.Context, id uuid.UUID, locale string) error
	CreateToken(ctx context.Context, by fleet.Principal, t Token) error
	Tokens(ctx context.Context) ([]Token, error)
	TokenByHash(ctx context.Context, hash []byte) (Token, error)
	RevokeToken(ctx context.Context, by fleet.Principal, id uuid.UUID, at time.Time) error
	TouchToken(ctx context.Context, id uuid.UUID, at time.Time) error
}

var operatorName = regexp.MustCompile(`^[\pL\pN][\pL\pN._@ -]{0,62}$`)

// Service manages operators and API tokens, and authenticates both.
type Service struct {
	store   Store
	now     func() time.Time
	idle    time.Duration // see [Service.EndIdle]
	changes atomic.Int64  // see [Service.Changes]

	mu      sync.RWMutex
	tokens  map[[32]byte]*seenToken // cache of recently used tokens, which saves a read per request
	epoch   int                     // number of revocations; a token read before the latest is not cached
	hashing chan struct{}           // limits concurrent hashing: argon2id needs 19 MiB each time
}

// A seenToken is a cached token with the data that a request needs.
type seenToken struct {
	id      uuid.UUID
	actor   fleet.Principal
	pace    *rate.Limiter // nil for no limit
	expires *time.Time
	revoked bool
	readAt  time.Time
}

// tokenTTL is how long a token that another process revoked can still work.
const tokenTTL = 5 * time.Second

// New returns the service.
func New(store Store) *Service {
	return &Service{store: store, now: func() time.Time { return time.Now().UTC() },
		tokens: make(map[[32]byte]*seenToken), hashing: make(chan struct{}, 2)}
}

// HashPassword returns the argon2id hash of a password, or an error that explains why it is
// too weak for the operator with that name.
func HashPassword(name, secret string) (string, error) {
	if len(secret) < MinPassword || len(secret) > 1000 {
		return "", fleet.Refuse(fleet.ErrInvalid, "weak_password", "least", MinPassword).At("password")
	}
	if why := password.Judge(secret, name); why != password.None {
		return "", fleet.Refuse(fleet.ErrInvalid, "weak_password."+string(why)).At("password")
	}
	return hashPassword(secret)
}

// hashCost is the cost of each password comparison.
var hashCost = argon2id.Params{Memory: 19 << 10, Iterations: 2, Parallelism: 1, SaltLength: 16, KeyLength: 32}

func hashPassword(password string) (string, error) {
	return argon2id.CreateHash(password, &hashCost)
}

// noHash is compared if the name is unknown or disabled, so timing reveals nothing. SignIn
// then refuses whatever the result of the comparison.
var noHash = fmt.Sprintf("$argon2id$v=19$m=%d,t=%d,p=%d$%s$%s", hashCost.Memory, hashCost.Iterations,
	hashCost.Parallelism, noBytes(hashCost.SaltLength), noBytes(hashCost.KeyLength))

func noBytes(n uint32) string { return base64.RawStdEncoding.EncodeToString(make([]byte, n)) }

var errSignIn = fleet.Refuse(fleet.ErrForbidden, "wrong_credentials")

// SignIn returns the operator with this name and password. Its error does not
// reveal whether the name exists.
func (s *Service) SignIn(ctx context.Context, name, password string) (Operator, error) {
	o, err := s.store.OperatorByName(ctx, strings.TrimSpace(name))
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return Operator{}, err
	}
	hash := o.PasswordHash
	if err != nil || o.DisabledAt != nil {
		hash = noHash
	}
	s.hashing <- struct{}{}
	match, cmpErr := argon2id.ComparePasswordAndHash(password, hash)
	<-s.hashing
	if cmpErr != nil {
		return Operator{}, cmpErr
	}
	if !match || hash == noHash {
		return Operator{}, errSignIn
	}
	return o, nil
}

// A Request is a request for a new operator.
type Request struct {
	Name     string
	Password string
	Access
}

// Access is what an operator may do, and on which devices.
type Access struct {
	Role  fleet.Role
	Scope string     // devices to which the role applies, see [fleet.ParseScope]; "" for all
	Rest  fleet.Role // role on all other devices; "" if they do not exist for the operator
}

// scope checks the access and returns its scope.
func (a Access) scope() (*fleet.Scope, error) {
	switch {
	case !a.Role.Valid():
		return nil, fleet.ErrUnknownRole(a.Role)
	case a.Rest != "" && !a.Rest.Valid():
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_role", "value", string(a.Rest)).At("rest")
	case a.Rest != "" && !a.Role.Allows(a.Rest):
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_rest", "rest", a.Rest, "role", a.Role).At("rest")
	}
	return fleet.NewScope(a.Scope, a.Rest, nil)
}

// mayManage returns nil if the principal may create principals and change their rights. A
// principal that is restricted to some tools, or is a language model, may not, since it could
// create one that is not.
func mayManage(p fleet.Principal, act string) error {
	if err := p.May(fleet.RoleAdmin, act); err != nil {
		return err
	}
	if p.Kind.IsModel() || !p.Scope.AllTools() {
		return fleet.Refuse(fleet.ErrForbidden, "forbidden.wider", "act", fleet.Because("act."+act), "actor", p.Name)
	}
	return nil
}

// Create adds an operator.
func (s *Service) Create(ctx context.Context, by fleet.Principal, r Request) (Operator, error) {
	if err := mayManage(by, "add_operator"); err != nil {
		return Operator{}, err
	}
	name := strings.TrimSpace(r.Name)
	if !operatorName.MatchString(name) {
		return Operator{}, fleet.Refuse(fleet.ErrInvalid, "invalid_name.operator").At("name")
	}
	scope, err := r.scope()
	if err != nil {
		return Operator{}, err
	}
	hash, err := HashPassword(name, r.Password)
	if err != nil {
		return Operator{}, err
	}
	o := Operator{ID: uuid.Must(uuid.NewV7()), Name: name, Role: r.Role, Scope: scope, PasswordHash: hash,
		CreatedAt: s.now()}
	return o, s.store.CreateOperator(ctx, by, o)
}

// SetAccess changes an operator's rights from their next request on. Operators cannot change
// their own rights.
func (s *Service) SetAccess(ctx context.Context, by fleet.Principal, id uuid.UUID, a Access) error {
	if err := mayManage(by, "change_access"); err != nil {
		return err
	}
	if by.ID == id.String() {
		return fleet.Refuse(fleet.ErrConflict, "self_access")
	}
	scope, err := a.scope()
	if err != nil {
		return err
	}
	if err := s.store.SetOperatorAccess(ctx, by, id, a.Role, scope); err != nil {
		return err
	}
	s.changes.Add(1)
	return nil
}

// Changes returns the number of changes that this process has made to the rights of operators
// and tokens. Code that caches a principal reads it again if the number has changed.
func (s *Service) Changes() int64 { return s.changes.Load() }

// ErrLastAdmin returns the error for a change that would leave the fleet without an admin.
func ErrLastAdmin(name string) *fleet.Error {
	return fleet.Refuse(fleet.ErrConflict, "last_admin", "name", name)
}

// SetPassword changes a password. An admin may change anyone's, an operator only their own.
func (s *Service) SetPassword(ctx context.Context, by fleet.Principal, id uuid.UUID, password string) error {
	if by.ID != id.String() {
		if err := mayManage(by, "change_password"); err != nil {
			return err
		}
	}
	o, err := s.store.Operator(ctx, id)
	if err != nil {
		return err
	}
	hash, err := HashPassword(o.Name, password)
	if err != nil {
		return err
	}
	if err := s.store.SetOperatorPassword(ctx, by, id, hash); err != nil {
		return err
	}
	s.changes.Add(1)
	return nil
}

// SetDisabled disables an operator or enables them again. Operators cannot disable
// themselves.
func (s *Service) SetDisabled(ctx context.Context, by fleet.Principal, id uuid.UUID, disabled bool) error {
	if err := mayManage(by, "disable_operator"); err != nil {
		return err
	}
	if disabled && by.ID == id.String() {
		return fleet.Refuse(fleet.ErrConflict, "self_disable")
	}
	var at *time.Time
	if disabled {
		now := s.now()
		at = &now
	}
	if err := s.store.SetOperatorDisabled(ctx, by, id, at); err != nil {
		return err
	}
	s.changes.Add(1)
	return nil
}

// SetLocale stores the language that an operator has chosen.
func (s *Service) SetLocale(ctx context.Context, by fleet.Principal, id uuid.UUID, locale string) error {
	if by.ID != id.String() {
		return fleet.Refuse(fleet.ErrForbidden, "forbidden.locale", "actor", by.Name)
	}
	return s.store.SetOperatorLocale(ctx, id, locale)
}

// Operator returns one operator, or [fleet.ErrNotFound].
func (s *Service) Operator(ctx context.Context, id uuid.UUID) (Operator, error) {
	return s.store.Operator(ctx, id)
}

// ByName returns the operator with the name in any case, or [fleet.ErrNotFound].
func (s *Service) ByName(ctx context.Context, name string) (Operator, error) {
	return s.store.OperatorByName(ctx, name)
}

// Operators returns all operators, including disabled ones.
func (s *Service) Operators(ctx context.Context) ([]Operator, error) { return s.store.Operators(ctx) }

// Tokens returns all API tokens, including expired and revoked ones, without secrets.
func (s *Service) Tokens(ctx context.Context) ([]Token, error) { return s.store.Tokens(ctx) }

// A TokenRequest is a request for a new API token.
type TokenRequest struct {
	Name      string
	Kind      fleet.PrincipalKind // KindProgram (default) or KindModel
	Role      fleet.Role
	Scope     string     // devices that exist for the token, see [fleet.ParseScope]; "" for all
	Tools     []string   // patterns of tools that it may call, "*" for all; nil: all for a program, none for a model
	PerMinute int        // maximum requests per minute; 0 for no limit
	ExpiresAt *time.Time // nil for no expiry
}

// MaxTokenPerMinute is the highest rate limit that a token can have.
const MaxTokenPerMinute = 100_000

// NewToken creates an API token and returns its secret, which is shown only once and never
// stored.
func (s *Service) NewToken(ctx context.Context, by fleet.Principal, r TokenRequest) (Token, string, error) {
	if err := mayManage(by, "make_token"); err != nil {
		return Token{}, "", err
	}
	t, err := r.token()
	if err != nil {
		return Token{}, "", err
	}
	secret := tokenPrefix + randomSecret()
	hash := sha256.Sum256([]byte(secret))
	t.Hash, t.Hint, t.CreatedBy, t.CreatedAt = hash[:], secret[len(secret)-4:], by.Name, s.now()
	return t, secret, s.store.CreateToken(ctx, by, t)
}

func (r TokenRequest) token() (Token, error) {
	name, err := fleet.CleanLine("name", r.Name, fleet.MaxNameLength)
	if err != nil || name == "" {
		return Token{}, fleet.Refuse(fleet.ErrInvalid, "invalid_name.token").At("name")
	}
	kind := cmp.Or(r.Kind, fleet.KindProgram)
	switch {
	case kind != fleet.KindProgram && kind != fleet.KindModel:
		return Token{}, fleet.Refuse(fleet.ErrInvalid, "invalid_token_kind", "value", string(kind)).At("kind")
	case !r.Role.Valid():
		return Token{}, fleet.ErrUnknownRole(r.Role)
	case r.PerMinute < 0 || r.PerMinute > MaxTokenPerMinute:
		return Token{}, fleet.Refuse(fleet.ErrInvalid, "invalid_per_minute", "limit", MaxTokenPerMinute).At("per_minute")
	}
	scope, err := fleet.NewTokenScope(kind, r.Scope, r.Tools)
	if err != nil {
		return Token{}, err
	}
	return Token{ID: uuid.Must(uuid.NewV7()), Name: name, Kind: kind, Role: r.Role, Scope: scope, PerMinute: r.PerMinute,
		ExpiresAt: r.ExpiresAt}, nil
}

// randomSecret returns 32 random bytes as URL-safe text.
func randomSecret() string {
	b := make([]byte, 32)
	rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

var errToken = fleet.Refuse(fleet.ErrForbidden, "invalid_token")

// Authenticate returns the principal of an API token. It counts as one request and returns
// [fleet.ErrTooMany] if the request exceeds the token's limit.
func (s *Service) Authenticate(ctx context.Context, secret string) (fleet.Principal, error) {
	if !strings.HasPrefix(secret, tokenPrefix) || len(secret) > 200 {
		return fleet.Principal{}, errToken
	}
	now := s.now()
	t, err := s.token(ctx, sha256.Sum256([]byte(secret)), now)
	if errors.Is(err, fleet.ErrNotFound) {
		return fleet.Principal{}, errToken
	}
	if err != nil {
		return fleet.Principal{}, err
	}
	if t.revoked || (t.expires != nil && !now.Before(*t.expires)) {
		return fleet.Principal{}, errToken
	}
	if t.pace != nil && !t.pace.AllowN(now, 1) {
		return fleet.Principal{}, fleet.Refuse(fleet.ErrTooMany, "token_rate", "limit", t.pace.Burst())
	}
	return t.actor, nil
}

func (s *Service) token(ctx context.Context, hash [32]byte, now time.Time) (*seenToken, error) {
	s.mu.RLock()
	seen, epoch := s.tokens[hash], s.epoch
	s.mu.RUnlock()
	if seen != nil && now.Sub(seen.readAt) < tokenTTL {
		return seen, nil
	}
	return s.readToken(ctx, hash, now, epoch)
}

// readToken reads a token and caches it, unless a token was revoked since epoch: it may have
// been this one.
func (s *Service) readToken(ctx context.Context, hash [32]byte, now time.Time, epoch int) (*seenToken, error) {
	t, err := s.store.TokenByHash(ctx, hash[:])
	if err != nil {
		return nil, err
	}
	if t.LastUsedAt == nil || now.Sub(*t.LastUsedAt) > time.Minute {
		if err := s.store.TouchToken(ctx, t.ID, now); err != nil {
			return nil, err
		}
	}
	seen := &seenToken{id: t.ID, actor: t.Principal(), expires: t.ExpiresAt, revoked: t.RevokedAt != nil, readAt: now}
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.tokens[hash]; before != nil {
		seen.pace = before.pace
	} else if t.PerMinute > 0 {
		seen.pace = rate.NewLimiter(rate.Limit(float64(t.PerMinute)/60), t.PerMinute)
	}
	if s.epoch == epoch {
		if len(s.tokens) > 1000 {
			// Keep tokens with a used-up limit: dropping them would reset it.
			maps.DeleteFunc(s.tokens, func(_ [32]byte, t *seenToken) bool {
				return t.pace == nil || t.pace.TokensAt(now) >= float64(t.pace.Burst())
			})
		}
		s.tokens[hash] = seen
	}
	return seen, nil
}

// Revoke revokes a token at once.
func (s *Service) Revoke(ctx context.Context, by fleet.Principal, id uuid.UUID) error {
	if err := by.May(fleet.RoleAdmin, "revoke_token"); err != nil {
		return err
	}
	if err := s.store.RevokeToken(ctx, by, id, s.now()); err != nil {
		return err
	}
	s.changes.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	maps.DeleteFunc(s.tokens, func(_ [32]byte, t *seenToken) bool { return t.id == id })
	return nil
}
