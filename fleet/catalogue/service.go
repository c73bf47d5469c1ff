package catalogue

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/internal/table"
)

// Service reads the catalogue, and knows from memory which definitions wait for a person, so the gate
// reads no database.
type Service struct {
	o     Options
	state *table.Table[State]
}

// Options configures a [Service]. Store is required.
type Options struct {
	Store Store
	// Changed is called after definitions were released or the setting changed: models may see other
	// tools. May be nil.
	Changed func(tools []string)
	Now     func() time.Time // default: time.Now
	Log     *slog.Logger
}

// New returns the service. Call Load before the first call.
func New(o Options) *Service {
	if o.Changed == nil {
		o.Changed = func([]string) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{o: o}
	s.state = table.New(table.Options[State]{Read: o.Store.CatalogueState, What: "catalogue of tools", Log: o.Log})
	return s
}

// Load adds inventories that an earlier version of fleetd stored, and reads the state.
func (s *Service) Load(ctx context.Context) error {
	if added, err := s.o.Store.CatalogueInventories(ctx); err != nil {
		return err
	} else if added > 0 {
		s.o.Log.Info("tools of earlier inventories catalogued", "inventories", added)
	}
	return s.state.Load(ctx)
}

// Reload reads the state again after a change by another part of fleetd.
func (s *Service) Reload(ctx context.Context) error { return s.state.Load(ctx) }

// Run follows changes by other processes until ctx ends.
func (s *Service) Run(ctx context.Context) error { return s.state.Run(ctx) }

// Waits returns which definitions wait for a person.
func (s *Service) Waits() Waits {
	if s == nil {
		return WaitsOff
	}
	if w := s.state.State().Waits; w != "" {
		return w
	}
	return WaitsOff
}

// Holds reports whether models may not call a definition until a person releases it. While definitions
// wait, one that is not in the catalogue may not be called either.
func (s *Service) Holds(tool string, digest func() fleet.ToolDigest) bool {
	if s == nil {
		return false
	}
	now := s.state.State()
	if now.Waits == "" || now.Waits == WaitsOff {
		return false
	}
	state, known := now.Waiting[Key{tool, digest()}]
	return !known || now.Waits.holds(state)
}

// List returns a page of the catalogue.
func (s *Service) List(ctx context.Context, f Filter) (Page, error) {
	return s.o.Store.Catalogue(ctx, f, s.o.Now())
}

// Tool returns one tool, with its usage since the given time.
func (s *Service) Tool(ctx context.Context, name string, since time.Time) (Tool, error) {
	t, err := s.o.Store.CatalogueTool(ctx, name, since, s.o.Now())
	if errors.Is(err, fleet.ErrNotFound) {
		return t, fleet.Refuse(fleet.ErrNotFound, "unknown_catalogue_tool", "tool", fleet.CleanText(name, 80))
	}
	return t, err
}

// MaxWaiting is how many waiting definitions one page shows.
const MaxWaiting = 100

// Waiting returns the first definitions that wait for a person, and how many wait. It requires an
// administrator of the whole fleet, who may release them; others get none.
func (s *Service) Waiting(ctx context.Context, by fleet.Principal) ([]Definition, int, error) {
	if by.May(fleet.RoleAdmin, "release_tool") != nil {
		return nil, 0, nil
	}
	return s.o.Store.WaitingDefinitions(ctx, MaxWaiting)
}

// Since returns the beginning of the days that lists count.
func (s *Service) Since() time.Time { return Since(s.o.Now()) }

// Since returns the beginning of the days that lists count at a time.
func Since(now time.Time) time.Time {
	return now.UTC().Truncate(24 * time.Hour).Add(24*time.Hour - Window)
}

// SuggestedTimeout returns a timeout for calls of a tool on devices with a firmware version, 0 if
// there are too few answers. It only suggests: nothing uses it until a person or a program does.
func (s *Service) SuggestedTimeout(ctx context.Context, tool, version string) (time.Duration, error) {
	if s == nil {
		return 0, nil
	}
	u, err := s.o.Store.VersionUsage(ctx, tool, version, s.Since().Add(-21*24*time.Hour))
	return u.SuggestedTimeout(), err
}

// SetWaits changes which definitions wait for a person. It requires an administrator of the whole
// fleet. Definitions that are in the catalogue when it is turned on do not begin to wait.
func (s *Service) SetWaits(ctx context.Context, by fleet.Principal, w Waits) error {
	if err := by.May(fleet.RoleAdmin, "release_tool"); err != nil {
		return err
	}
	if !w.Valid() {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_tool_waits").At("waits")
	}
	err := s.state.Change(ctx, 0, func(*State) error { return s.o.Store.SetWaits(ctx, by, w) })
	if err == nil {
		s.o.Changed(nil)
	}
	return err
}

// Release releases definitions: models may call them again. It requires an administrator of the whole
// fleet, who is a person or a person's program. A definition that does not wait any more is no error:
// another administrator was faster. It returns those that it released.
func (s *Service) Release(ctx context.Context, by fleet.Principal, keys []Key) (released []Key, err error) {
	if err := by.May(fleet.RoleAdmin, "release_tool"); err != nil {
		return nil, err
	}
	switch {
	case len(keys) == 0:
		return nil, fleet.Refuse(fleet.ErrInvalid, "no_tool_definitions").At("definitions")
	case len(keys) > MaxRelease:
		return nil, fleet.Refuse(fleet.ErrInvalid, "too_many_tool_definitions", "limit", MaxRelease).At("definitions")
	}
	err = s.state.Change(ctx, 0, func(*State) error {
		released, err = s.o.Store.ReleaseDefinitions(ctx, by, keys)
		if errors.Is(err, fleet.ErrNotFound) {
			return fleet.Refuse(fleet.ErrNotFound, "unknown_tool_definition", "tool", fleet.CleanText(keys[0].Tool, 80)).At("digest")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(released) > 0 {
		tools := make([]string, len(released))
		for i, k := range released {
			tools[i] = k.Tool
		}
		s.o.Changed(tools)
	}
	return released, nil
}
