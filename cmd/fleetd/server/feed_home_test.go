package server

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// A discovered is a discovery message, with what Home Assistant's schema DEVICE_DISCOVERY_SCHEMA and those of its
// platforms require.
type discovered struct {
	Device struct {
		Identifiers      []string
		Connections      [][]string
		Name             string
		SwVersion        string `json:"sw_version"`
		ConfigurationURL string `json:"configuration_url"`
	}
	Origin     struct{ Name string }
	Components map[string]struct {
		Platform     string
		UniqueID     string `json:"unique_id"`
		Name         string
		StateTopic   string `json:"state_topic"`
		CommandTopic string `json:"command_topic"`
		PayloadPress string `json:"payload_press"`
		Template     string `json:"value_template"`
		Min, Max     *float64
		Enabled      *bool `json:"enabled_by_default"`
		Availability []struct{ Topic string }
	}
}

// homeTopic is TOPIC_MATCHER of Home Assistant, with its prefix.
var homeTopic = regexp.MustCompile(`^homeassistant/\w+/(?:[a-zA-Z0-9_-]+/)?[a-zA-Z0-9_-]+/config$`)

// home connects as Home Assistant does: with a will at its status topic, and filters for discovery.
func (d *testServer) home(t *testing.T, secret string) *subscriber {
	t.Helper()
	s := d.subscriber(t, secret, func(o *mqtt.ClientOptions) { o.SetWill("homeassistant/status", "offline", 0, false) })
	for _, filter := range []string{"homeassistant/+/+/config", "homeassistant/+/+/+/config"} {
		if code := s.subscribe(filter, 0); code != 0 {
			t.Fatalf("SUBACK %#x for %s", code, filter)
		}
	}
	return s
}

// config returns the latest discovery message of a device; nil if the last one removed it, or none came.
func (s *subscriber) config(id fleet.DeviceID) (latest *discovered) {
	for _, m := range s.messages("homeassistant/device/fleetd_" + string(id) + "/") {
		if !homeTopic.MatchString(m.topic) {
			s.t.Errorf("Home Assistant ignores the topic %s", m.topic)
		}
		if latest = nil; m.payload == "" {
			continue
		}
		latest = &discovered{}
		if err := json.Unmarshal([]byte(m.payload), latest); err != nil {
			s.t.Errorf("%s: %v", m.payload, err)
		}
	}
	return latest
}

// state returns the latest state of a device.
func (s *subscriber) state(id fleet.DeviceID) (m received, connected string) {
	if list := s.messages("fleet/state/" + string(id)); len(list) > 0 {
		m = list[len(list)-1]
	}
	var v struct{ Connected string }
	_ = json.Unmarshal([]byte(m.payload), &v)
	return m, v.Connected
}

// A homeCall is a call by REST.
type homeCall struct {
	ID, Tool, State string
	Actor           struct{ Kind, Name string }
	Arguments       map[string]any
	Origin          struct{ Address, Client string }
}

func (d *testServer) callsOf(t *testing.T, id fleet.DeviceID) []homeCall {
	t.Helper()
	var l list[homeCall]
	d.mqtt5REST(t, "GET", "/devices/"+string(id)+"/calls", "", 200, &l)
	return l.Items
}

// Home Assistant discovers devices and simple tools, and its commands are calls under the gate.
func TestFeedForHomeAssistant(t *testing.T) {
	d, devices, end := startFeedServer(t, func(c *Config) { c.HomeAssistant = true })
	mine, other := devices[0], devices[1]
	d.mqtt5REST(t, "PATCH", "/devices/"+string(mine), `{"tags":["lab"],"name":"Desk"}`, 200, nil)
	_, secret := d.newToken(t, operator.TokenRequest{Name: "home", Role: fleet.RoleOperator, Scope: "tag:lab",
		Tools: []string{"self.audio_speaker.*", "self.get_*"}})
	_, viewer := d.newToken(t, operator.TokenRequest{Name: "panel", Role: fleet.RoleViewer})

	ha, panel := d.home(t, secret), d.home(t, viewer)
	d.eventually("the devices are discovered", func() bool {
		return ha.config(mine) != nil && panel.config(mine) != nil && panel.config(other) != nil
	})
	c := ha.config(mine)
	if c.Device.Name != "Desk" || len(c.Device.Identifiers) != 1 || c.Origin.Name != "fleetd" ||
		c.Device.SwVersion == "" || !strings.HasPrefix(c.Device.ConfigurationURL, "http") || !strings.EqualFold(c.Device.Connections[0][1], mine.MAC()) {
		t.Errorf("device %+v, origin %+v", c.Device, c.Origin)
	}
	ids := map[string]bool{}
	for key, x := range c.Components {
		command := slices.Contains([]string{"button", "switch", "number"}, x.Platform)
		if x.UniqueID == "" || ids[x.UniqueID] || x.Name == "" || command != (x.CommandTopic != "") ||
			command == (x.StateTopic != "") || command != (len(x.Availability) == 1) {
			t.Errorf("component %s: %+v", key, x)
		}
		ids[x.UniqueID] = true
	}
	volume, status := c.Components["tool_self_audio_speaker_set_volume"], c.Components["tool_self_get_device_status"]
	if volume.Platform != "number" || volume.Min == nil || *volume.Min != 0 || *volume.Max != 100 ||
		status.Platform != "button" || status.PayloadPress != "PRESS" ||
		c.Components["presence"].Platform != "binary_sensor" || c.Components["version"].Platform != "sensor" {
		t.Fatalf("components %+v", c.Components)
	}
	for key, x := range c.Components {
		if strings.Contains(key, "reboot") || strings.Contains(key, "brightness") {
			t.Errorf("a tool that the token may not call: %+v", x)
		}
	}
	if info := c.Components["tool_self_get_system_info"]; info.Enabled == nil || *info.Enabled {
		t.Errorf("a tool for people is enabled: %+v", info)
	}
	for key, x := range panel.config(mine).Components {
		if x.CommandTopic != "" {
			t.Errorf("a viewer gets the command %s", key)
		}
	}
	if got := ha.config(other); got != nil {
		t.Errorf("a device outside of the scope was discovered: %+v", got)
	}

	// A new subscription gets the state at once, as if it was retained.
	if code := ha.subscribe(c.Components["presence"].StateTopic, 0); code != 0 {
		t.Fatalf("SUBACK %#x", code)
	}
	d.eventually("the state", func() bool { m, connected := ha.state(mine); return connected == "online" && m.retained })
	if code := ha.subscribe("fleet/state/"+string(other), 0); code != 0 {
		t.Errorf("SUBACK %#x", code)
	}

	// Commands.
	before := len(d.callsOf(t, mine))
	for topic, payload := range map[string]string{volume.CommandTopic: "37", status.CommandTopic: "PRESS"} {
		if err := wait(ha.Publish(topic, 0, false, payload)); err != nil {
			t.Fatal(err)
		}
	}
	var made []homeCall
	d.eventually("two calls", func() bool {
		made = d.callsOf(t, mine)
		made = made[:len(made)-before]
		return len(made) == 2 && made[0].State == "succeeded" && made[1].State == "succeeded"
	})
	for _, call := range made {
		if call.Actor.Name != "home" || call.Actor.Kind != "program" {
			t.Errorf("the call is of %+v", call.Actor)
		}
		if call.Tool == "self.audio_speaker.set_volume" && call.Arguments["volume"] != 37.0 {
			t.Errorf("arguments %v", call.Arguments)
		}
		entries := d.get("/audit?kind=call&limit=2")
		if !strings.Contains(entries, `"address":"127.0.0.1"`) || !strings.Contains(entries, `"client":"MQTT sub-`) {
			t.Errorf("origin: %s", entries)
		}
	}

	// What makes no call: payloads that are none, tools and devices outside of the token's rights, a viewer.
	for topic, payload := range map[string]string{
		volume.CommandTopic: "1.5", status.CommandTopic: "press",
		"fleet/command/" + string(mine) + "/self.reboot":                    "PRESS",
		"fleet/command/" + string(mine) + "/self.screen.set_brightness":     "3",
		"fleet/command/" + string(other) + "/self.get_device_status":        "PRESS",
		"fleet/command/nobody/self.get_device_status":                       "PRESS",
		"fleet/command/" + string(mine) + "/self.get_device_status/again":   "PRESS",
		"fleet/command/" + strings.ToUpper(string(mine)) + "/self.get_info": "PRESS",
	} {
		ha.Publish(topic, 0, false, payload)
	}
	panel.Publish(status.CommandTopic, 0, false, "PRESS")
	panel.Publish(volume.CommandTopic, 0, false, "99")
	// An answer to a later message shows that both connections have handled them.
	for _, s := range []*subscriber{ha, panel} {
		if code := s.subscribe("homeassistant/late/#", 0); code != 0 {
			t.Errorf("SUBACK %#x", code)
		}
	}
	if now := d.callsOf(t, mine); len(now) != before+2 {
		t.Errorf("calls %+v", now)
	}
	if now := d.callsOf(t, other); len(now) != 0 {
		t.Errorf("calls of the other device %+v", now)
	}
	// The gate judges: a value outside of the bounds is on record as invalid.
	ha.Publish(volume.CommandTopic, 0, false, "101")
	d.eventually("an invalid call", func() bool {
		now := d.callsOf(t, mine)
		return len(now) == before+3 && now[0].State == "invalid"
	})

	// Home Assistant starts again.
	n, others := len(ha.messages("homeassistant/")), len(panel.messages("homeassistant/"))
	ha.Publish("homeassistant/status", 0, false, "online")
	d.eventually("the configuration again", func() bool { return len(ha.messages("homeassistant/")) > n })
	for _, m := range append(panel.messages("homeassistant/status"), ha.messages("homeassistant/status")...) {
		t.Errorf("a client got %+v", m)
	}
	if got := len(panel.messages("homeassistant/")); got != others {
		t.Errorf("the start of one Home Assistant sent %d messages to another", got-others)
	}

	// The device goes offline, and leaves the scope.
	end()
	d.eventually("it is offline", func() bool { m, connected := ha.state(mine); return connected == "offline" && !m.retained })
	d.mqtt5REST(t, "PATCH", "/devices/"+string(mine), `{"tags":["home"]}`, 200, nil)
	d.eventually("it is removed", func() bool { return ha.config(mine) == nil })
	if m, _ := ha.state(other); m.topic != "" {
		t.Errorf("the state of a device outside of the scope: %+v", m)
	}
	d.mqtt5REST(t, "PATCH", "/devices/"+string(mine), `{"tags":["lab"],"name":"Shelf"}`, 200, nil)
	d.eventually("it is back", func() bool { c := ha.config(mine); return c != nil && c.Device.Name == "Shelf" })

	if stats := d.feed.Stats(); stats.Commands < 3 || stats.Published == 0 || stats.Connections != 2 {
		t.Errorf("%+v", stats)
	}
}
