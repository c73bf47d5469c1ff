package feed

import (
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"

	"fleetd/fleet"
)

const (
	maxEntities = 32      // tools of one device
	maxNumber   = 1 << 31 // of a range; Home Assistant shows a slider
)

// toolName matches tools that can be a level of a topic.
var toolName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// An entity is how Home Assistant shows a simple tool.
type entity struct {
	platform string // button, switch or number
	property string // the argument of a switch or number
	min, max float64
}

// entityOf returns the entity of a tool: a switch for one Boolean, a number for one integer with bounds, and a button
// for a tool that can be called without arguments.
func entityOf(t fleet.Tool) (e entity, simple bool) {
	var schema struct {
		Properties map[string]struct {
			Type             any
			Minimum, Maximum *float64
		}
		Required []string
	}
	if !toolName.MatchString(t.Name) || json.Unmarshal(t.InputSchema, &schema) != nil {
		return e, false
	}
	if len(schema.Properties) == 1 {
		for name, p := range schema.Properties {
			switch {
			case p.Type == "boolean":
				return entity{platform: "switch", property: name}, true
			case p.Type == "integer" && p.Minimum != nil && p.Maximum != nil && *p.Minimum < *p.Maximum &&
				math.Abs(*p.Minimum) <= maxNumber && math.Abs(*p.Maximum) <= maxNumber:
				return entity{platform: "number", property: name, min: *p.Minimum, max: *p.Maximum}, true
			}
		}
	}
	return entity{platform: "button"}, len(schema.Required) == 0
}

// arguments returns the arguments of the call for a command.
func (e entity) arguments(payload string) (json.RawMessage, bool) {
	var value any
	switch e.platform {
	case "button":
		return json.RawMessage(`{}`), payload == "PRESS"
	case "switch":
		if payload != "ON" && payload != "OFF" {
			return nil, false
		}
		value = payload == "ON"
	default:
		n, err := strconv.ParseFloat(payload, 64)
		if err != nil || n != math.Trunc(n) || math.Abs(n) > maxNumber {
			return nil, false
		}
		value = int64(n) // the gate checks the bounds
	}
	data, _ := json.Marshal(map[string]any{e.property: value}) // a number or a Boolean
	return data, true
}

// objectID returns the id of a device as Home Assistant accepts it in topics. Ids have no upper-case letters, so no two
// become one.
func objectID(id fleet.DeviceID) string { return "fleetd_" + strings.ReplaceAll(string(id), ".", "D") }

func configTopic(id fleet.DeviceID) string {
	return discoveryPrefix + "device/" + objectID(id) + "/config"
}

// The parts of a discovery message of a device. Home Assistant documents them under "MQTT device discovery".
type (
	discovery struct {
		Device     deviceInfo           `json:"device"`
		Origin     originInfo           `json:"origin"`
		Components map[string]component `json:"components"`
	}
	deviceInfo struct {
		Identifiers  []string    `json:"identifiers"`
		Connections  [][2]string `json:"connections,omitempty"`
		Name         string      `json:"name"`
		Model        string      `json:"model,omitempty"`
		SerialNumber string      `json:"serial_number"`
		Version      string      `json:"sw_version,omitempty"`
		URL          string      `json:"configuration_url,omitempty"`
	}
	originInfo struct {
		Name    string `json:"name"`
		Version string `json:"sw_version,omitempty"`
		URL     string `json:"support_url,omitempty"`
	}
	component struct {
		Platform      string         `json:"platform"`
		UniqueID      string         `json:"unique_id"`
		Name          string         `json:"name"`
		Category      string         `json:"entity_category,omitempty"`
		DeviceClass   string         `json:"device_class,omitempty"`
		StateTopic    string         `json:"state_topic,omitempty"`
		ValueTemplate string         `json:"value_template,omitempty"`
		PayloadOn     string         `json:"payload_on,omitempty"`
		PayloadOff    string         `json:"payload_off,omitempty"`
		PayloadPress  string         `json:"payload_press,omitempty"`
		CommandTopic  string         `json:"command_topic,omitempty"`
		Availability  []availability `json:"availability,omitempty"`
		Optimistic    bool           `json:"optimistic,omitempty"`
		Min           *float64       `json:"min,omitempty"`
		Max           *float64       `json:"max,omitempty"`
		Step          float64        `json:"step,omitempty"`
		Enabled       *bool          `json:"enabled_by_default,omitempty"`
	}
	availability struct {
		Topic    string `json:"topic"`
		Template string `json:"value_template"`
	}
)

// config returns the discovery message of a device for a principal. A principal that may not call gets no commands.
func (s *Service) config(by fleet.Principal, d fleet.Device, inventory *fleet.Inventory) string {
	id, state := objectID(d.ID), statePrefix+string(d.ID)
	name := d.Name
	if name == "" {
		name = string(d.ID)
	}
	m := discovery{
		Device: deviceInfo{Identifiers: []string{id}, Name: name, Model: d.Board, SerialNumber: string(d.ID),
			Version: d.Version, URL: s.o.PublicURL + "/devices/" + string(d.ID)},
		Origin: originInfo{Name: "fleetd", Version: s.o.Version, URL: s.o.PublicURL},
		Components: map[string]component{
			"presence": {Platform: "binary_sensor", UniqueID: id + "_presence", Name: "Connection", Category: "diagnostic",
				DeviceClass: "connectivity", StateTopic: state, ValueTemplate: "{{ value_json.connected }}",
				PayloadOn: "online", PayloadOff: "offline"},
			"version": {Platform: "sensor", UniqueID: id + "_version", Name: "Firmware", Category: "diagnostic",
				StateTopic: state, ValueTemplate: "{{ value_json.version }}"}},
	}
	if mac := d.ID.MAC(); mac != "" {
		m.Device.Connections = [][2]string{{"mac", mac}}
	}
	if inventory != nil {
		m.addTools(by, d, inventory.Tools)
	}
	data, _ := json.Marshal(m) // strings, and numbers that were JSON
	return string(data)
}

// addTools adds the simple tools that the principal may call. Those for people only are disabled until somebody enables
// them in Home Assistant.
func (m *discovery) addTools(by fleet.Principal, d fleet.Device, tools []fleet.Tool) {
	for _, t := range tools {
		e, simple := entityOf(t)
		key := "tool_" + strings.ReplaceAll(t.Name, ".", "_")
		if _, taken := m.Components[key]; taken || !simple || !mayCall(by, d, t) || len(m.Components) >= maxEntities {
			continue
		}
		c := component{Platform: e.platform, UniqueID: objectID(d.ID) + "_" + key, Name: strings.TrimPrefix(t.Name, "self."),
			CommandTopic: commandPrefix + string(d.ID) + "/" + t.Name,
			Availability: []availability{{statePrefix + string(d.ID), "{{ value_json.connected }}"}}}
		switch e.platform {
		case "button":
			c.PayloadPress = "PRESS"
		case "switch":
			c.PayloadOn, c.PayloadOff, c.Optimistic = "ON", "OFF", true
		case "number":
			c.Min, c.Max, c.Step, c.Optimistic = &e.min, &e.max, 1, true
		}
		if t.Audience == fleet.AudienceUser {
			c.Enabled = new(bool)
		}
		m.Components[key] = c
	}
}
