package agent

import (
	"strings"
	"testing"

	"fleetd/fleet"
)

func TestTopicsOfAgents(t *testing.T) {
	tests := []struct {
		topic string
		want  destination
	}{
		{"$mcp-server/lamp-1/esp32/bread", destination{control, "", "lamp-1", "esp32/bread"}},
		{"$mcp-rpc/me/lamp-1/esp32/bread", destination{rpc, "me", "lamp-1", "esp32/bread"}},
		{"$mcp-client/presence/me", destination{kind: presence, client: "me"}},
		{"$mcp-client/capability/me", destination{kind: clientChanged, client: "me"}},
		{"$mcp-server/presence/lamp-1/light", destination{}}, // of servers: only fleetd announces them
		{"$mcp-server/capability/lamp-1/light", destination{}},
		{"$mcp-server/lamp-1", destination{}},
		{"$mcp-server/lamp-1/", destination{}},
		{"$mcp-server//light", destination{}},
		{"$mcp-server/lamp-1/li+ght", destination{}},
		{"$mcp-server/la#mp/light", destination{}},
		{"$mcp-rpc/lamp-1/light", destination{}},
		{"$mcp-rpc/me+/lamp-1/light", destination{}},
		{"$mcp-rpc/" + strings.Repeat("m", 129) + "/lamp-1/light", destination{}},
		{"$mcp-server/lamp-1/" + strings.Repeat("n", 257), destination{}},
		{"$mcp-client/presence/me/too", destination{}},
		{"devices/p2p/lamp-1", destination{}},
		{"", destination{}},
	}
	for _, tt := range tests {
		if got := parse(tt.topic); got != tt.want {
			t.Errorf("parse(%.60q) = %+v, want %+v", tt.topic, got, tt.want)
		}
	}
}

func TestFiltersMatch(t *testing.T) {
	const topic = "$mcp-server/presence/lamp-1/esp32/bread"
	tests := map[string]bool{
		topic:                                 true,
		"$mcp-server/presence/#":              true,
		"$mcp-server/presence/+/#":            true,
		"$mcp-server/presence/+/esp32/+":      true,
		"$mcp-server/presence/+/esp32/#":      true,
		topic + "/#":                          true, // # includes the parent
		"$mcp-server/presence/+/esp32":        false,
		"$mcp-server/presence/+/+":            false,
		topic + "/+":                          false,
		"$mcp-server/presence/lamp-2/#":       false,
		"$mcp-server/presence/+/plugin/#":     false,
		"$mcp-server/presence/lamp-1/esp32/b": false,
	}
	for filter, want := range tests {
		if got := matches(filter, topic); got != want {
			t.Errorf("matches(%q) = %t", filter, got)
		}
	}
}

func TestServerNames(t *testing.T) {
	tests := []struct {
		s    Server
		want string
	}{
		{Server{ID: "a0:85:e3:00:00:01", Kind: fleet.DeviceESP32, Board: "esp-box-3"}, "esp32/esp-box-3"},
		{Server{ID: "a0:85:e3:00:00:01", Kind: fleet.DeviceESP32, Board: "a/b +#"}, "esp32/a-b---"},
		{Server{ID: "a0:85:e3:00:00:01", Kind: fleet.DeviceESP32, Board: strings.Repeat("板", 99)}, "esp32/" + strings.Repeat("-", 64)},
		{Server{ID: "a0:85:e3:00:00:01", Kind: fleet.DeviceESP32}, "esp32"},
		{Server{ID: "lamp-1", Kind: fleet.DeviceMQTT5}, "mqtt5"},
		{Server{ID: "plugin.weather", Kind: fleet.DevicePlugin}, "plugin/weather"},
		{Server{ID: "endpoint.pc", Kind: fleet.DeviceEndpoint}, "endpoint/pc"},
	}
	for _, tt := range tests {
		if got := serverName(tt.s); got != tt.want || parse("$mcp-server/x/"+got).kind != control {
			t.Errorf("serverName(%+v) = %q, want %q", tt.s, got, tt.want)
		}
	}
}

// FuzzParse: whatever an agent publishes to, the parts make the same topic again, without wildcards.
func FuzzParse(f *testing.F) {
	f.Add("$mcp-rpc/me/lamp-1/esp32/bread")
	f.Add("$mcp-server/presence/x/y")
	f.Fuzz(func(t *testing.T, topic string) {
		d := parse(topic)
		again := map[topicKind]string{control: "$mcp-server/" + d.server + "/" + d.name,
			rpc:      "$mcp-rpc/" + d.client + "/" + d.server + "/" + d.name,
			presence: "$mcp-client/presence/" + d.client, clientChanged: "$mcp-client/capability/" + d.client, foreign: topic}
		if again[d.kind] != topic || d.kind != foreign && strings.ContainsAny(d.server+d.name+d.client, "+#") {
			t.Errorf("%q: %+v", topic, d)
		}
	})
}
