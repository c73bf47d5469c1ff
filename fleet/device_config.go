package fleet

import (
	"context"
	"encoding/json"
	"time"
)

// Tools of the included firmware that fleetd treats in a way of its own.
const (
	ToolRollback       = "self.rollback"
	ToolConfigGet      = "self.config.get"
	ToolConfigSet      = "self.config.set"
	ToolLogsTail       = "self.logs.tail"
	ToolLogsLevel      = "self.logs.set_level"
	ToolLogsStream     = "self.logs.stream"
	ToolCoreDumpInfo   = "self.core_dump.get_info"
	ToolCoreDumpUpload = "self.core_dump.upload"
)

// A DeviceConfig is the configuration that a device with the included firmware
// says it runs with (notifications/config, and the answers to
// [ToolConfigGet] and [ToolConfigSet]).
type DeviceConfig struct {
	Version  int64           `json:"version"`
	OnTrial  bool            `json:"on_trial"` // not confirmed yet: taken back if the device loses fleetd within two minutes
	Reverted int64           `json:"reverted"` // the last version that was taken back; 0 for none
	Values   json.RawMessage `json:"values"`   // an object of booleans, integers and strings
	At       time.Time       `json:"at"`       // reported
}

// DeviceConfigStore keeps the latest configuration of each device.
type DeviceConfigStore interface {
	SaveDeviceConfigs(ctx context.Context, latest map[DeviceID]DeviceConfig) error
	DeviceConfig(ctx context.Context, device DeviceID) (DeviceConfig, error) // ErrNotFound: it never told one
}
