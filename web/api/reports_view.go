package api

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

type vitalsView struct {
	At            time.Time        `json:"at" doc:"By the device's clock if plausible, else the time of receipt"`
	UptimeMS      int64            `json:"uptime_ms"`
	Version       string           `json:"version"`
	ResetReason   string           `json:"reset_reason"`
	Boots         int64            `json:"boots" doc:"Starts in the device's life; 0 if it does not count them"`
	Crashes       int64            `json:"crashes" doc:"In a row, up to now"`
	Reconnects    int64            `json:"reconnects" doc:"Since the start"`
	SafeMode      bool             `json:"safe_mode" doc:"Started with upgrades, logs and core dump only"`
	CoreDump      bool             `json:"core_dump" doc:"A core dump is waiting on the device"`
	ConfigVersion int64            `json:"config_version"`
	Heap          heapView         `json:"heap"`
	Queue         queueView        `json:"queue"`
	Network       networkView      `json:"network"`
	Slot          slotView         `json:"slot"`
	TemperatureC  *float64         `json:"temperature_c" doc:"null: the device has no sensor"`
	Stacks        map[string]int64 `json:"stacks,omitempty" doc:"By task: stack bytes never used since the start; omitted by devices that do not measure it"`
}

type heapView struct {
	Free    int64 `json:"free" doc:"Bytes, as are the others"`
	Min     int64 `json:"min" doc:"Lowest since the start"`
	Largest int64 `json:"largest" doc:"Largest free block"`
}

type queueView struct {
	Waiting int64 `json:"waiting" doc:"Messages that the device could not send yet"`
	Dropped int64 `json:"dropped" doc:"Since the start"`
}

type networkView struct {
	IP      string `json:"ip"`
	SSID    string `json:"ssid"`
	RSSIDBM *int   `json:"rssi_dbm" doc:"null: not on Wi-Fi"`
	Channel int    `json:"channel"`
}

type slotView struct {
	Label string `json:"label"`
	State string `json:"state" doc:"valid, pending_verify, ..."`
}

func vitals(v telemetry.Vitals) vitalsView {
	return vitalsView{At: utc(v.At), UptimeMS: v.Uptime.Milliseconds(), Version: v.Version, ResetReason: v.ResetReason,
		Boots:   v.Boots,
		Crashes: v.Crashes, Reconnects: v.Reconnects, SafeMode: v.SafeMode, CoreDump: v.CoreDump,
		ConfigVersion: v.ConfigVersion,
		Heap:          heapView{v.HeapFree, v.HeapMin, v.HeapLargest},
		Queue:         queueView{v.QueueWaiting, v.QueueDropped},
		Network:       networkView{v.IP, v.SSID, v.RSSI, v.Channel},
		Slot:          slotView{v.SlotLabel, v.SlotState}, TemperatureC: v.Temperature, Stacks: v.Stacks}
}

type vitalsPointView struct {
	At           time.Time `json:"at" doc:"Beginning of the step"`
	Beats        int       `json:"beats" doc:"Heartbeats within it"`
	HeapFree     int64     `json:"heap_free" doc:"Lowest; 0 if not reported, as are the next two"`
	HeapMin      int64     `json:"heap_min"`
	HeapLargest  int64     `json:"heap_largest"`
	RSSIDBM      *int      `json:"rssi_dbm" doc:"Lowest"`
	TemperatureC *float64  `json:"temperature_c" doc:"Highest"`
	Reconnects   int64     `json:"reconnects" doc:"Highest count since the device's start"`
	UptimeMS     int64     `json:"uptime_ms" doc:"At the end of the step"`
	Restarted    bool      `json:"restarted" doc:"The device restarted within the step, or since the previous one"`
}

func vitalsPoint(p telemetry.VitalsPoint) vitalsPointView {
	return vitalsPointView{At: utc(p.At), Beats: p.Beats, HeapFree: p.HeapFree, HeapMin: p.HeapMin,
		HeapLargest: p.HeapLargest, RSSIDBM: p.RSSI,
		TemperatureC: p.Temperature, Reconnects: p.Reconnects, UptimeMS: p.Uptime.Milliseconds(), Restarted: p.Restarted}
}

type jobView struct {
	ID         string         `json:"id" doc:"As it was named in the call, or by the device"`
	Kind       string         `json:"kind" doc:"upgrade, rollback, ..."`
	State      fleet.JobState `json:"state" enum:"accepted,progress,done,failed"`
	Percent    int            `json:"percent"`
	Code       string         `json:"code" doc:"Why it failed, as the device's code"`
	Reason     string         `json:"reason" doc:"Why it failed, in the device's words"`
	Deployment *uuid.UUID     `json:"deployment_id" format:"uuid" nullable:"true" doc:"The deployment to which the job belongs"`
	StartedAt  time.Time      `json:"started_at"`
	UpdatedAt  time.Time      `json:"updated_at" doc:"Time of the latest report; a stalled job keeps it"`
	FinishedAt *time.Time     `json:"finished_at"`
}

func job(j telemetry.Job) jobView {
	v := jobView{ID: j.ID, Kind: j.Kind, State: j.State, Percent: j.Percent, Code: j.Code, Reason: j.Reason,
		StartedAt: utc(j.StartedAt), UpdatedAt: utc(j.UpdatedAt), FinishedAt: utcOrNil(j.FinishedAt)}
	if j.Deployment != (uuid.UUID{}) {
		v.Deployment = &j.Deployment
	}
	return v
}

type configView struct {
	Version  int64           `json:"version"`
	OnTrial  bool            `json:"on_trial" doc:"Not confirmed yet: reverted if the device loses fleetd within two minutes"`
	Reverted int64           `json:"reverted" doc:"The last version that was reverted; 0: none"`
	Values   json.RawMessage `json:"values" doc:"An object of booleans, integers and strings"`
	At       time.Time       `json:"at" doc:"Reported"`
}
