package redaction

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/internal/table"
	"fleetd/internal/jsonscan"
)

// A Store stores the rules. Each change is stored with its audit entry, and the next version of the table.
// It returns [fleet.ErrConflict] if the table has another version by now.
type Store interface {
	Redactions(ctx context.Context) (rules []Rule, version int64, err error) // by tool and path
	RedactionVersion(ctx context.Context) (int64, error)
	CreateRedaction(ctx context.Context, by fleet.Principal, version int64, r Rule) error
	UpdateRedaction(ctx context.Context, by fleet.Principal, version int64, before, r Rule) error
	DeleteRedaction(ctx context.Context, by fleet.Principal, version int64, r Rule) error
}

// A Sealer encrypts what the database keeps for a while.
type Sealer interface {
	Seal(name string, text []byte) []byte
	Open(name string, sealed []byte) ([]byte, error)
}

// Options configures a [Service]. Log and Now have defaults.
type Options struct {
	Store  Store
	Sealer Sealer
	Secret []byte // of the server
	Log    *slog.Logger
	Now    func() time.Time
}

// A Service keeps the rules, and applies them. With a nil Service nothing is redacted.
type Service struct {
	o        Options
	digester Digester
	table    *table.Table[rules]
}

// rules are the rules of one version of the table.
type rules struct {
	version int64
	list    []Rule
	set     *Set
}

// New returns the service. Call Load before the first call is made.
func New(o Options) (*Service, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() }
	}
	s := &Service{o: o}
	var err error
	if s.digester, err = NewDigester(o.Secret); err != nil {
		return nil, err
	}
	s.table = table.New(table.Options[rules]{Read: s.read, Version: o.Store.RedactionVersion,
		VersionOf: func(r *rules) int64 { return r.version }, What: "redaction rules", Log: o.Log})
	return s, nil
}

// Load reads the rules.
func (s *Service) Load(ctx context.Context) error { return s.table.Load(ctx) }

// Run reads the rules again when another process has changed them, until ctx ends.
func (s *Service) Run(ctx context.Context) error { return s.table.Run(ctx) }

func (s *Service) read(ctx context.Context, _ *rules) (*rules, error) {
	list, version, err := s.o.Store.Redactions(ctx)
	if err != nil {
		return nil, err
	}
	set, err := Compile(s.digester, list)
	return &rules{version, list, set}, err
}

// Redact returns the arguments of a call as records store them, and the digests in them; see [Set.Redact].
func (s *Service) Redact(tool string, arguments json.RawMessage) (shown json.RawMessage, digests []string) {
	if s == nil {
		return arguments, nil
	}
	return s.table.State().set.Redact(tool, arguments)
}

// Restore puts true values in the place of digests; see [Set.Restore].
func (s *Service) Restore(tool string, arguments, real json.RawMessage) (json.RawMessage, bool) {
	if s == nil {
		return nil, false
	}
	return s.table.State().set.Restore(tool, arguments, real)
}

// Seal encrypts arguments that have to be sent later, for the thing with the id alone.
func (s *Service) Seal(id uuid.UUID, arguments json.RawMessage) []byte {
	return s.o.Sealer.Seal(place(id), arguments)
}

// Open decrypts arguments that Seal encrypted.
func (s *Service) Open(id uuid.UUID, sealed []byte) (json.RawMessage, error) {
	if s == nil {
		return nil, fleet.Refuse(fleet.ErrConflict, "arguments_unreadable")
	}
	text, err := s.o.Sealer.Open(place(id), sealed)
	if err != nil {
		s.o.Log.Error("sealed arguments cannot be read", "of", id, "err", err)
		return nil, fleet.Refuse(fleet.ErrConflict, "arguments_unreadable")
	}
	return text, nil
}

func place(id uuid.UUID) string { return "arguments/" + id.String() }

func may(by fleet.Principal) error { return by.May(fleet.RoleAdmin, "manage_redaction") }

// List returns the rules, by tool and path.
func (s *Service) List(by fleet.Principal) ([]Rule, error) {
	if err := may(by); err != nil {
		return nil, err
	}
	return s.table.State().list, nil
}

// Get returns one rule.
func (s *Service) Get(by fleet.Principal, id uuid.UUID) (Rule, error) {
	if err := may(by); err != nil {
		return Rule{}, err
	}
	return s.table.State().rule(id)
}

func (r *rules) rule(id uuid.UUID) (Rule, error) {
	i := slices.IndexFunc(r.list, func(r Rule) bool { return r.ID == id })
	if i < 0 {
		return Rule{}, fleet.Refuse(fleet.ErrNotFound, "unknown_redaction.id", "id", id)
	}
	return r.list[i], nil
}

// Create adds a rule. It applies to all calls from its return on.
func (s *Service) Create(ctx context.Context, by fleet.Principal, r Rule) (Rule, error) {
	if err := may(by); err != nil {
		return Rule{}, err
	}
	if err := r.Clean(); err != nil {
		return Rule{}, err
	}
	now := s.o.Now()
	r.ID, r.Revision = uuid.Must(uuid.NewV7()), 1
	r.CreatedBy, r.CreatedAt, r.UpdatedBy, r.UpdatedAt = by.Name, now, by.Name, now
	err := s.table.Change(ctx, 0, func(now *rules) error {
		if len(now.list) >= MaxRules {
			return fleet.Refuse(fleet.ErrConflict, "too_many_redactions", "limit", MaxRules)
		}
		if err := now.unique(r); err != nil {
			return err
		}
		return s.o.Store.CreateRedaction(ctx, by, now.version, r)
	})
	return r, err
}

// unique refuses a second rule for the same values.
func (r *rules) unique(rule Rule) error {
	same := func(o Rule) bool { return o.ID != rule.ID && o.Tool == rule.Tool && o.Path == rule.Path }
	if slices.ContainsFunc(r.list, same) {
		return fleet.Refuse(fleet.ErrConflict, "redaction_exists", "tool", rule.Tool, "path", rule.Path)
	}
	return nil
}

// A Change changes a rule. Nil fields stay unchanged.
type Change struct {
	Tool, Path, Note *string
	Revision         int64 // that the editor saw; 0: any
}

// Update changes a rule. The new form applies to all calls from its return on.
func (s *Service) Update(ctx context.Context, by fleet.Principal, id uuid.UUID, c Change) (Rule, error) {
	if err := may(by); err != nil {
		return Rule{}, err
	}
	var r Rule
	err := s.table.Change(ctx, 0, func(now *rules) error {
		before, err := now.current(id, c.Revision)
		if err != nil {
			return err
		}
		r = before
		for _, field := range []struct{ given, to *string }{{c.Tool, &r.Tool}, {c.Path, &r.Path}, {c.Note, &r.Note}} {
			if field.given != nil {
				*field.to = *field.given
			}
		}
		if err := r.Clean(); err != nil {
			return err
		}
		if err := now.unique(r); err != nil {
			return err
		}
		r.Revision, r.UpdatedBy, r.UpdatedAt = before.Revision+1, by.Name, s.o.Now()
		return s.o.Store.UpdateRedaction(ctx, by, now.version, before, r)
	})
	return r, err
}

// current returns the rule if it has the revision.
func (r *rules) current(id uuid.UUID, revision int64) (Rule, error) {
	rule, err := r.rule(id)
	if err == nil && revision != 0 && revision != rule.Revision {
		err = fleet.Refuse(fleet.ErrConflict, "redaction_changed", "revision", rule.Revision).At("revision")
	}
	return rule, err
}

// Delete removes a rule. Later calls are stored with their values.
func (s *Service) Delete(ctx context.Context, by fleet.Principal, id uuid.UUID, revision int64) error {
	if err := may(by); err != nil {
		return err
	}
	return s.table.Change(ctx, 0, func(now *rules) error {
		r, err := now.current(id, revision)
		if err != nil {
			return err
		}
		return s.o.Store.DeleteRedaction(ctx, by, now.version, r)
	})
}

// Digest returns the digest of a value, to search for. The value is neither stored nor logged.
func (s *Service) Digest(by fleet.Principal, value json.RawMessage) (string, error) {
	if err := may(by); err != nil {
		return "", err
	}
	if len(value) > maxSize || jsonscan.Check(value, maxDepth) != nil {
		return "", fleet.Refuse(fleet.ErrInvalid, "invalid_redaction_value", "limit", maxDepth).At("value")
	}
	return s.digester.Digest(value), nil
}

// Redacts reports whether arguments have values under a rule, or digests instead of them.
func (s *Service) Redacts(tool string, arguments json.RawMessage) bool {
	_, digests := s.Redact(tool, arguments)
	return len(digests) > 0 || Contains(arguments)
}
