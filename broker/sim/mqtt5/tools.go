package mqtt5

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

type paramKind string

const (
	boolean paramKind = "boolean"
	integer paramKind = "integer"
)

// A param declares one argument of a tool. A Boolean is 0 or 1.
type param struct {
	name        string
	kind        paramKind
	description string
	min, max    int // of an integer
}

// A tool is a function that a device offers. run is called with d.mu held, and with a value for
// each of params.
type tool struct {
	name        string
	description string
	params      []param
	sensor      bool // offered only while the sensor is attached
	conforming  bool // not offered with the SDK, whose list of tools never changes
	run         func(s *State, args []int) string
}

var tools = []*tool{
	{
		name: "get_status", description: "Returns the state of the lamp.",
		run: func(s *State, _ []int) string {
			return fmt.Sprintf(`{"volume":%d,"light":%t,"brightness":%d,"sensor":%t}`, s.Volume, s.Light, s.Brightness,
				s.Sensor)
		},
	},
	{
		name: "set_volume", description: "Sets the volume of the speaker.",
		params: []param{{name: "volume", kind: integer, description: "Percent", max: 100}},
		run:    func(s *State, args []int) string { s.Volume = args[0]; return "true" },
	},
	{
		name: "set_light", description: "Switches the lamp on or off.",
		params: []param{{name: "on", kind: boolean},
			{name: "brightness", kind: integer, description: "Percent", min: 1, max: 100}},
		run: func(s *State, args []int) string { s.Light, s.Brightness = args[0] == 1, args[1]; return "true" },
	},
	{
		name: "attach_sensor", description: "Attaches or removes the temperature sensor, which has a tool.",
		params: []param{{name: "attached", kind: boolean}}, conforming: true,
		run: func(s *State, args []int) string { s.Sensor = args[0] == 1; return "true" },
	},
	{
		name: "read_temperature", description: "Returns the temperature in degrees Celsius.", sensor: true, conforming: true,
		run: func(*State, []int) string { return "21.5" },
	},
}

// offers reports whether a device in this state offers the tool.
func (t *tool) offers(sdk, sensor bool) bool { return !(t.conforming && sdk) && (!t.sensor || sensor) }

// listings are the results of tools/list, which all devices share: of conforming devices without
// and with a sensor, and of the SDK.
var listings = [3]string{listing(false, false), listing(false, true), listing(true, false)}

func (d *Device) listing() string {
	switch {
	case d.sdk:
		return listings[2]
	case d.State().Sensor:
		return listings[1]
	}
	return listings[0]
}

func listing(sdk, sensor bool) string {
	var all []string
	for _, t := range tools {
		if t.offers(sdk, sensor) {
			all = append(all, t.marshal(sdk))
		}
	}
	return `{"tools":[` + strings.Join(all, ",") + `]}`
}

func (t *tool) marshal(sdk bool) string {
	var properties, required []string
	for _, p := range t.params {
		properties = append(properties, strconv.Quote(p.name)+":"+p.marshal(sdk))
		required = append(required, strconv.Quote(p.name))
	}
	return fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":{"type":"object","properties":{%s},"required":[%s]}}`,
		t.name, t.description, strings.Join(properties, ","), strings.Join(required, ","))
}

func (p param) marshal(sdk bool) string {
	kind := strconv.Quote(string(p.kind))
	if sdk && p.kind == boolean {
		kind = "true"
	}
	text := `{"type":` + kind
	if p.description != "" {
		text += `,"description":` + strconv.Quote(p.description)
	}
	if p.kind == integer && !sdk {
		text += fmt.Sprintf(`,"minimum":%d,"maximum":%d`, p.min, p.max)
	}
	return text + "}"
}

// read returns the value of an argument.
func (p param) read(value json.RawMessage) (n int, ok bool) {
	if p.kind == boolean {
		var on bool
		if json.Unmarshal(value, &on) != nil || len(value) == 0 || string(value) == "null" {
			return 0, false
		}
		if on {
			n = 1
		}
		return n, true
	}
	var number *int
	if json.Unmarshal(value, &number) != nil || number == nil {
		return 0, false
	}
	return *number, *number >= p.min && *number <= p.max
}

// tool returns the tool with this name, if the device offers it now.
func (d *Device) tool(name string) (*tool, bool) {
	sensor := d.State().Sensor
	i := slices.IndexFunc(tools, func(t *tool) bool { return t.name == name && t.offers(d.sdk, sensor) })
	if i < 0 {
		return nil, false
	}
	return tools[i], true
}

// call runs a tool as the protocol says.
func (d *Device) call(params json.RawMessage) (string, error) {
	var call struct {
		Name      string
		Arguments map[string]json.RawMessage
	}
	if err := json.Unmarshal(params, &call); err != nil {
		return "", &rpcError{Code: codeInvalidParams, Message: "Invalid params"}
	}
	t, ok := d.tool(call.Name)
	if !ok {
		return "", &rpcError{Code: codeInvalidParams, Message: "Unknown tool: " + call.Name}
	}
	args := make([]int, len(t.params))
	for i, p := range t.params {
		if args[i], ok = p.read(call.Arguments[p.name]); !ok {
			return "", &rpcError{Code: codeInvalidParams, Message: "Missing or invalid argument: " + p.name}
		}
	}
	return d.run(t, args), nil
}

func (d *Device) run(t *tool, args []int) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return t.run(&d.state, args)
}
