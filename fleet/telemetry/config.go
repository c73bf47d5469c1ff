package telemetry

import (
	"context"
	"encoding/json"
	"fleetd/fleet"
	"time"
)

// A Config is the configuration that a device with the included firmware
// says it runs with (notifications/config, and the answers to
// [fleet.ToolConfigGet] and [fleet.ToolConfigSet]).
type Config struct {
	Version int64 `json:"version"`
	// not confirmed yet: taken back if the device loses fleetd within two minutes
	OnTrial  bool            `json:"on_trial"`
	Reverted int64           `json:"reverted"` // the last version that was taken back; 0 for none
	Values   json.RawMessage `json:"values"`   // an object of booleans, integers and strings
	At       time.Time       `json:"at"`       // reported
}

// ConfigStore keeps the latest configuration of each device.
type ConfigStore interface {
	SaveDeviceConfigs(ctx context.Context, latest map[fleet.DeviceID]Config) error
	DeviceConfig(ctx context.Context, device fleet.DeviceID) (Config, error) // fleet.ErrNotFound: it never told one
}
