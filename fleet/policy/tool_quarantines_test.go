package policy

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"fleetd/fleet"
)

// memory stores the quarantines of one device.
type memory struct {
	trusted *TrustedTools
	held    []ToolQuarantine
	fail    error // of the next write
}

func (m *memory) ToolQuarantines(context.Context) ([]ToolQuarantine, error) {
	return slices.Clone(m.held), nil
}

func (m *memory) TrustedTools(context.Context, fleet.DeviceID) (TrustedTools, error) {
	if m.trusted == nil {
		return TrustedTools{}, fleet.ErrNotFound
	}
	return *m.trusted, nil
}

func (m *memory) SaveTrustedTools(_ context.Context, _ fleet.DeviceID, t TrustedTools, list []ToolQuarantine) error {
	if m.fail != nil {
		return m.fail
	}
	t.Tools = maps.Clone(t.Tools)
	m.trusted, m.held = &t, slices.Clone(list)
	return nil
}

func (m *memory) ReleaseTool(_ context.Context, _ fleet.Principal, q ToolQuarantine) error {
	i := slices.IndexFunc(m.held, func(h ToolQuarantine) bool { return h.Tool == q.Tool && h.Digest == q.Digest })
	if i < 0 {
		return fleet.ErrNotFound
	}
	m.held = slices.Delete(m.held, i, i+1)
	m.trusted.Tools[q.Tool] = q.Digest
	return nil
}

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

const program = fleet.DeviceID("plugin.lamp")

// tools returns tools of the given names; what follows a colon is the description, and a name that
// begins with ! is for people only.
func toolsOf(names ...string) (list []fleet.Tool) {
	for _, name := range names {
		t := fleet.Tool{Name: name, Audience: fleet.AudienceModel, InputSchema: []byte(`{"type":"object"}`)}
		for i := range name {
			if name[i] == ':' {
				t.Name, t.Description = name[:i], name[i+1:]
				break
			}
		}
		if t.Name[0] == '!' {
			t.Name, t.Audience = t.Name[1:], fleet.AudienceUser
		}
		list = append(list, t)
	}
	return list
}

type listingStep struct {
	do      string   // "" lists; "partial" lists incompletely; "release NAME"
	version string   // of the server
	build   string   // of the program
	listed  []string // by the server
	offered []string // nil: all that are listed
	held    []string // afterwards
}

// What changes unexplained is in quarantine until it is released, returns or has another version.
func TestQuarantinedTools(t *testing.T) {
	list := func(version string, listed []string, held ...string) listingStep {
		return listingStep{version: version, listed: listed, held: held}
	}
	on := []string{"on:a", "off"}
	for _, tt := range []struct {
		name  string
		steps []listingStep
	}{
		{"the first list is trusted", []listingStep{list("1", on)}},
		{"the same list", []listingStep{list("1", on), list("1", on)}},
		{"another order", []listingStep{list("1", on), list("1", []string{"off", "on:a"})}},
		{"a changed description", []listingStep{list("1", on), list("1", []string{"on:b", "off"}, "on")}},
		{"it stays changed", []listingStep{list("1", on), list("1", []string{"on:b"}, "on"),
			list("1", []string{"on:b"}, "on")}},
		{"it changes again", []listingStep{list("1", on), list("1", []string{"on:b"}, "on"),
			list("1", []string{"on:c"}, "on")}},
		{"it is as it was", []listingStep{list("1", on), list("1", []string{"on:b"}, "on"), list("1", on)}},
		{"a new version", []listingStep{list("1", on), list("1", []string{"on:b"}, "on"), list("2", []string{"on:b"})}},
		{"a change with a new version", []listingStep{list("1", on), list("2", []string{"on:b", "more"})}},
		{"an earlier version again", []listingStep{list("1", on), list("2", []string{"on:b"}), list("1", []string{"on:c"})}},
		{"a version that lists the same first", []listingStep{list("1", on), list("2", on), list("2", []string{"on:b"}, "on")}},
		{"another build", []listingStep{{version: "1", build: "x", listed: on},
			{version: "1", build: "y", listed: []string{"on:b"}}}},
		{"the same build", []listingStep{{version: "1", build: "x", listed: on},
			{version: "1", build: "x", listed: []string{"on:b"}, held: []string{"on"}}}},
		{"a new tool", []listingStep{list("1", on), list("1", []string{"on:a", "off", "more"}, "more"), list("1", on)}},
		{"a tool that goes and comes back", []listingStep{list("1", on), list("1", []string{"off"}), list("1", on)}},
		{"it comes back with another description", []listingStep{list("1", on), list("1", []string{"off"}),
			list("1", []string{"on:b", "off"}, "on")}},
		{"a tool in quarantine goes and comes back", []listingStep{list("1", on), list("1", []string{"on:b"}, "on"),
			list("1", []string{"off"}), list("1", []string{"on:b"}, "on")}},
		{"tools after an empty list", []listingStep{list("1", nil), list("1", on), list("1", []string{"on:b"}, "on")}},
		{"all tools go and others come", []listingStep{list("1", on), list("1", nil), list("1", []string{"on:b"}, "on")}},
		{"released", []listingStep{list("1", on), list("1", []string{"on:b"}, "on"), {do: "release on"},
			list("1", []string{"on:b"}), list("1", []string{"on:a"}, "on")}},
		{"a tool that the settings hid", []listingStep{{version: "1", listed: on, offered: []string{"off"}}, list("1", on)}},
		{"it changed meanwhile", []listingStep{{version: "1", listed: on, offered: []string{"off"}},
			{version: "1", listed: []string{"on:b", "off"}, offered: []string{"off"}},
			list("1", []string{"on:b", "off"}, "on")}},
		{"the settings restricted it to people", []listingStep{{version: "1", listed: on, offered: []string{"!on:a"}},
			list("1", on)}},
		{"the server reserved it for people", []listingStep{list("1", []string{"!on:a", "off"}), list("1", on, "on")}},
		{"for people a change counts nothing", []listingStep{list("1", []string{"!on:a", "off"}),
			list("1", []string{"!on:b", "off"})}},
		{"an incomplete list", []listingStep{list("1", on), list("1", []string{"on:b"}, "on"),
			{do: "partial", version: "1", listed: []string{"off"}, held: []string{"on"}}, list("1", on)}},
		{"an incomplete list of a new version", []listingStep{list("1", on),
			{do: "partial", version: "2", listed: []string{"off"}}, list("2", on), list("2", []string{"on:b"}, "on")}},
		{"a change after an incomplete list", []listingStep{list("1", on),
			{do: "partial", version: "2", listed: []string{"off"}}, list("2", []string{"on:b", "off"}, "on")}},
		{"a pinned description", []listingStep{list("1", []string{"pinned:a"}), list("1", []string{"pinned:good"}),
			list("1", []string{"pinned:b"}, "pinned")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store := &memory{}
			open := func() *ToolQuarantines {
				pins := NewToolPins(pinsOf{"pinned": toolsOf("pinned:good")[0].Digest()}, nil, nil)
				s := NewToolQuarantines(ToolQuarantinesOptions{Store: store, Pins: pins})
				if err := errors.Join(s.Load(t.Context()), pins.Load(t.Context())); err != nil {
					t.Fatal(err)
				}
				return s
			}
			s := open()
			for i, step := range tt.steps {
				if i%2 == 1 {
					s = open() // as after a restart
				}
				root := fleet.Principal{Kind: fleet.KindOperator, Name: "root", Role: fleet.RoleAdmin}
				if name, ok := cutRelease(step.do); ok {
					q, _ := s.Quarantine(program, name)
					if err := s.Release(t.Context(), root, program, name, q.Digest); err != nil {
						t.Fatal(err)
					}
				} else {
					l := fleet.ToolListing{Device: program, ServerName: "lamp", ServerVersion: step.version, ELFSHA256: step.build,
						Partial: step.do == "partial", At: noon, Listed: toolsOf(step.listed...)}
					if l.Inventory.Tools = l.Listed; step.offered != nil {
						l.Inventory.Tools = toolsOf(step.offered...)
					}
					if err := s.Listed(t.Context(), l, func(context.Context, fleet.ToolListing) error { return nil }); err != nil {
						t.Fatal(err)
					}
				}
				var held []string
				for _, q := range s.All() {
					held = append(held, q.Tool)
				}
				if !slices.Equal(held, step.held) {
					t.Errorf("step %d: in quarantine are %q, want %q", i+1, held, step.held)
				}
			}
		})
	}
}

func cutRelease(do string) (string, bool) {
	if len(do) > 8 && do[:8] == "release " {
		return do[8:], true
	}
	return "", false
}

type pinsOf map[string]fleet.ToolDigest

func (p pinsOf) ToolPins(context.Context) (list []ToolPin, err error) {
	for tool, digest := range p {
		list = append(list, ToolPin{Tool: tool, Digest: digest})
	}
	return list, nil
}
func (pinsOf) SaveToolPin(context.Context, fleet.Principal, ToolPin, fleet.DeviceID) error {
	return nil
}
func (pinsOf) DeleteToolPin(context.Context, fleet.Principal, string) error { return nil }

// A quarantine begins before the listing is saved, and ends only after that. A listing that cannot
// be judged is not saved.
func TestQuarantineComesFirst(t *testing.T) {
	store := &memory{}
	changed := 0
	s := NewToolQuarantines(ToolQuarantinesOptions{Store: store, Changed: func(fleet.DeviceID) { changed++ }})
	good, bad := toolsOf("on:a", "off"), toolsOf("on:b", "off")
	var saved int
	var seen bool
	save := func(check fleet.Tool) func(context.Context, fleet.ToolListing) error {
		return func(context.Context, fleet.ToolListing) error {
			saved++
			seen = s.Holds(program, fleet.InventoryID(bad), check)
			return nil
		}
	}
	list := func(tools []fleet.Tool, check fleet.Tool) error {
		return s.Listed(t.Context(), fleet.ToolListing{Device: program, ServerVersion: "1", At: noon, Listed: tools,
			Inventory: fleet.Inventory{ID: fleet.InventoryID(tools), Tools: tools}}, save(check))
	}
	if err := list(good, bad[0]); err != nil || seen {
		t.Fatalf("first: %v, held %v", err, seen)
	}
	store.fail = errors.New("away")
	if err := list(bad, bad[0]); err == nil || saved != 1 {
		t.Errorf("a listing that was not judged: %v, saved %d times", err, saved)
	}
	store.fail = nil
	if err := list(bad, bad[0]); err != nil || !seen {
		t.Errorf("changed: %v, held %v while it is saved", err, seen)
	}
	if s.Holds(program, fleet.InventoryID(good), good[0]) {
		t.Error("the trusted description is held, as an inventory in memory may have it")
	}
	if !s.Holds(program, "another", toolsOf("on:c")[0]) || s.Holds(program, fleet.InventoryID(bad), bad[1]) ||
		s.Holds("plugin.other", fleet.InventoryID(bad), bad[0]) {
		t.Error("the wrong tools are held")
	}
	if err := list(good, bad[0]); err != nil || !seen || changed != 1 || len(s.All()) != 0 {
		t.Errorf("as it was: %v, held %v while it is saved, %d changes announced", err, seen, changed)
	}
	var none *ToolQuarantines
	if none.Holds(program, "", bad[0]) || none.All() != nil {
		t.Error("a nil service holds tools")
	}
}

// Only administrators of the whole fleet release a tool, and only what they have seen.
func TestReleaseTool(t *testing.T) {
	store := &memory{}
	s := NewToolQuarantines(ToolQuarantinesOptions{Store: store})
	save := func(context.Context, fleet.ToolListing) error { return nil }
	list := func(tools []fleet.Tool) {
		t.Helper()
		if err := s.Listed(t.Context(), fleet.ToolListing{Device: program, Listed: tools, At: noon,
			Inventory: fleet.Inventory{Tools: tools}}, save); err != nil {
			t.Fatal(err)
		}
	}
	list(toolsOf("on:a"))
	list(toolsOf("on:b"))
	seen, _ := s.Quarantine(program, "on")
	list(toolsOf("on:c"))
	now, _ := s.Quarantine(program, "on")
	admin := fleet.Principal{Kind: fleet.KindOperator, Name: "root", Role: fleet.RoleAdmin}
	operator, model := admin, admin
	operator.Role, model.Kind = fleet.RoleOperator, fleet.KindModel
	for _, tt := range []struct {
		by     fleet.Principal
		tool   string
		digest fleet.ToolDigest
		code   string
	}{
		{operator, "on", now.Digest, "forbidden"}, {model, "on", now.Digest, "person_needed"},
		{admin, "on", seen.Digest, "tool_changed_again"}, {admin, "off", now.Digest, "unknown_tool_quarantine"},
		{admin, "on", now.Digest, ""}, {admin, "on", now.Digest, "unknown_tool_quarantine"},
	} {
		err := s.Release(t.Context(), tt.by, program, tt.tool, tt.digest)
		var e *fleet.Error
		if errors.As(err, &e); tt.code == "" && err != nil || tt.code != "" && (e == nil || e.Code != tt.code) {
			t.Errorf("%s releases %s: %v, want %q", tt.by.Kind, tt.tool, err, tt.code)
		}
	}
	if list(toolsOf("on:c")); len(s.All()) != 0 {
		t.Errorf("released: %+v", s.All())
	}
}
