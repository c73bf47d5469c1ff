package server

import (
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/plugin"
)

// A plug-in is down from its first look in a crash loop until it runs.
func TestPluginProbe(t *testing.T) {
	state := plugin.Running
	probe := pluginProbe{down: map[string]time.Time{}, list: func(by fleet.Principal) ([]plugin.Listed, error) {
		if err := by.May(fleet.RoleAdmin, "plugins"); err != nil {
			return nil, err
		}
		return []plugin.Listed{{Plugin: plugin.Plugin{Name: "lamp"}, Status: plugin.Status{State: state}}}, nil
	}}
	for _, look := range []struct {
		state plugin.State
		down  bool
	}{{plugin.Running, false}, {plugin.Waiting, false}, {plugin.Crashing, true}, {plugin.Starting, true},
		{plugin.Waiting, true}, {plugin.Running, false}, {plugin.Invalid, true}, {plugin.Disabled, false}} {
		state = look.state
		all := probe.look()
		if len(all) != 1 || all[0].Down.IsZero() == look.down {
			t.Errorf("%s: %+v", look.state, all)
		}
	}
}
