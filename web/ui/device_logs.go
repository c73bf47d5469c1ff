package ui

import (
	"fmt"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
	"fleetd/web/forms"
)

// A LogsPage is a device's log and core dumps: GET DevicePath(id, "logs") with level and q. Its
// forms post to DevicePath(id, "logs", "fetch"); "follow" with level; "stop"; "level" with tag and
// to; and DevicePath(id, "core-dumps") with erase.
type LogsPage struct {
	Head    DeviceHead
	Log     DeviceLog
	Crashes DeviceCrashes
	Last    *CallView // the call that the page made
}

// Offers are the tools for logs and core dumps that the device has.
type Offers struct{ Tail, Follow, Level, CoreDump bool }

// Any reports whether the device has one of the tools.
func (o Offers) Any() bool { return o.Tail || o.Follow || o.Level || o.CoreDump }

// NewOffers returns the tools in an inventory; inv may be nil.
func NewOffers(inv *fleet.Inventory) (o Offers) {
	_, o.Tail = inv.Tool(fleet.ToolLogsTail)
	_, o.Follow = inv.Tool(fleet.ToolLogsStream)
	_, o.Level = inv.Tool(fleet.ToolLogsLevel)
	_, o.CoreDump = inv.Tool(fleet.ToolCoreDumpUpload)
	return o
}

// A DeviceLog is the part of a device's log that fleetd has. A live stream replaces its parts by
// their ids, and adds lines with [LogNews].
type DeviceLog struct {
	Device  fleet.DeviceID
	Offers  Offers
	CanAct  bool
	Filter  forms.LogFilter
	Lines   []telemetry.LogLine // lines that match the filter
	All     int                 // number of all lines
	Dropped int64
	Follow  telemetry.Following
	Now     time.Time
}

// NewDeviceLog returns the view of a log.
func NewDeviceLog(id fleet.DeviceID, v telemetry.LogView, f forms.LogFilter, o Offers, canAct bool,
	now time.Time) DeviceLog {
	return DeviceLog{Device: id, Offers: o, CanAct: canAct, Filter: f, Lines: f.Pick(v.Lines), All: len(v.Lines),
		Dropped: v.Dropped, Follow: v.Following, Now: now}
}

func (v DeviceLog) following() bool { return v.Follow.Active(v.Now) }

func (v DeviceLog) path(parts ...string) string {
	return DevicePath(v.Device, append([]string{"logs"}, parts...)...)
}

// textURL returns the address of the matching lines as a file.
func (v DeviceLog) textURL() string {
	path := DevicePath(v.Device, "logs.txt")
	if q := v.Filter.Values().Encode(); q != "" {
		path += "?" + q
	}
	return path
}

// LogNews are the lines since the last ones shown.
type LogNews []telemetry.LogLine

// logClock returns the device's own time of a line: since its start.
func logClock(d time.Duration) string {
	s := int64(d / time.Second)
	return fmt.Sprintf("%d:%02d:%02d.%03d", s/3600, s/60%60, s%60, d/time.Millisecond%1000)
}

// logLetter returns the level as the device's own console prints it: "W" for "warn".
func logLetter(level string) string {
	if level == "" {
		return ""
	}
	return strings.ToUpper(level[:1])
}

// LogText formats a line for a file.
func LogText(l telemetry.LogLine) string {
	return fmt.Sprintf("%s %-7s %s: %s\n", logClock(l.Uptime), l.Level, l.Tag, l.Text)
}
