package telemetry

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"fleetd/fleet"
)

// Vitals are the state that a device with the included firmware reports unasked, when it connects
// and then at every heartbeat (notifications/telemetry). Stock firmware reports no vitals. Text
// comes from the device, cleaned and bounded; values that a board cannot measure are zero or nil.
type Vitals struct {
	At            time.Time     `json:"at"` // by the device's clock if plausible, else the time of receipt
	Uptime        time.Duration `json:"uptime_ns"`
	Version       string        `json:"version"`
	ResetReason   string        `json:"reset_reason"`
	Boots         int64         `json:"boots"`
	Crashes       int64         `json:"crashes"` // in a row, up to now
	Reconnects    int64         `json:"reconnects"`
	SafeMode      bool          `json:"safe_mode"` // started with upgrades, logs and core dump only
	ConfigVersion int64         `json:"config_version"`
	HeapFree      int64         `json:"heap_free"` // bytes, as are the next two; internal memory, without PSRAM
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
	CoreDump      bool          `json:"core_dump"` // the device has one to upload
	// Stacks contains, by task, the bytes of its stack that were never used since the start.
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
	Reconnects  int64         // highest; restarts from 0 with the device
	Uptime      time.Duration // at the end of the step
	Boots       int64         // highest; 0 if not reported
	Restarted   bool          // the device started again within the step, or since the previous one
}

// VitalsStore stores the latest vitals of each device, and their history in steps of
// [VitalsStep], or of an hour once they are older than [VitalsStepsKept].
type VitalsStore interface {
	// SaveVitals stores the given vitals of each device unless the stored ones are newer.
	SaveVitals(ctx context.Context, latest map[fleet.DeviceID]Vitals) error
	// AddVitalsPoints stores steps, or parts of them: it merges a step into a stored one.
	AddVitalsPoints(ctx context.Context, points map[fleet.DeviceID][]VitalsPoint) error
	Vitals(ctx context.Context, device fleet.DeviceID) (Vitals, error) // fleet.ErrNotFound: it never reported any
	// UnsteadyVitals returns the vitals of the given devices that are in safe mode, or have
	// crashed since they last stayed up.
	UnsteadyVitals(ctx context.Context, devices []fleet.DeviceID) (map[fleet.DeviceID]Vitals, error)
	VitalsOf(ctx context.Context, devices []fleet.DeviceID) (map[fleet.DeviceID]Vitals, error)
	// LastCoreDumps returns the time of the latest core dump for the given devices that ever
	// sent one.
	LastCoreDumps(ctx context.Context, devices []fleet.DeviceID) (map[fleet.DeviceID]time.Time, error)
	// VitalsHistory returns points in steps of at least step, oldest first.
	VitalsHistory(ctx context.Context, device fleet.DeviceID, since, until time.Time, step time.Duration) ([]VitalsPoint,
		error)
}

// Bounds of a device's vitals. A number beyond them counts as not reported: no board reaches it.
const (
	maxVitalText  = 64
	maxTasks      = 32                   // further ones are dropped
	maxUptime     = 50 * 365 * 24 * 3600 // seconds
	maxVitalCount = 1<<31 - 1
	maxTenths     = 2000 // of a degree
)

// parseTelemetry parses the params of notifications/telemetry. It returns false if they lack
// the uptime: without it they are not vitals.
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

// point returns one heartbeat as a point of the history.
func (v Vitals) point(restarted bool) VitalsPoint {
	return VitalsPoint{At: v.At.UTC().Truncate(VitalsStep), Beats: 1, HeapFree: v.HeapFree, HeapMin: v.HeapMin,
		HeapLargest: v.HeapLargest,
		RSSI:        v.RSSI, Temperature: v.Temperature, Reconnects: v.Reconnects, Uptime: v.Uptime, Boots: v.Boots,
		Restarted: restarted}
}

// Merge joins two parts of one step. The store does the same in SQL; a test checks that both agree.
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

// uptimeWith returns the uptime at the end of the step, counted from the latest start.
func (p VitalsPoint) uptimeWith(later VitalsPoint) time.Duration {
	switch {
	case p.Boots > later.Boots && later.Boots > 0:
		return p.Uptime
	case later.Boots > p.Boots && p.Boots > 0, later.Restarted:
		return later.Uptime
	}
	return max(p.Uptime, later.Uptime)
}

// lowestReported ignores 0: the device did not report that value.
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
