package telemetry

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"fleetd/fleet"
)

// A Config is the configuration that a device with the included firmware reports as its current
// one (notifications/config, and the answers to [fleet.ToolConfigGet] and [fleet.ToolConfigSet]).
type Config struct {
	Version int64 `json:"version"`
	// unconfirmed: the device reverts it if it loses fleetd within two minutes
	OnTrial  bool            `json:"on_trial"`
	Reverted int64           `json:"reverted"` // the last reverted version; 0 without one
	Values   json.RawMessage `json:"values"`   // an object of booleans, integers and strings
	At       time.Time       `json:"at"`       // when it was reported
}

// ConfigStore stores the latest configuration of each device.
type ConfigStore interface {
	SaveDeviceConfigs(ctx context.Context, latest map[fleet.DeviceID]Config) error
	DeviceConfig(ctx context.Context, device fleet.DeviceID) (Config, error) // fleet.ErrNotFound: it never reported one
}

// Bounds of a configuration: the included firmware accepts 2 KB in all.
const (
	maxSettings    = 64
	maxSettingName = 48
	maxSettingText = 512
	maxConfigBytes = 8 << 10
)

// ParseConfig parses a configuration that a device reports in notifications/config, or as the
// answer to [fleet.ToolConfigGet] or [fleet.ToolConfigSet]. It omits values other than
// booleans, integers and strings. It returns false if raw is not a configuration.
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
