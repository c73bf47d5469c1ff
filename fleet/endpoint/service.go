package endpoint

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/internal/table"
)

// Store stores endpoints. It audits each change.
type Store interface {
	Endpoints(ctx context.Context) ([]Endpoint, error) // by name
	// CreateEndpoint stores an endpoint, or fails with [fleet.ErrConflict] if its name is taken.
	CreateEndpoint(ctx context.Context, by fleet.Principal, e Endpoint) error
	// UpdateEndpoint replaces the endpoint whose version is one less, or fails with
	// [fleet.ErrConflict] if the version in the database is another.
	UpdateEndpoint(ctx context.Context, by fleet.Principal, act Act, e Endpoint) error
	DeleteEndpoint(ctx context.Context, by fleet.Principal, name string) error
}

// An Act is a change of an endpoint in the audit.
type Act string

const (
	ActUpdate Act = "endpoint.update"
	ActIssue  Act = "endpoint.issue"
	ActRevoke Act = "endpoint.revoke"
)

// A Runner holds the connections of endpoints.
type Runner interface {
	// ApplyEndpoints makes the runner accept connections of these endpoints and no others. It
	// ends connections whose token is no longer valid before it returns.
	ApplyEndpoints([]Endpoint)
	EndpointStatus(name string) Status
}

// Options configures [Service]. All fields but Log and Now are required.
type Options struct {
	Store  Store
	Runner Runner
	Log    *slog.Logger
	Now    func() time.Time
}

// Service manages endpoints. All its methods with a principal require an administrator of the
// whole fleet.
type Service struct {
	o     Options
	table *table.Table[known]
}

// known is the table in memory.
type known struct {
	list   []Endpoint // by name
	tokens map[TokenKind]map[Hash]int
}

// New returns the service. Call Load before using it.
func New(o Options) *Service {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
	}
	s := &Service{o: o}
	s.table = table.New(table.Options[known]{Read: s.read, What: "endpoints", Log: o.Log,
		Changed: func() { o.Runner.ApplyEndpoints(s.table.State().list) }})
	return s
}

func (s *Service) read(ctx context.Context, _ *known) (*known, error) {
	list, err := s.o.Store.Endpoints(ctx)
	if err != nil {
		return nil, err
	}
	k := &known{list: list, tokens: map[TokenKind]map[Hash]int{Provider: {}, Consumer: {}}}
	for i := range list {
		for _, kind := range TokenKinds {
			if t := list[i].Token(kind); t.Exists() {
				k.tokens[kind][t.Hash] = i
			}
		}
	}
	return k, nil
}

// Load reads the endpoints.
func (s *Service) Load(ctx context.Context) error { return s.table.Load(ctx) }

// Run follows the database until ctx ends.
func (s *Service) Run(ctx context.Context) error { return s.table.Run(ctx) }

// Errors of [Service.Authenticate].
var (
	ErrToken    = errors.New("unknown or revoked token")
	ErrDisabled = errors.New("the endpoint is disabled")
)

// Authenticate returns the endpoint to which a secret of a kind belongs. It reads no database: a
// flood of wrong tokens costs only hashes.
func (s *Service) Authenticate(kind TokenKind, secret string) (Endpoint, error) {
	k := s.table.State()
	i, found := k.tokens[kind][sha256.Sum256([]byte(secret))]
	if !found || !strings.HasPrefix(secret, prefixes[kind]) {
		return Endpoint{}, ErrToken
	}
	if k.list[i].Disabled {
		return Endpoint{}, ErrDisabled
	}
	return k.list[i], nil
}

// Defines reports whether an endpoint has this device.
func (s *Service) Defines(id fleet.DeviceID) bool {
	return slices.ContainsFunc(s.table.State().list, func(e Endpoint) bool { return e.Device() == id })
}

// OfferedToVoice returns the devices of the endpoints whose tools the voice servers' models get,
// also of those that are not connected, in order of their names.
func (s *Service) OfferedToVoice() (ids []fleet.DeviceID) {
	for _, e := range s.table.State().list {
		if e.OfferToVoice && e.Audience != fleet.AudienceUser && !e.Disabled {
			ids = append(ids, e.Device())
		}
	}
	return ids
}

// A Listed is an endpoint with its connections.
type Listed struct {
	Endpoint
	Status
}

// List returns all endpoints by name.
func (s *Service) List(by fleet.Principal) ([]Listed, error) {
	if err := may(by); err != nil {
		return nil, err
	}
	var list []Listed
	for _, e := range s.table.State().list {
		list = append(list, Listed{e, s.o.Runner.EndpointStatus(e.Name)})
	}
	return list, nil
}

func may(by fleet.Principal) error { return by.May(fleet.RoleAdmin, "endpoints") }

// Endpoint returns one endpoint.
func (s *Service) Endpoint(by fleet.Principal, name string) (Listed, error) {
	if err := may(by); err != nil {
		return Listed{}, err
	}
	e, ok := find(s.table.State(), name)
	if !ok {
		return Listed{}, unknown(name)
	}
	return Listed{e, s.o.Runner.EndpointStatus(name)}, nil
}

func find(k *known, name string) (Endpoint, bool) {
	for _, e := range k.list {
		if e.Name == name {
			e.Tools = slices.Clone(e.Tools)
			return e, true
		}
	}
	return Endpoint{}, false
}

func unknown(name string) error {
	return fleet.Refuse(fleet.ErrNotFound, "unknown_endpoint", "endpoint", name)
}

// Create adds an endpoint, and returns the secret of its provider.
func (s *Service) Create(ctx context.Context, by fleet.Principal, name string, settings Settings) (Listed, string,
	error) {
	if err := may(by); err != nil {
		return Listed{}, "", err
	}
	if !namePattern.MatchString(name) {
		return Listed{}, "", fleet.Refuse(fleet.ErrInvalid, "endpoint_name", "value", fleet.CleanText(name, 80)).At("name")
	}
	if err := settings.Check(); err != nil {
		return Listed{}, "", err
	}
	now := s.o.Now()
	e := Endpoint{Name: name, Settings: settings, Version: 1, CreatedAt: now, UpdatedBy: by.Name, UpdatedAt: now}
	var secret string
	e.Provider, secret = newToken(Provider, by.Name, now)
	err := s.table.Change(ctx, 0, func(k *known) error {
		if _, taken := find(k, name); taken {
			return fleet.Refuse(fleet.ErrConflict, "endpoint_exists", "endpoint", name).At("name")
		}
		if len(k.list) >= maxEndpoints {
			return fleet.Refuse(fleet.ErrConflict, "too_many_endpoints", "limit", maxEndpoints)
		}
		return s.o.Store.CreateEndpoint(ctx, by, e)
	})
	if err != nil {
		return Listed{}, "", err
	}
	listed, err := s.Endpoint(by, name)
	return listed, secret, err
}

// Update changes the settings of an endpoint. version is the version that the editor saw; 0
// changes whatever is current.
func (s *Service) Update(ctx context.Context, by fleet.Principal, name string, version int64,
	change func(*Settings)) (Listed, error) {
	return s.change(ctx, by, ActUpdate, name, version, func(e *Endpoint) error {
		change(&e.Settings)
		return e.Check()
	})
}

// Issue makes a new token of a kind and returns its secret. The token before it is no longer
// valid, and the connections that were made with it end. version is as of [Service.Update].
func (s *Service) Issue(ctx context.Context, by fleet.Principal, name string, version int64, kind TokenKind) (Listed,
	string, error) {
	var secret string
	listed, err := s.change(ctx, by, ActIssue, name, version, func(e *Endpoint) error {
		if err := checkKind(kind); err != nil {
			return err
		}
		*e.Token(kind), secret = newToken(kind, by.Name, s.o.Now())
		return nil
	})
	return listed, secret, err
}

func checkKind(kind TokenKind) error {
	if !slices.Contains(TokenKinds, kind) {
		return fleet.Refuse(fleet.ErrInvalid, "endpoint_token_kind", "value", string(kind)).At("kind")
	}
	return nil
}

// Revoke removes the token of a kind. The connections that were made with it end. version is as of
// [Service.Update].
func (s *Service) Revoke(ctx context.Context, by fleet.Principal, name string, version int64, kind TokenKind) (Listed,
	error) {
	return s.change(ctx, by, ActRevoke, name, version, func(e *Endpoint) error {
		if err := checkKind(kind); err != nil {
			return err
		}
		*e.Token(kind) = Token{}
		return nil
	})
}

func (s *Service) change(ctx context.Context, by fleet.Principal, act Act, name string, version int64,
	do func(*Endpoint) error) (Listed, error) {
	if err := may(by); err != nil {
		return Listed{}, err
	}
	err := s.table.Change(ctx, 0, func(k *known) error {
		e, ok := find(k, name)
		if !ok {
			return unknown(name)
		}
		if version != 0 && version != e.Version {
			return fleet.Refuse(fleet.ErrConflict, "endpoint_changed", "endpoint", name, "version", e.Version).At("version")
		}
		if err := do(&e); err != nil {
			return err
		}
		e.Version++
		e.UpdatedBy, e.UpdatedAt = by.Name, s.o.Now()
		return s.o.Store.UpdateEndpoint(ctx, by, act, e)
	})
	if err != nil {
		return Listed{}, err
	}
	return s.Endpoint(by, name)
}

// Delete removes an endpoint. Its connections end and its device is retired.
func (s *Service) Delete(ctx context.Context, by fleet.Principal, name string) error {
	if _, err := s.Endpoint(by, name); err != nil {
		return err
	}
	return s.table.Change(ctx, 0, func(*known) error { return s.o.Store.DeleteEndpoint(ctx, by, name) })
}
