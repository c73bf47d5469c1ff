package policy

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/internal/table"
)

// A ToolQuarantine keeps principals of kind model and voice from a tool of a plug-in or an endpoint
// that changed unexplained: its server reports the same name and version, and fleetd starts the same
// build. It ends when an administrator releases the tool, when the server lists the tool as it was,
// and with another version or build.
type ToolQuarantine struct {
	Device  fleet.DeviceID
	Tool    string
	Trusted fleet.ToolDigest // zero if the tool is new
	Digest  fleet.ToolDigest // as the server lists it now
	Since   time.Time
}

// IsNew reports whether the tool appeared unexplained, rather than changed.
func (q ToolQuarantine) IsNew() bool { return q.Trusted == fleet.ToolDigest{} }

// TrustedTools are the tools of a program as fleetd trusts them, and the program that listed them.
type TrustedTools struct {
	ServerName, ServerVersion, Build, Definition string
	Tools                                        map[string]fleet.ToolDigest // by name
}

// maxTrustedTools bounds the trusted tools of a program; a listing has at most 512 that are offered.
const maxTrustedTools = 1024

// ToolQuarantineStore stores quarantines and the tools that fleetd trusts.
type ToolQuarantineStore interface {
	ToolQuarantines(ctx context.Context) ([]ToolQuarantine, error) // by device and tool
	// TrustedTools returns those of a program, or [fleet.ErrNotFound].
	TrustedTools(ctx context.Context, id fleet.DeviceID) (TrustedTools, error)
	// SaveTrustedTools stores the trusted tools of a program, and its quarantines in place of its
	// earlier ones.
	SaveTrustedTools(ctx context.Context, id fleet.DeviceID, t TrustedTools, list []ToolQuarantine) error
	// ReleaseTool ends a quarantine, trusts its digest and audits both. It returns
	// [fleet.ErrNotFound] if the quarantine has another digest or has ended.
	ReleaseTool(ctx context.Context, by fleet.Principal, q ToolQuarantine) error
}

type quarantines map[fleet.DeviceID]map[string]ToolQuarantine

// ToolQuarantines judges the listings of programs, and caches the quarantines in memory, so the gate
// reads no database. A nil *ToolQuarantines has none.
type ToolQuarantines struct {
	o       ToolQuarantinesOptions
	table   *table.Table[quarantines]
	digests *fleet.ToolDigests
	judging sync.Map // of *sync.Mutex, by device: one listing or release at a time
}

// ToolQuarantinesOptions configures [ToolQuarantines]. Store is required.
type ToolQuarantinesOptions struct {
	Store ToolQuarantineStore
	// Pins are descriptions that an administrator has approved; nil: none.
	Pins *ToolPins
	// Definitions are those that wait for a person, of all devices; nil: none.
	Definitions Definitions
	// Changed is called after quarantines of a device began or ended, except by a listing, which
	// itself is announced. May be nil.
	Changed func(fleet.DeviceID)
	Log     *slog.Logger
}

// Definitions keep models from definitions of tools that appeared, until a person releases them.
type Definitions interface {
	// Holds reports whether models may not call a definition. It asks for the digest only if any waits.
	Holds(tool string, digest func() fleet.ToolDigest) bool
	// Reload reads the state again after a change in the database.
	Reload(ctx context.Context) error
}

// NewToolQuarantines returns the service. Call Load before the first listing.
func NewToolQuarantines(o ToolQuarantinesOptions) *ToolQuarantines {
	if o.Changed == nil {
		o.Changed = func(fleet.DeviceID) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &ToolQuarantines{o: o, digests: fleet.NewToolDigests()}
	s.table = table.New(table.Options[quarantines]{Read: s.read, Every: pinsRefresh, What: "quarantines of tools", Log: o.Log})
	if o.Pins != nil {
		o.Pins.saved = s.reload
	}
	return s
}

// reload reads the quarantines after a pin, which may have ended some.
func (s *ToolQuarantines) reload(ctx context.Context) error {
	before := *s.table.State()
	if err := s.table.Load(ctx); err != nil {
		return err
	}
	if err := s.reloadDefinitions(ctx); err != nil {
		return err
	}
	for device, held := range before {
		if !maps.Equal(held, (*s.table.State())[device]) {
			s.o.Changed(device)
		}
	}
	return nil
}

// reloadDefinitions reads which definitions wait, after a pin or a release has released one.
func (s *ToolQuarantines) reloadDefinitions(ctx context.Context) error {
	if s.o.Definitions == nil {
		return nil
	}
	return s.o.Definitions.Reload(ctx)
}

// Load reads the quarantines.
func (s *ToolQuarantines) Load(ctx context.Context) error { return s.table.Load(ctx) }

// Run reloads the quarantines periodically until ctx ends, since another process may change them.
func (s *ToolQuarantines) Run(ctx context.Context) error { return s.table.Run(ctx) }

func (s *ToolQuarantines) read(ctx context.Context, _ *quarantines) (*quarantines, error) {
	list, err := s.o.Store.ToolQuarantines(ctx)
	if err != nil {
		return nil, err
	}
	all := quarantines{}
	for _, q := range list {
		if all[q.Device] == nil {
			all[q.Device] = map[string]ToolQuarantine{}
		}
		all[q.Device][q.Tool] = q
	}
	return &all, nil
}

// All returns the quarantines from memory, by device and tool.
func (s *ToolQuarantines) All() []ToolQuarantine {
	if s == nil {
		return nil
	}
	var list []ToolQuarantine
	for _, of := range *s.table.State() {
		list = slices.AppendSeq(list, maps.Values(of))
	}
	slices.SortFunc(list, byDeviceAndTool)
	return list
}

func byDeviceAndTool(a, b ToolQuarantine) int {
	return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Tool, b.Tool))
}

// Quarantine returns the quarantine of a tool from memory.
func (s *ToolQuarantines) Quarantine(device fleet.DeviceID, tool string) (ToolQuarantine, bool) {
	if s == nil {
		return ToolQuarantine{}, false
	}
	q, held := (*s.table.State())[device][tool]
	return q, held
}

// Holds reports whether the tool of a device's inventory is in quarantine, or its definition waits for
// a person. The trusted description of a tool is never in quarantine: the inventory may be older than
// the quarantine.
func (s *ToolQuarantines) Holds(device fleet.DeviceID, inventory string, tool fleet.Tool) bool {
	q, held := s.Quarantine(device, tool.Name)
	return held && s.digests.Of(inventory, tool) != q.Trusted || s.Waits(inventory, tool)
}

// Waits reports whether the definition of an inventory's tool waits for a person. Tools for people
// never do.
func (s *ToolQuarantines) Waits(inventory string, tool fleet.Tool) bool {
	if s == nil || s.o.Definitions == nil || tool.UserOnly() {
		return false
	}
	return s.o.Definitions.Holds(tool.Name, func() fleet.ToolDigest {
		if inventory == "" {
			return tool.Digest()
		}
		return s.digests.Of(inventory, tool)
	})
}

func (s *ToolQuarantines) lock(id fleet.DeviceID) (unlock func()) {
	mu, _ := s.judging.LoadOrStore(id, new(sync.Mutex))
	mu.(*sync.Mutex).Lock()
	return mu.(*sync.Mutex).Unlock
}

// Listed judges the listing of a program and saves it. Quarantines begin before the listing is
// saved, and end after that: no model is offered a changed tool in between.
func (s *ToolQuarantines) Listed(ctx context.Context, l fleet.ToolListing,
	save func(context.Context, fleet.ToolListing) error) error {
	defer s.lock(l.Device)()
	trusted, err := s.o.Store.TrustedTools(ctx, l.Device)
	known := err == nil
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return err
	}
	before := (*s.table.State())[l.Device]
	next, held := judgeListing(trusted, known, before, l, s.o.Pins.Pin)
	both := maps.Clone(before)
	if both == nil {
		both = map[string]ToolQuarantine{}
	}
	maps.Copy(both, held)
	if !maps.Equal(both, before) {
		for _, q := range held {
			if before[q.Tool] != q {
				s.o.Log.Warn("a tool changed without a new version; language models may not call it until it is released",
					"device", q.Device, "tool", q.Tool, "new", q.IsNew())
			}
		}
		if err := s.save(ctx, l.Device, trusted, both); err != nil {
			return err
		}
	}
	if err := save(ctx, l); err != nil {
		return err
	}
	if maps.Equal(held, both) && known && same(trusted, next) {
		return nil
	}
	if err := s.save(ctx, l.Device, next, held); err != nil {
		return err
	}
	if !maps.Equal(held, both) {
		s.o.Changed(l.Device)
	}
	return nil
}

func same(a, b TrustedTools) bool {
	return a.isOf(b) && maps.Equal(a.Tools, b.Tools)
}

// isOf reports whether both were listed by the same version and build of a program.
func (t TrustedTools) isOf(o TrustedTools) bool {
	return t.ServerName == o.ServerName && t.ServerVersion == o.ServerVersion && t.Build == o.Build &&
		t.Definition == o.Definition
}

func (s *ToolQuarantines) save(ctx context.Context, id fleet.DeviceID, t TrustedTools,
	held map[string]ToolQuarantine) error {
	return s.table.Change(ctx, 0, func(*quarantines) error {
		return s.o.Store.SaveTrustedTools(ctx, id, t, slices.SortedFunc(maps.Values(held), byDeviceAndTool))
	})
}

// judgeListing returns the tools that are trusted after a listing, and those of the listing that are
// in quarantine. known reports whether any were trusted before.
//
//	no listing is known, or the server's name or version, the build or
//	the definition is another                                           all its tools are trusted
//	the same, but no tool was listed before                             all its tools are trusted
//	the same, and a tool has the trusted digest, or the pinned one      it is offered
//	the same, and a tool has another digest, or none is trusted         it is in quarantine
//
// What a server does not list keeps its trusted digest, so a tool may go and come back. What the
// server itself reserves for people is not trusted: for models it is a new tool if it becomes theirs.
func judgeListing(trusted TrustedTools, known bool, before map[string]ToolQuarantine, l fleet.ToolListing,
	pinned func(string) (ToolPin, bool)) (next TrustedTools, held map[string]ToolQuarantine) {
	held = map[string]ToolQuarantine{}
	next = TrustedTools{ServerName: l.ServerName, ServerVersion: l.ServerVersion, Build: l.ELFSHA256,
		Definition: l.Definition, Tools: map[string]fleet.ToolDigest{}}
	if !known || !next.isOf(trusted) || len(trusted.Tools) == 0 {
		reserved := map[string]bool{}
		for _, t := range l.Listed {
			reserved[t.Name] = t.UserOnly()
		}
		for _, t := range slices.Concat(l.Inventory.Tools, l.Listed) { // offered ones first
			if len(next.Tools) < maxTrustedTools && !reserved[t.Name] {
				next.Tools[t.Name] = t.Digest()
			}
		}
		if l.Partial { // the rest may be as it was
			for name, digest := range trusted.Tools {
				if _, listed := next.Tools[name]; !listed && !reserved[name] && len(next.Tools) < maxTrustedTools {
					next.Tools[name] = digest
				}
			}
		}
		return next, held
	}
	if l.Partial {
		maps.Copy(held, before)
	}
	next.Tools = maps.Clone(trusted.Tools)
	for _, t := range l.Inventory.Tools {
		delete(held, t.Name)
		digest, was := t.Digest(), trusted.Tools[t.Name]
		if t.UserOnly() || digest == was {
			continue
		}
		if pin, ok := pinned(t.Name); ok && pin.Digest == digest {
			next.Tools[t.Name] = digest
			continue
		}
		q := ToolQuarantine{Device: l.Device, Tool: t.Name, Trusted: was, Digest: digest,
			Since: l.At.UTC().Truncate(time.Microsecond)}
		if earlier, was := before[t.Name]; was {
			q.Since = earlier.Since
		}
		held[t.Name] = q
	}
	return next, held
}

// Release ends the quarantine of a tool and trusts it with the given digest, which is the one that
// the administrator has seen. It requires an administrator of the whole fleet.
func (s *ToolQuarantines) Release(ctx context.Context, by fleet.Principal, device fleet.DeviceID, tool string,
	digest fleet.ToolDigest) error {
	if err := by.May(fleet.RoleAdmin, "release_tool"); err != nil {
		return err
	}
	defer s.lock(device)()
	err := s.table.Change(ctx, 0, func(*quarantines) error {
		return s.o.Store.ReleaseTool(ctx, by, ToolQuarantine{Device: device, Tool: tool, Digest: digest})
	})
	if errors.Is(err, fleet.ErrNotFound) {
		if q, held := s.Quarantine(device, tool); held && q.Digest != digest {
			return fleet.Refuse(fleet.ErrConflict, "tool_changed_again", "device", device, "tool", tool).At("digest")
		}
		return fleet.Refuse(fleet.ErrNotFound, "unknown_tool_quarantine", "device", device, "tool", tool)
	}
	if err == nil {
		err = s.reloadDefinitions(ctx)
	}
	if err != nil {
		return err
	}
	s.o.Changed(device)
	return nil
}

// Ended reloads the quarantines after those of a device ended, as its program was removed.
func (s *ToolQuarantines) Ended(ctx context.Context, device fleet.DeviceID) error {
	if len((*s.table.State())[device]) == 0 {
		return nil
	}
	return s.table.Load(ctx)
}
