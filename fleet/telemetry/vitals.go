package telemetry

import (
	"context"
	"fleetd/fleet"
	"time"
)

// Vitals are what a device with the included firmware tells of itself, unasked,
// when it connects and then at every heartbeat (notifications/telemetry). Stock
// firmware tells nothing. Text is the device's own, cleaned and bounded; what a
// board cannot tell is zero or nil.
type Vitals struct {
	At            time.Time     `json:"at"` // by the device's clock if that can be right, else received
	Uptime        time.Duration `json:"uptime_ns"`
	Version       string        `json:"version"`
	ResetReason   string        `json:"reset_reason"`
	Boots         int64         `json:"boots"`
	Crashes       int64         `json:"crashes"` // in a row, up to now
	Reconnects    int64         `json:"reconnects"`
	SafeMode      bool          `json:"safe_mode"` // started with upgrades, logs and core dump only
	ConfigVersion int64         `json:"config_version"`
	HeapFree      int64         `json:"heap_free"` // bytes, as are the next two
	HeapMin       int64         `json:"heap_min"`  // since the start
	HeapLargest   int64         `json:"heap_largest"`
	QueueWaiting  int64         `json:"queue_waiting"` // messages that the device could not send yet
	QueueDropped  int64         `json:"queue_dropped"` // since the start
	IP            string        `json:"ip"`
	SSID          string        `json:"ssid"`
	RSSI          *int          `json:"rssi_dbm"`
	Channel       int           `json:"channel"`
	SlotLabel     string        `json:"slot_label"`
	SlotState     string        `json:"slot_state"` // "valid", "pending_verify", …
	Temperature   *float64      `json:"temperature_c"`
	CoreDump      bool          `json:"core_dump"` // one waits on the device
}

// VitalsStep is the width of the finest [VitalsPoint].
const VitalsStep = 5 * time.Minute

// A VitalsPoint sums up the heartbeats of a device over a step of time.
type VitalsPoint struct {
	At          time.Time // beginning of the step
	Beats       int
	HeapFree    int64         // lowest
	HeapMin     int64         // lowest
	HeapLargest int64         // lowest
	RSSI        *int          // lowest, dBm
	Temperature *float64      // highest
	Reconnects  int64         // highest; starts over with the device
	Uptime      time.Duration // at the end of the step
	Boots       int64         // highest; 0 if not told
	Restarted   bool          // the device started anew within the step, or since the one before
}

// VitalsStore keeps the latest vitals of each device, and their history in
// steps of [VitalsStep], of an hour once they are older than [VitalsStepsKept].
type VitalsStore interface {
	// SaveVitals keeps the newer of what it is given and what it has.
	SaveVitals(ctx context.Context, latest map[fleet.DeviceID]Vitals) error
	// AddVitalsPoints stores steps, or parts of them: a step that is there
	// already is merged with.
	AddVitalsPoints(ctx context.Context, points map[fleet.DeviceID][]VitalsPoint) error
	Vitals(ctx context.Context, device fleet.DeviceID) (Vitals, error) // fleet.ErrNotFound: it never told any
	// UnsteadyVitals returns the vitals of those among the devices that are in
	// safe mode, or have crashed since they last stayed up.
	UnsteadyVitals(ctx context.Context, devices []fleet.DeviceID) (map[fleet.DeviceID]Vitals, error)
	// VitalsHistory returns points in steps of at least step, oldest first.
	VitalsHistory(ctx context.Context, device fleet.DeviceID, since, until time.Time, step time.Duration) ([]VitalsPoint,
		error)
}
