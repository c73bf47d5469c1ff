package ui

import (
	"context"
	"encoding/json"
	"time"

	"fleetd/fleet"
	"fleetd/web/i18n"
)

// A CallsPage is the record of calls: GET [PathCalls].
type CallsPage struct {
	List       ListURL // with device, tool, actor, state, since, until
	Rows       []CallRow
	Prev, Next string
	Bad        string // why the filter is invalid; "" if it is valid
}

func (v CallsPage) exportURL() string {
	return ListURL{Path: PathCallsExport, Values: v.List.Values}.At("")
}

// A CallRow is one call in a list. A live stream sends it as a patch.
type CallRow struct {
	ID         string
	At         time.Time
	Device     fleet.DeviceID
	DeviceName string
	NoDevice   bool // the list is about one device, which need not be repeated
	Tool       string
	Arguments  string // compact JSON, shortened by the component
	Actor      fleet.Principal
	State      fleet.CallState
	Duration   time.Duration // 0 without an outcome
	Detail     string        // first text of the result; foreign text
	Error      *fleet.CallError
	CanCancel  bool // it waits, and the viewer may cancel it
}

// NewCallRow returns a call as a row. name is the device's, detail one line of its result.
func NewCallRow(c fleet.Call, name, detail string) CallRow {
	row := CallRow{
		ID: c.ID.String(), At: c.CreatedAt, Device: c.Device, DeviceName: name, Tool: c.Tool,
		Arguments: arguments(c.Arguments), Actor: c.Actor, State: c.State, Duration: c.Duration(), Detail: detail,
		Error: c.Error,
	}
	return row
}

// detail returns the cause of a failure, or else the device's result.
func (c CallRow) detail(ctx context.Context) (text string, foreign bool) {
	if c.Detail != "" || c.Error == nil {
		return c.Detail, true
	}
	return callErrorText(ctx, c.Error)
}

// callErrorText returns the cause of a failed call, and whether all of it is foreign; else foreign
// parts are marked, for [phrase].
func callErrorText(ctx context.Context, e *fleet.CallError) (text string, foreign bool) {
	p := page(ctx)
	return i18n.CallErrorMarked(p.Lang, p.Zone, e)
}

func (c CallRow) in(oneDevice bool) CallRow {
	c.NoDevice = oneDevice
	return c
}

func arguments(raw json.RawMessage) string {
	if s := string(raw); s != "{}" && s != "null" {
		return s
	}
	return ""
}

// shorten bounds foreign text in a table; the whole text is one click away.
func shorten(s string, runes int) string {
	n := 0
	for i := range s {
		if n == runes {
			return s[:i] + "…"
		}
		n++
	}
	return s
}

func (v CallsPage) eventsURL() string { return listEvents(v.Bad, ViewCalls, v.List) }

// stateFilters are the outcomes that the filter offers, as lists for the state parameter.
var stateFilters = []fleet.CallState{
	fleet.CallSucceeded, fleet.CallToolError, fleet.CallTimedOut, fleet.CallUnknown,
	fleet.CallRefused, fleet.CallInvalid, fleet.CallOffline, fleet.CallCanceled, fleet.CallSent, fleet.CallPending,
	fleet.CallPendingApproval, fleet.CallPendingDevice,
}
