package campaign_test

import (
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

func TestInventoryGate(t *testing.T) {
	inventory := func(names ...string) *fleet.Inventory {
		inv := &fleet.Inventory{}
		for _, n := range names {
			inv.Tools = append(inv.Tools, fleet.Tool{Name: n})
		}
		return inv
	}
	before := inventory("self.reboot", "self.audio.set_volume", "self.audio.mute", "self.lamp.on")
	tests := []struct {
		name   string
		after  *fleet.Inventory
		forbid []string
		want   string
	}{
		{"nothing forbidden", inventory(), nil, ""},
		{"nothing lost", inventory("self.reboot", "self.audio.set_volume", "self.audio.mute", "self.lamp.on", "self.new"),
			[]string{"*"}, ""},
		{"something else lost", inventory("self.reboot"), []string{"self.reboot"}, ""},
		{"one lost", inventory("self.audio.set_volume", "self.audio.mute", "self.lamp.on"), []string{"self.lamp.on",
			"self.reboot"}, "tools that must remain are gone: self.reboot"},
		{"by ending", inventory("self.reboot"), []string{"self.audio.*"},
			"tools that must remain are gone: self.audio.mute, self.audio.set_volume"},
		{"never had", inventory("self.reboot"), []string{"self.camera.take_photo"}, ""},
		{"listed nothing", nil, []string{"*"},
			"tools that must remain are gone: self.audio.mute, self.audio.set_volume, self.lamp.on, self.reboot"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := campaign.InventoryGate(before, tt.after, tt.forbid)
			if got := saidError(err); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	if err := campaign.InventoryGate(nil, inventory(), []string{"*"}); err != nil {
		t.Errorf("an unknown inventory lost something: %v", err)
	}
	many := inventory("a", "b", "c", "d", "e", "f", "g")
	if got := saidError(campaign.InventoryGate(many, nil,
		[]string{"*"})); got != "tools that must remain are gone: a, b, c, d, e and 2 more" {
		t.Errorf("%q", got)
	}
}

func TestHeapGate(t *testing.T) {
	tests := []struct {
		before, after int64
		percent       int
		ok            bool
	}{
		{100_000, 80_000, 80, true}, {100_000, 79_999, 80, false}, {100_000, 1, 0, true}, {0, 10, 80, true},
		{100_000, 0, 80, true}, {100_000, 200_000, 100, true},
	}
	for _, tt := range tests {
		if err := campaign.HeapGate(tt.before, tt.after, tt.percent); (err == nil) != tt.ok {
			t.Errorf("HeapGate(%d, %d, %d) = %v", tt.before, tt.after, tt.percent, err)
		}
	}
}
