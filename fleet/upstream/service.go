package upstream

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/internal/table"
)

// A Sealer encrypts the secrets in the database.
type Sealer interface {
	Seal(name string, key []byte) []byte
	Open(name string, sealed []byte) ([]byte, error)
}

// A Link reports the health of voice servers.
type Link interface {
	// UpstreamHealth returns the health since changed.
	UpstreamHealth(id uuid.UUID, changed time.Time) Health
	// CheckUpstream exchanges hellos with a voice server within some seconds.
	CheckUpstream(ctx context.Context, c Choice) Check
}

// Options configures [Service]. Store, Sealer, Targets and Link are required.
type Options struct {
	Store   Store
	Sealer  Sealer
	Targets *fleet.Targets
	Link    Link

	// Fixed is the voice server given on the command line, with its secret; nil if none. It
	// is always last.
	Fixed *Choice
	// Changed, if set, is called after the table changed.
	Changed func()

	Log *slog.Logger
	Now func() time.Time // default: time.Now, in UTC
}

// Service manages the voice servers of the fleet in their order. It has them in memory;
// choosing one for a device reads only the device.
type Service struct {
	o Options

	table *table.Table[servers]
}

// servers is the table of voice servers in their order.
type servers struct {
	version int64
	stored  int // number of entries from the store; they come first
	entries []entry
	queries bool // an enabled entry has a device query
}

type entry struct {
	Choice
	query fleet.Query
	bad   bool   // its query is invalid, so it matches no device
	past  Health // health before fleetd started
}

// A Choice is the voice server chosen for a device.
type Choice struct {
	Server
	Key string // the unsealed secret; "" if none
}

// New returns the service. Call Load before using it.
func New(o Options) *Service {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() }
	}
	if o.Fixed != nil {
		fixed := *o.Fixed
		fixed.ID, fixed.Fixed, fixed.Enabled, fixed.Kind, fixed.Tools = FixedID, true, true, WebSocket, true
		o.Fixed = &fixed
	}
	s := &Service{o: o}
	s.table = table.New(table.Options[servers]{Read: s.read, Version: o.Store.UpstreamVersion, Stale: stale,
		Changed:   o.Changed,
		VersionOf: func(t *servers) int64 { return t.version }, What: "voice servers", Log: o.Log})
	return s
}

// Load reads the table.
func (s *Service) Load(ctx context.Context) error { return s.table.Load(ctx) }

// Run reloads the table when another process has changed it, until ctx ends.
func (s *Service) Run(ctx context.Context) error { return s.table.Run(ctx) }

func (s *Service) read(ctx context.Context, before *servers) (*servers, error) {
	list, version, err := s.o.Store.Upstreams(ctx)
	if err != nil {
		return nil, err
	}
	t := &servers{version: version, stored: len(list)}
	for _, u := range list {
		e := entry{Choice: Choice{Server: u}}
		if u.Secret != nil {
			key, err := s.o.Sealer.Open(sealedUpstream(u.ID), u.Secret)
			if err != nil {
				s.o.Log.Error("cannot unseal the secret of a voice server: it was sealed with another secret key; set it again",
					"upstream", u.Name)
			}
			e.Key = string(key)
		}
		if e.query, err = fleet.ParseQuery(u.Devices); err != nil {
			s.o.Log.Error("invalid device query of a voice server", "upstream", u.Name, "err", err)
			e.bad = true
		}
		t.queries = t.queries || u.Enabled && !e.query.Empty()
		t.entries = append(t.entries, e)
	}
	if f := s.o.Fixed; f != nil {
		last := entry{Choice: *f}
		last.Position = len(t.entries)
		t.entries = append(t.entries, last)
	}
	return t, s.recall(ctx, t, before)
}

// recall fills in the health from before fleetd started: in the first table from the records
// of conversations, in later ones from the previous table.
func (s *Service) recall(ctx context.Context, t, known *servers) error {
	for i := range t.entries {
		e := &t.entries[i]
		switch {
		case e.Kind == None:
		case known == nil:
			page, err := s.o.Store.Conversations(ctx, fleet.ConversationFilter{Upstream: e.Name, Since: e.UpdatedAt,
				Limit: fleet.MaxLimit})
			if err != nil {
				return err
			}
			e.past = healthFrom(page.Items)
		default:
			if old := known.entry(e.ID); old != nil && old.UpdatedAt.Equal(e.UpdatedAt) {
				e.past = old.past
			}
		}
	}
	return nil
}

func sealedUpstream(id uuid.UUID) string { return "upstream/" + id.String() }

// Any reports whether any device could have a voice server.
func (s *Service) Any() bool {
	return slices.ContainsFunc(s.table.State().entries, func(e entry) bool {
		return e.Enabled && e.Kind != None
	})
}

// States returns all voice servers in their order, with their health. It reads only memory.
func (s *Service) States() []State {
	t := s.table.State()
	all := make([]State, len(t.entries))
	for i := range t.entries {
		all[i] = s.state(&t.entries[i])
	}
	return all
}

func (s *Service) state(e *entry) State {
	return State{e.Server, s.o.Link.UpstreamHealth(e.ID, e.UpdatedAt).after(e.past)}
}

// Version returns the version of the table.
func (s *Service) Version() int64 { return s.table.State().version }

// Choose returns the voice server of a device, or false if it has none. While the store is
// unavailable, Choose uses the cached device.
func (s *Service) Choose(ctx context.Context, id fleet.DeviceID) (Choice, bool) {
	t := s.table.State()
	subject := &subject{device: fleet.Device{ID: id}}
	if t.queries {
		subject = s.subject(ctx, id)
	}
	now := s.o.Now()
	for i := range t.entries {
		if e := &t.entries[i]; e.fits(subject, now) {
			return e.Choice, e.Kind != None
		}
	}
	return Choice{}, false
}

// A subject is a device for which a voice server is chosen.
type subject struct {
	device fleet.Device
	offers fleet.ToolSet
}

func (s *Service) subject(ctx context.Context, id fleet.DeviceID) *subject {
	known, err := s.o.Targets.Get(ctx, id, s.o.Now())
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		known = s.o.Targets.Latest(id)
	}
	if known == nil { // the device is not stored yet
		return &subject{device: fleet.Device{ID: id}}
	}
	return &subject{known.Device, known.Offers}
}

func (e *entry) fits(s *subject, now time.Time) bool {
	return e.Enabled && !e.bad && (e.query.Empty() || e.query.Selects(&s.device, s.offers, now))
}

// A Step is the result for one voice server when a device's server is chosen.
type Step struct {
	Upstream Server
	Outcome  Outcome
	Term     string // term of the query that excludes the device
}

// An Outcome is why a voice server is or is not the device's server.
type Outcome string

const (
	Chosen   Outcome = "chosen"
	Disabled Outcome = "disabled"
	Unfit    Outcome = "unfit" // the device does not match its query
	Later    Outcome = "later" // an earlier server is chosen
)

// Outcomes lists every outcome.
var Outcomes = []Outcome{Chosen, Disabled, Unfit, Later}

// A Match is the voice server that a device gets at its next conversation, and the steps that
// led to it.
type Match struct {
	Device   fleet.Device
	Upstream *Server  // nil if none matches
	Account  *Account // at a voice server of kind OTA; nil if its OTA address has not answered yet
	Steps    []Step
}

// Match returns the voice server that a device gets, and why.
func (s *Service) Match(ctx context.Context, by fleet.Principal, id fleet.DeviceID) (Match, error) {
	if err := by.May(fleet.RoleViewer, "read_upstreams"); err != nil {
		return Match{}, err
	}
	known, err := s.o.Targets.Get(ctx, id, s.o.Now())
	if errors.Is(err, fleet.ErrNotFound) || err == nil && !by.Sees(known.Device) {
		return Match{}, fleet.Refuse(fleet.ErrNotFound, "unknown_device", "device", id)
	}
	if err != nil {
		return Match{}, err
	}
	m, now := Match{Device: known.Device}, s.o.Now()
	subject := &subject{known.Device, known.Offers}
	t := s.table.State()
	for i := range t.entries {
		e := &t.entries[i]
		step := Step{Upstream: e.Server, Outcome: Later}
		switch {
		case !e.Enabled:
			step.Outcome = Disabled
		case m.Upstream != nil:
		case e.fits(subject, now):
			step.Outcome, m.Upstream = Chosen, &e.Server
		default:
			step.Outcome = Unfit
			step.Term, _ = e.query.Match(known.Device, known.Offers, now)
		}
		m.Steps = append(m.Steps, step)
	}
	m.Account, err = s.account(ctx, m.Upstream, id)
	return m, err
}

// OfDevice returns the voice server of a device and its account there, or nil if it has none.
// The caller must be allowed to see the device. A server of kind none counts as none.
func (s *Service) OfDevice(ctx context.Context, id fleet.DeviceID) (*Server, *Account, error) {
	c, ok := s.Choose(ctx, id)
	if !ok {
		return nil, nil, nil
	}
	a, err := s.account(ctx, &c.Server, id)
	return &c.Server, a, err
}

func (s *Service) account(ctx context.Context, u *Server, id fleet.DeviceID) (*Account, error) {
	if u == nil || u.Kind != OTA {
		return nil, nil
	}
	a, err := s.o.Store.UpstreamAccount(ctx, u.ID, id)
	switch {
	case errors.Is(err, fleet.ErrNotFound), err == nil && a.OTAURL != u.URL:
		return nil, nil
	case err != nil:
		return nil, err
	}
	a.URL = withoutValues(a.URL)
	return &a, nil
}

// List returns all voice servers in their order, and the version of the table. Only
// administrators see the query values of the addresses.
func (s *Service) List(by fleet.Principal) ([]State, int64, error) {
	if err := by.May(fleet.RoleViewer, "read_upstreams"); err != nil {
		return nil, 0, err
	}
	states := s.States()
	for i := range states {
		states[i].shownTo(by)
	}
	return states, s.Version(), nil
}

func (s *State) shownTo(by fleet.Principal) {
	if !by.FleetRole().Allows(fleet.RoleAdmin) {
		s.URL = withoutValues(s.URL)
	}
}

// Upstream returns one voice server, as List shows it.
func (s *Service) Upstream(by fleet.Principal, id uuid.UUID) (State, error) {
	if err := by.May(fleet.RoleViewer, "read_upstreams"); err != nil {
		return State{}, err
	}
	e := s.table.State().entry(id)
	if e == nil {
		return State{}, errUnknownUpstream(id)
	}
	state := s.state(e)
	state.shownTo(by)
	return state, nil
}

// Check tries a voice server now. A failure is a result, not an error.
func (s *Service) Check(ctx context.Context, by fleet.Principal, id uuid.UUID) (Check, error) {
	if err := by.May(fleet.RoleAdmin, "manage_upstreams"); err != nil {
		return Check{}, err
	}
	e := s.table.State().entry(id)
	switch {
	case e == nil:
		return Check{}, errUnknownUpstream(id)
	case e.Kind == None:
		return Check{}, fleet.Refuse(fleet.ErrInvalid, "upstream_is_none", "name", e.Name)
	}
	return s.o.Link.CheckUpstream(ctx, e.Choice), nil
}

func (t *servers) entry(id uuid.UUID) *entry {
	i := slices.IndexFunc(t.entries, func(e entry) bool { return e.ID == id })
	if i < 0 {
		return nil
	}
	return &t.entries[i]
}

func errUnknownUpstream(id uuid.UUID) error {
	return fleet.Refuse(fleet.ErrNotFound, "unknown_upstream.id", "id", id)
}

// A Change changes a voice server; nil fields stay unchanged.
type Change struct {
	Name    *string
	Kind    *Kind
	URL     *string
	Auth    *Auth
	Secret  *string // "" leaves it unchanged
	Devices *string
	Tools   *bool
	Enabled *bool
}

// apply changes the fields. It never sends a token to a server other than the one that it was
// entered for.
func (s *Service) apply(u *Server, c Change) error {
	origin, auth := u.origin(), u.Auth
	for to, from := range map[*string]*string{&u.Name: c.Name, &u.URL: c.URL, &u.Devices: c.Devices} {
		if from != nil {
			*to = *from
		}
	}
	if c.Kind != nil {
		u.Kind = *c.Kind
	}
	if c.Auth != nil {
		u.Auth = *c.Auth
	}
	for to, from := range map[*bool]*bool{&u.Tools: c.Tools, &u.Enabled: c.Enabled} {
		if from != nil {
			*to = *from
		}
	}
	if err := u.clean(); err != nil {
		return err
	}
	secret := ""
	if c.Secret != nil {
		secret = *c.Secret
	}
	switch {
	case u.Auth == AuthNone:
		if u.Secret = nil; secret != "" {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_upstream_secret.unused").At("secret")
		}
	case secret != "":
		if len(secret) > MaxUpstreamKeyBytes || fleet.CleanText(secret, MaxUpstreamKeyBytes) != secret {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_upstream_secret.form", "limit", MaxUpstreamKeyBytes).At("secret")
		}
		u.Secret = s.o.Sealer.Seal(sealedUpstream(u.ID), []byte(secret))
	case u.Secret == nil:
		return fleet.Refuse(fleet.ErrInvalid, "invalid_upstream_secret.missing").At("secret")
	case u.Auth != auth, u.Auth == AuthToken && u.origin() != origin:
		return fleet.Refuse(fleet.ErrInvalid, "invalid_upstream_secret.again").At("secret")
	}
	return nil
}

// Create adds a voice server at the given place, counted from 0, or at the end if place is
// negative. version is the version of the table that the editor saw; 0 means any.
func (s *Service) Create(ctx context.Context, by fleet.Principal, version int64, place int, c Change) (
	State, error) {
	now := s.o.Now()
	u := Server{ID: uuid.Must(uuid.NewV7()), Kind: WebSocket, Auth: AuthNone, Tools: true, Enabled: true,
		UpdatedBy: by.Name, CreatedAt: now, UpdatedAt: now}
	err := s.change(ctx, by, version, func(t *servers) error {
		if t.stored >= MaxUpstreams {
			return fleet.Refuse(fleet.ErrConflict, "too_many_upstreams", "limit", MaxUpstreams)
		}
		if err := s.apply(&u, c); err != nil {
			return err
		}
		u.Position = table.Place(place, 0, t.stored)
		return s.o.Store.CreateUpstream(ctx, by, t.version, u)
	})
	return s.changed(u.ID, err)
}

// Update changes a voice server without moving it.
func (s *Service) Update(ctx context.Context, by fleet.Principal, version int64, id uuid.UUID, c Change) (
	State, error) {
	err := s.change(ctx, by, version, func(t *servers) error {
		u, err := t.open(id)
		if err != nil {
			return err
		}
		if err := s.apply(&u, c); err != nil {
			return err
		}
		u.UpdatedBy, u.UpdatedAt = by.Name, s.o.Now()
		return s.o.Store.UpdateUpstream(ctx, by, t.version, u)
	})
	return s.changed(id, err)
}

// Delete removes a voice server. Open conversations continue.
func (s *Service) Delete(ctx context.Context, by fleet.Principal, version int64, id uuid.UUID) error {
	return s.change(ctx, by, version, func(t *servers) error {
		u, err := t.open(id)
		if err != nil {
			return err
		}
		return s.o.Store.DeleteUpstream(ctx, by, t.version, u)
	})
}

// Move moves a voice server to another place, counted from 0. A place beyond the end means
// the end, before the server of the command line.
func (s *Service) Move(ctx context.Context, by fleet.Principal, version int64, id uuid.UUID, place int) (State,
	error) {
	err := s.change(ctx, by, version, func(t *servers) error {
		u, err := t.open(id)
		if err != nil {
			return err
		}
		var order []uuid.UUID
		order, u.Position = table.Move(t.entries[:t.stored], func(e entry) uuid.UUID { return e.ID }, id, place, 0)
		return s.o.Store.OrderUpstreams(ctx, by, t.version, order, u)
	})
	return s.changed(id, err)
}

func (s *Service) change(ctx context.Context, by fleet.Principal, version int64, do func(*servers) error) error {
	if err := by.May(fleet.RoleAdmin, "manage_upstreams"); err != nil {
		return err
	}
	return s.table.Change(ctx, version, do)
}

func stale(version int64) error {
	return fleet.Refuse(fleet.ErrConflict, "upstreams_changed", "version", version).At("version")
}

// open returns a voice server that can be changed.
func (t *servers) open(id uuid.UUID) (Server, error) {
	e := t.entry(id)
	switch {
	case e == nil:
		return Server{}, errUnknownUpstream(id)
	case e.Fixed:
		return Server{}, fleet.Refuse(fleet.ErrConflict, "upstream_fixed", "name", e.Name)
	}
	return e.Server, nil
}

func (s *Service) changed(id uuid.UUID, err error) (State, error) {
	if err != nil {
		return State{}, err
	}
	e := s.table.State().entry(id)
	if e == nil { // another process removed it immediately
		return State{}, errUnknownUpstream(id)
	}
	return s.state(e), nil
}
