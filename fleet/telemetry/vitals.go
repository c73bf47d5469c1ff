package telemetry

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"fleetd/fleet"
)

// Vitals are what a device with the included firmware reports about itself,
// unasked, when it connects and then at every heartbeat
// (notifications/telemetry). Stock firmware reports nothing. Text is the
// device's, cleaned and bounded; what a board cannot measure is zero or nil.
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
	HeapFree      int64         `json:"heap_free"` // bytes, as are the next two; of the chip's own memory, without PSRAM
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
	// Stacks has, by task, the bytes of its stack that were never used since the start.
	Stacks map[string]int64 `json:"stacks,omitempty"`
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
	Boots       int64         // highest; 0 if not reported
	Restarted   bool          // the device started again within the step, or since the one before
}

// VitalsStore keeps the latest vitals of each device, and their history in
// steps of [VitalsStep], of an hour once they are older than [VitalsStepsKept].
type VitalsStore interface {
	// SaveVitals keeps the newer of what it is given and what it has.
	SaveVitals(ctx context.Context, latest map[fleet.DeviceID]Vitals) error
	// AddVitalsPoints stores steps, or parts of them: a step that is there
	// already is merged with.
	AddVitalsPoints(ctx context.Context, points map[fleet.DeviceID][]VitalsPoint) error
	Vitals(ctx context.Context, device fleet.DeviceID) (Vitals, error) // fleet.ErrNotFound: it never reported any
	// UnsteadyVitals returns the vitals of those among the devices that are in
	// safe mode, or have crashed since they last stayed up.
	UnsteadyVitals(ctx context.Context, devices []fleet.DeviceID) (map[fleet.DeviceID]Vitals, error)
	VitalsOf(ctx context.Context, devices []fleet.DeviceID) (map[fleet.DeviceID]Vitals, error)
	// LastCoreDumps returns when the latest core dump came of those among the devices
	// that ever sent one.
	LastCoreDumps(ctx context.Context, devices []fleet.DeviceID) (map[fleet.DeviceID]time.Time, error)
	// VitalsHistory returns points in steps of at least step, oldest first.
	VitalsHistory(ctx context.Context, device fleet.DeviceID, since, until time.Time, step time.Duration) ([]VitalsPoint,
		error)
}

// Bounds of what a device reports about itself. A number beyond them counts as
// not reported: no board has so much of it.
const (
	maxVitalText  = 64
	maxTasks      = 32                   // more are not kept
	maxUptime     = 50 * 365 * 24 * 3600 // seconds
	maxVitalCount = 1<<31 - 1
	maxTenths     = 2000 // of a degree
)

// parseTelemetry reads the params of notifications/telemetry. It reports false
// if they do not say how long the device has been up: then they are none.
func parseTelemetry(params json.RawMessage, now time.Time) (Vitals, bool) {
	f, ok := readFields(params)
	if !ok {
		return Vitals{}, false
	}
	uptime, ok := f.number("uptime_s", 0, maxUptime)
	if !ok {
		return Vitals{}, false
	}
	v := Vitals{
		At: f.moment(now), Uptime: time.Duration(uptime) * time.Second,
		Version: f.text("version", maxVitalText), ResetReason: f.text("reset_reason", maxVitalText),
		Boots: f.count("boots", maxVitalCount), Crashes: f.count("crashes", maxVitalCount), Reconnects: f.count("reconnects",
			maxVitalCount),
		SafeMode: f.flag("safe_mode"), CoreDump: f.flag("core_dump"), ConfigVersion: f.count("config_version", 1<<53),
	}
	v.parseMemory(f)
	v.parseNetwork(f.object("network"))
	slot := f.object("slot")
	v.SlotLabel, v.SlotState = slot.text("label", maxVitalText), slot.text("state", maxVitalText)
	if t, ok := f.number("temperature_dc", -maxTenths, maxTenths); ok {
		celsius := float64(t) / 10
		v.Temperature = &celsius
	}
	return v, true
}

func (v *Vitals) parseMemory(f reportFields) {
	heap, queue := f.object("heap"), f.object("queue")
	v.HeapFree = heap.count("free", maxVitalCount)
	v.HeapMin = heap.count("min", maxVitalCount)
	v.HeapLargest = heap.count("largest", maxVitalCount)
	v.QueueWaiting = queue.count("waiting", maxVitalCount)
	v.QueueDropped = queue.count("dropped", maxVitalCount)
	stacks := f.object("stacks")
	if len(stacks) > maxTasks {
		return
	}
	for task := range stacks {
		if unused, ok := stacks.number(task, 0, maxVitalCount); ok && len(task) <= maxVitalText {
			if v.Stacks == nil {
				v.Stacks = make(map[string]int64, len(stacks))
			}
			v.Stacks[task] = unused
		}
	}
}

func (v *Vitals) parseNetwork(f reportFields) {
	v.IP, v.SSID = f.text("ip", maxVitalText), f.text("ssid", maxVitalText)
	if dbm, ok := f.number("rssi_dbm", -150, 30); ok {
		rssi := int(dbm)
		v.RSSI = &rssi
	}
	v.Channel = int(f.count("channel", 1000))
}

// point is one heartbeat as history keeps it.
func (v Vitals) point(restarted bool) VitalsPoint {
	return VitalsPoint{At: v.At.UTC().Truncate(VitalsStep), Beats: 1, HeapFree: v.HeapFree, HeapMin: v.HeapMin,
		HeapLargest: v.HeapLargest,
		RSSI:        v.RSSI, Temperature: v.Temperature, Reconnects: v.Reconnects, Uptime: v.Uptime, Boots: v.Boots,
		Restarted: restarted}
}

// Merge joins two parts of one step. The store does the same in SQL; a test
// holds the two together.
func (p VitalsPoint) Merge(later VitalsPoint) VitalsPoint {
	return VitalsPoint{
		At: p.At, Beats: p.Beats + later.Beats,
		HeapFree: lowestReported(p.HeapFree, later.HeapFree), HeapMin: lowestReported(p.HeapMin, later.HeapMin),
		HeapLargest: lowestReported(p.HeapLargest, later.HeapLargest),
		RSSI:        lowest(p.RSSI, later.RSSI), Temperature: highest(p.Temperature, later.Temperature),
		Reconnects: max(p.Reconnects, later.Reconnects), Uptime: p.uptimeWith(later), Boots: max(p.Boots, later.Boots),
		Restarted: p.Restarted || later.Restarted || (p.Boots > 0 && later.Boots > 0 && p.Boots != later.Boots),
	}
}

// uptimeWith is the uptime at the end of the step: that of the latest start.
func (p VitalsPoint) uptimeWith(later VitalsPoint) time.Duration {
	switch {
	case p.Boots > later.Boots && later.Boots > 0:
		return p.Uptime
	case later.Boots > p.Boots && p.Boots > 0, later.Restarted:
		return later.Uptime
	}
	return max(p.Uptime, later.Uptime)
}

// lowestReported ignores 0: the device did not report it.
func lowestReported(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

func lowest[T cmp.Ordered](a, b *T) *T {
	if a == nil || (b != nil && *b < *a) {
		return b
	}
	return a
}

func highest[T cmp.Ordered](a, b *T) *T {
	if a == nil || (b != nil && *b > *a) {
		return b
	}
	return a
}
