package telemetry

import (
	"encoding/json"
	"time"
)

// Bounds of what a device tells of itself. A number beyond them counts as not
// told: no board has so much of it.
const (
	maxVitalText  = 64
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
}

func (v *Vitals) parseNetwork(f reportFields) {
	v.IP, v.SSID = f.text("ip", maxVitalText), f.text("ssid", maxVitalText)
	if dbm, ok := f.number("rssi_dbm", -150, 30); ok {
		rssi := int(dbm)
		v.RSSI = &rssi
	}
	v.Channel = int(f.count("channel", 1000))
}
