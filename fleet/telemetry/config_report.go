package telemetry

import (
	"encoding/json"
	"fleetd/fleet"
	"strconv"
	"time"
)

// Bounds of a configuration: the included firmware takes 2 KB in all.
const (
	maxSettings    = 64
	maxSettingName = 48
	maxSettingText = 512
	maxConfigBytes = 8 << 10
)

// ParseConfig reads a configuration as a device tells it: in
// notifications/config, and as the answer to [fleet.ToolConfigGet] and
// [fleet.ToolConfigSet]. A value that is no boolean, integer or string is left out.
// It reports false if raw is no configuration.
func ParseConfig(raw json.RawMessage, now time.Time) (Config, bool) {
	f, ok := readFields(raw)
	if !ok || len(raw) > maxConfigBytes {
		return Config{}, false
	}
	version, ok := f.number("version", 0, 1<<53)
	values, isObject := readFields(f["values"])
	if !ok || !isObject || len(values) > maxSettings {
		return Config{}, false
	}
	c := Config{Version: version, OnTrial: f.flag("on_trial"), Reverted: f.count("reverted", 1<<53), At: now}
	c.Values, _ = json.Marshal(values.settings()) // booleans, integers and strings marshal
	return c, true
}

func (f reportFields) settings() map[string]any {
	kept := make(map[string]any, len(f))
	for name, raw := range f {
		if name == "" || len(name) > maxSettingName || fleet.CleanText(name, maxSettingName) != name {
			continue
		}
		if v, ok := setting(raw); ok {
			kept[name] = v
		}
	}
	return kept
}

func setting(raw json.RawMessage) (any, bool) {
	switch raw[0] {
	case 't', 'f':
		return raw[0] == 't', true
	case '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return fleet.CleanText(s, maxSettingText), err == nil
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	return n, err == nil
}
