package call_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// loud is a policy that denies volumes above 80, and the network always.
type loud struct{}

func (loud) Judge(p *call.Proposal) call.Verdict {
	louder := p.Tool.Name == "self.audio_speaker.set_volume" && !strings.Contains(string(p.Arguments), `"volume":0`)
	if !p.Preview || louder || p.Tool.Name == "self.get_device_status" {
		return call.Verdict{Decision: call.DecisionDeny}
	}
	return call.Verdict{Decision: call.DecisionAllow}
}

func TestOffered(t *testing.T) {
	b := newBench(t)
	withPolicy := call.New(call.Options{Store: b.store, Targets: b.targets, Link: b.link, Watcher: b.seen,
		URLs: urls{}, Events: &fleet.Events{}, Policy: loud{}})
	t.Cleanup(withPolicy.Shutdown)
	scope := func(filter string, tools ...string) *fleet.Scope {
		s, err := fleet.NewScope(filter, "", tools)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	voice := fleet.Principal{Kind: fleet.KindVoice, Name: "lab", Role: fleet.RoleOperator}
	tests := []struct {
		name  string
		calls *call.Service
		who   func(*fleet.Principal)
		want  string
	}{
		{"a model", b.Service, nil, "self.get_device_status self.audio_speaker.set_volume self.odd"},
		{"with a policy, of which one part depends on the arguments", withPolicy, nil,
			"self.audio_speaker.set_volume self.odd"},
		{"a few tools", b.Service, func(p *fleet.Principal) { p.Scope = scope("", "self.audio*") },
			"self.audio_speaker.set_volume"},
		{"a viewer", b.Service, func(p *fleet.Principal) { p.Role = fleet.RoleViewer }, ""},
		{"an operator", b.Service, func(p *fleet.Principal) { p.Kind = fleet.KindOperator },
			"self.get_device_status self.audio_speaker.set_volume self.reboot self.screen.snapshot " +
				"self.screen.preview_image self.system.reconfigure_wifi self.disp.network self.odd"},
	}
	for _, tt := range tests {
		p := voice
		if tt.who != nil {
			tt.who(&p)
		}
		d, offered, err := tt.calls.Offered(t.Context(), p, unit)
		if err != nil || d.ID != unit {
			t.Fatalf("%s: %v, %v", tt.name, d.ID, err)
		}
		var names []string
		for _, tool := range offered {
			names = append(names, tool.Name)
		}
		if want := strings.Fields(tt.want); !slices.Equal(names, want) {
			t.Errorf("%s: %v, want %v", tt.name, names, want)
		}
	}
	voice.Scope = scope("id:020000000099")
	if _, _, err := b.Offered(t.Context(), voice, unit); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("outside of the scope: %v", err)
	}
	b.put(func(d *fleet.Device) { d.InventoryID = "" })
	voice.Scope = nil
	if d, offered, err := b.Offered(t.Context(), voice, unit); err != nil || d.InventoryID != "" || offered != nil {
		t.Errorf("before the first listing: %v, %v", offered, err)
	}
}
