package ui

import (
	"fmt"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
	"fleetd/web/forms"
)

// A LogsPage is a device's log and what its crashes left:
// GET DevicePath(id, "logs") with level and q. Its forms post to
// DevicePath(id, "logs", "fetch"); "follow" with level; "stop"; "level" with
// tag and to; and DevicePath(id, "core-dumps") with erase.
type LogsPage struct {
	Head    DeviceHead
	Log     DeviceLog
	Crashes DeviceCrashes
	Last    *CallView // the call that the page was left for
}

// Offers says which tools for logs and core dumps the device has.
type Offers struct{ Tail, Follow, Level, CoreDump bool }

// Any reports whether there is one.
func (o Offers) Any() bool { return o.Tail || o.Follow || o.Level || o.CoreDump }

// NewOffers finds the tools; inv may be nil.
func NewOffers(inv *fleet.Inventory) (o Offers) {
	_, o.Tail = inv.Tool(fleet.ToolLogsTail)
	_, o.Follow = inv.Tool(fleet.ToolLogsStream)
	_, o.Level = inv.Tool(fleet.ToolLogsLevel)
	_, o.CoreDump = inv.Tool(fleet.ToolCoreDumpUpload)
	return o
}

// A DeviceLog is what fleetd has of a device's log. A live stream replaces its
// parts by their ids, and adds lines with [LogNews].
type DeviceLog struct {
	Device  fleet.DeviceID
	Offers  Offers
	CanAct  bool
	Filter  forms.LogFilter
	Lines   []telemetry.LogLine // that pass the filter
	All     int                 // with those that do not
	Dropped int64
	Follow  telemetry.Following
	Now     time.Time
}

// NewDeviceLog shows what is there of the log.
func NewDeviceLog(id fleet.DeviceID, v telemetry.LogView, f forms.LogFilter, o Offers, canAct bool,
	now time.Time) DeviceLog {
	return DeviceLog{Device: id, Offers: o, CanAct: canAct, Filter: f, Lines: f.Pick(v.Lines), All: len(v.Lines),
		Dropped: v.Dropped, Follow: v.Following, Now: now}
}

func (v DeviceLog) following() bool { return v.Follow.Active(v.Now) }

func (v DeviceLog) path(parts ...string) string {
	return DevicePath(v.Device, append([]string{"logs"}, parts...)...)
}

// textURL is where the lines that pass can be had as a file.
func (v DeviceLog) textURL() string {
	path := DevicePath(v.Device, "logs.txt")
	if q := v.Filter.Values().Encode(); q != "" {
		path += "?" + q
	}
	return path
}

// LogNews are lines that came since the last ones were shown.
type LogNews []telemetry.LogLine

// logClock is the device's own time of a line: since it started.
func logClock(d time.Duration) string {
	s := int64(d / time.Second)
	return fmt.Sprintf("%d:%02d:%02d.%03d", s/3600, s/60%60, s%60, d/time.Millisecond%1000)
}

// logLetter is the level as the device's own console prints it: "W" of "warn".
func logLetter(level string) string {
	if level == "" {
		return ""
	}
	return strings.ToUpper(level[:1])
}

// LogText writes a line for a file.
func LogText(l telemetry.LogLine) string {
	return fmt.Sprintf("%s %-7s %s: %s\n", logClock(l.Uptime), l.Level, l.Tag, l.Text)
}
