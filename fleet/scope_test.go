package fleet_test

import (
	"context"
	"errors"
	"testing"

	"fleetd/fleet"
)

func scope(t *testing.T, filter string, rest fleet.Role, tools ...string) *fleet.Scope {
	t.Helper()
	s, err := fleet.NewScope(filter, rest, tools)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A scope limits a role to some devices and sets the role on the others.
func TestRoleInAScope(t *testing.T) {
	lab := fleet.Device{ID: "a085e3112233", Tags: []string{"lab"}}
	hall := fleet.Device{ID: "a085e3445566", Board: "bread-compact-wifi"}
	narrow := scope(t, "tag:lab", "")
	viewsRest := scope(t, "tag:lab", fleet.RoleViewer)
	tools := scope(t, "", "", "self.get_*")
	tests := []struct {
		name                 string
		scope                *fleet.Scope
		inLab, inHall, fleet fleet.Role
	}{
		{"no scope", nil, fleet.RoleOperator, fleet.RoleOperator, fleet.RoleOperator},
		{"tools alone", tools, fleet.RoleOperator, fleet.RoleOperator, fleet.RoleOperator},
		{"the rest hidden", narrow, fleet.RoleOperator, "", ""},
		{"the rest to look at", viewsRest, fleet.RoleOperator, fleet.RoleViewer, fleet.RoleViewer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := fleet.Principal{Kind: fleet.KindProgram, Name: "x", Role: fleet.RoleOperator, Scope: tt.scope}
			if a, b, c := p.RoleOn(lab), p.RoleOn(hall), p.FleetRole(); a != tt.inLab || b != tt.inHall || c != tt.fleet {
				t.Errorf("roles %q in the scope, %q outside, %q of the fleet; want %q, %q, %q", a, b, c, tt.inLab, tt.inHall,
					tt.fleet)
			}
			if hidden := errors.Is(p.MayOn(hall, fleet.RoleViewer, "call"), fleet.ErrNotFound); hidden != (tt.inHall == "") {
				t.Errorf("the device outside is hidden: %v", hidden)
			}
			if _, narrowed := fleet.ScopeOf(fleet.WithScope(context.Background(), p)); narrowed != (tt.inHall == "") {
				t.Errorf("reads are narrowed: %v", narrowed)
			}
		})
	}
	if _, narrowed := fleet.ScopeOf(fleet.WithoutScope(fleet.WithScope(context.Background(),
		fleet.Principal{Scope: narrow}))); narrowed {
		t.Error("WithoutScope leaves the scope in place")
	}
}

func TestScopesThatAreRefused(t *testing.T) {
	for _, filter := range []string{"presence:online", "seen<2d", "tool:self.reboot", "hold", "version<2", "tag:"} {
		if _, err := fleet.NewScope(filter, "", nil); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("scope %q: %v, want it refused", filter, err)
		}
	}
	for _, tool := range []string{"", "a\x00b"} {
		if _, err := fleet.NewScope("", "", []string{tool}); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("tool pattern %q: %v, want it refused", tool, err)
		}
	}
}

func TestToolPatterns(t *testing.T) {
	s := scope(t, "", "", "self.get_*", "self.reboot")
	for tool, want := range map[string]bool{"self.get_device_status": true, "self.reboot": true, "self.rebooted": false,
		"self.get": false, "SELF.reboot": false} {
		if s.AllowsTool(tool) != want {
			t.Errorf("%s allowed: %v, want %v", tool, !want, want)
		}
	}
}
