package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"fleetd/fleet"
	"fleetd/fleet/history"
	"fleetd/web/access"
)

func (a *api) registerHistory() {
	const path = "/history"
	const scoped = " Which devices exist for a token depends on what they are now."
	register(a, operation{id: "get-history", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: path, role: fleet.RoleViewer,
		summary: "Show from when on the past of the fleet is known"}, a.getHistory)
	register(a, operation{id: "list-past-devices", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: path + "/devices", role: fleet.RoleViewer,
		summary: "List the devices of a past moment, by name",
		about: "q is the filter of the list of devices, about that moment; without the fields seen, crashed, slot, elf, transport, conflict, safe_mode and core_dump, which are not kept. " +
			"422 before_history before the beginning of the history." + scoped}, a.listPastDevices)
	register(a, operation{id: "count-past-devices", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: path + "/counts", role: fleet.RoleViewer,
		summary: "Count the devices of a past moment by version, board, tag or presence"}, a.countPastDevices)
	register(a, operation{id: "list-past-changes", reach: access.List, models: fleet.ModelsNever,
		method: http.MethodGet, path: path + "/diff", role: fleet.RoleViewer,
		summary: "List the devices that differ between two moments, by id, and count them",
		about:   "What happened in between and was undone is no difference." + scoped}, a.listPastChanges)
	register(a, operation{id: "get-adoption", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: path + "/adoption", role: fleet.RoleViewer,
		summary: "Count the devices of each version at moments of a period",
		about:   "Of devices in service that run firmware. The twelve versions with the most devices have a series; others has the sum of the rest."}, a.getAdoption)
	register(a, operation{id: "list-device-states", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}/states", role: fleet.RoleViewer, noun: "device",
		summary: "List what a device was, newest first; the first item is what it is now"}, a.listDeviceStates)
}

// HistoryView is how far the history goes back.
type HistoryView struct {
	Begin    time.Time `json:"begins_at" doc:"Of all that past devices have"`
	Versions time.Time `json:"versions_begin_at" doc:"Of the versions that devices ran"`
}

func (a *api) getHistory(ctx context.Context, _ fleet.Principal, _ *struct{}) (*answer[HistoryView], error) {
	b, err := a.History.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return answerWith(HistoryView{utc(b.States), utc(b.Versions)}), nil
}

// PastDevice is what a device was at a moment.
type PastDevice struct {
	ID         fleet.DeviceID   `json:"id"`
	Kind       fleet.DeviceKind `json:"kind" enum:"esp32,mqtt5,plugin,endpoint"`
	Name       string           `json:"name"`
	Board      string           `json:"board"`
	Chip       string           `json:"chip"`
	Version    string           `json:"version"`
	Tags       []string         `json:"tags" nullable:"false"`
	Hold       *pastHold        `json:"hold" doc:"null: not on hold at that moment"`
	Presence   fleet.Presence   `json:"presence,omitempty" enum:"pending,online,unresponsive,unknown_edge,offline" doc:"Missing in the states of one device, which do not end when it changes"`
	Enrolment  fleet.Enrolment  `json:"enrolment" enum:"waiting,enrolled,rejected"`
	Retired    bool             `json:"retired"`
	Inventory  string           `json:"inventory_id" doc:"Names its list of tools; empty before the first"`
	ToolsCount int              `json:"tools_count"`
	Since      time.Time        `json:"since" doc:"From when on all of this but presence was so"`
}

// TransformSchema marks hold as nullable.
func (PastDevice) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "hold")
}

type pastHold struct {
	Reason string     `json:"reason"`
	Since  time.Time  `json:"since"`
	Until  *time.Time `json:"until" doc:"null: until released"`
}

func pastDevice(d history.Device) PastDevice {
	v := PastDevice{ID: d.ID, Kind: d.Kind, Name: d.Name, Board: d.Board, Chip: d.Chip, Version: d.Version, Tags: d.Tags,
		Presence: d.Presence, Enrolment: d.Enrolment, Retired: d.Retired, Inventory: d.Inventory, ToolsCount: d.ToolsCount,
		Since: utc(d.Since)}
	if d.HoldSince != nil {
		v.Hold = &pastHold{d.HoldReason, utc(*d.HoldSince), utcOrNil(d.HoldUntil)}
	}
	return v
}

// PastInput is the moment of a question, and its filter.
type PastInput struct {
	AsOf  time.Time `query:"as_of" doc:"The moment. Default: now"`
	Query string    `query:"q" maxLength:"1024" doc:"Filter; without it, every device in service then"`
}

type listPastDevicesInput struct {
	PastInput
	Paging
}

func (a *api) listPastDevices(ctx context.Context, _ fleet.Principal, in *listPastDevicesInput) (
	*answer[list[PastDevice]], error) {
	q, err := fleet.ParseQuery(in.Query)
	if err != nil {
		return nil, err
	}
	page, err := a.History.Devices(ctx, history.Filter{At: in.AsOf, Query: q, Limit: in.Limit, Cursor: in.Cursor})
	if err != nil {
		return nil, err
	}
	return pageOf(page, pastDevice), nil
}

// ValueCount is the number of devices that share a value.
type ValueCount struct {
	Value string `json:"value" doc:"Empty: unknown"`
	Count int    `json:"count"`
}

func valueCount(c fleet.DeviceCount) ValueCount { return ValueCount{c.Value, c.Count} }

type countPastDevicesInput struct {
	PastInput
	By string `query:"by" default:"version" enum:"version,board,tag,presence"`
}

type pastCounts struct {
	Total int          `json:"total"`
	Held  int          `json:"held" doc:"Devices on hold"`
	By    string       `json:"by"`
	Items []ValueCount `json:"items" nullable:"false" doc:"Largest first, at most 1000; a device counts for each of its tags"`
}

func (a *api) countPastDevices(ctx context.Context, _ fleet.Principal, in *countPastDevicesInput) (*answer[pastCounts],
	error) {
	q, err := fleet.ParseQuery(in.Query)
	if err != nil {
		return nil, err
	}
	c, err := a.History.Counts(ctx, in.AsOf, q)
	if err != nil {
		return nil, err
	}
	counts := map[string][]fleet.DeviceCount{"version": c.Versions, "board": c.Boards, "tag": c.Tags,
		"presence": c.Presence}[in.By]
	return answerWith(pastCounts{c.Total, c.Held, in.By, viewed(counts, valueCount)}), nil
}

// PastChange is a device that differs between two moments.
type PastChange struct {
	ID           fleet.DeviceID  `json:"id"`
	Fields       []history.Field `json:"fields" nullable:"false" enum:"added,removed,version,tools,board,name,tags,hold,enrolment,presence" doc:"What differs; added: in service only at the second moment, removed: only at the first"`
	Before       *PastDevice     `json:"before" doc:"null if it was added"`
	After        *PastDevice     `json:"after" doc:"null if it was removed"`
	ToolsAdded   []string        `json:"tools_added,omitempty"`
	ToolsRemoved []string        `json:"tools_removed,omitempty"`
}

// TransformSchema marks both states as nullable.
func (PastChange) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "before", "after")
}

func pastChange(c history.Change) PastChange {
	v := PastChange{ID: c.Device, Fields: c.Fields, ToolsAdded: c.ToolsAdded, ToolsRemoved: c.ToolsRemoved}
	if c.Before != nil {
		v.Before = ptr(pastDevice(*c.Before))
	}
	if c.After != nil {
		v.After = ptr(pastDevice(*c.After))
	}
	return v
}

type listPastChangesInput struct {
	Paging
	From  time.Time     `query:"from" doc:"Default: a day before to, or the beginning of the history"`
	To    time.Time     `query:"to" doc:"Default: now"`
	Query string        `query:"q" maxLength:"1024" doc:"Filter: the devices that match it at either moment"`
	Field history.Field `query:"field" enum:"added,removed,version,tools,board,name,tags,hold,enrolment,presence" doc:"List only changes of this; the counts have all"`
}

type pastChanges struct {
	Items   []PastChange   `json:"items" nullable:"false"`
	Next    *string        `json:"next_cursor" doc:"Send it as cursor to get the next page; null on the last page"`
	Devices int            `json:"devices" doc:"How many devices differ"`
	ByField map[string]int `json:"by_field" doc:"How many differ by each field"`
}

func (a *api) listPastChanges(ctx context.Context, _ fleet.Principal, in *listPastChangesInput) (*answer[pastChanges],
	error) {
	q, err := fleet.ParseQuery(in.Query)
	if err != nil {
		return nil, err
	}
	d, err := a.History.Diff(ctx, history.DiffFilter{From: in.From, To: in.To, Query: q, Field: in.Field, Limit: in.Limit,
		Cursor: in.Cursor})
	if err != nil {
		return nil, err
	}
	page := pageOf(d.Page, pastChange).Body
	v := pastChanges{Items: page.Items, Next: page.Next, Devices: d.Devices, ByField: map[string]int{}}
	for _, f := range history.Fields {
		v.ByField[string(f)] = d.Counts[f]
	}
	return answerWith(v), nil
}

type getAdoptionInput struct {
	From    time.Time `query:"from" doc:"Default: 30 days before to, or the beginning of the history"`
	To      time.Time `query:"to" doc:"Default: now"`
	Points  int       `query:"points" minimum:"2" maximum:"500" default:"60" doc:"Number of moments, with both ends"`
	Query   string    `query:"q" maxLength:"1024" doc:"Filter: the devices that match it now"`
	Version string    `query:"version" maxLength:"64" doc:"Only this version, and the sum of the others"`
}

// AdoptionView is how many devices ran which version.
type AdoptionView struct {
	Times  []time.Time     `json:"times" nullable:"false"`
	Series []VersionSeries `json:"series" nullable:"false" doc:"Greatest version first"`
	Others []int           `json:"others" nullable:"false" doc:"Devices with another version, at each of the times; empty if there are none"`
}

// VersionSeries is the number of devices with a version at each moment.
type VersionSeries struct {
	Version string `json:"version" doc:"Empty: unknown"`
	Counts  []int  `json:"devices" nullable:"false" doc:"Number of devices at each of the times"`
}

func (a *api) getAdoption(ctx context.Context, _ fleet.Principal, in *getAdoptionInput) (*answer[AdoptionView], error) {
	q, err := fleet.ParseQuery(in.Query)
	if err != nil {
		return nil, err
	}
	found, err := a.History.Adoption(ctx, history.AdoptionFilter{From: in.From, To: in.To, Points: in.Points, Query: q,
		Version: in.Version})
	if err != nil {
		return nil, err
	}
	return answerWith(AdoptionView{Times: found.Times, Others: append([]int{}, found.Others...),
		Series: viewed(found.Series, func(s history.Series) VersionSeries { return VersionSeries(s) })}), nil
}

type listDeviceStatesInput struct {
	DevicePath
	Limit int `query:"limit" minimum:"1" maximum:"500" default:"50"`
}

func (a *api) listDeviceStates(ctx context.Context, _ fleet.Principal, in *listDeviceStatesInput) (
	*answer[list[PastDevice]], error) {
	id, err := in.device()
	if err != nil {
		return nil, err
	}
	states, err := a.History.States(ctx, id, in.Limit)
	if err != nil {
		return nil, err
	}
	return listOf(states, pastDevice), nil
}
