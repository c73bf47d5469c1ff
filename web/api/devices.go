package api

import (
	"context"
	"net/http"
	"strings"

	"fleetd/fleet"
	"fleetd/web/access"
)

func (a *api) registerDevices() {
	register(a, operation{id: "list-devices", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices", role: fleet.RoleViewer,
		summary: "List devices", about: "q is the filter language of the console: board:bread-compact-wifi tag:lab version<2.4 presence:online -hold kitchen"}, a.listDevices)
	register(a, operation{id: "get-device", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}", role: fleet.RoleViewer,
		noun:    "device",
		summary: "Show a device"}, a.getDevice)
	register(a, operation{id: "update-device", reach: access.Device, models: fleet.ModelsNever,
		method: http.MethodPatch, path: "/devices/{id}", role: fleet.RoleOperator,
		noun:    "device",
		summary: "Change a device's name, notes, tags or time zone", about: "Omitted fields stay as they are."}, a.updateDevice)
	register(a, operation{id: "retire-device", reach: access.Device, models: fleet.ModelsNever,
		method: http.MethodDelete, path: "/devices/{id}", role: fleet.RoleAdmin,
		noun:    "device",
		summary: "Retire a device", about: "Its credentials are revoked and its connection is closed. Its records stay."},
		a.retireDevice)
}

// DevicePath is the input of operations on one device. Like every type that others embed it is
// exported, because huma ignores unexported ones.
type DevicePath struct {
	ID string `path:"id" maxLength:"80" doc:"Device id; a MAC address in any form"`
}

func (p DevicePath) pathID() string { return p.ID }

// device reads the id in any form.
func (p DevicePath) device() (fleet.DeviceID, error) { return fleet.ParseDeviceID(p.ID) }

type listDevicesInput struct {
	Paging
	Query string `query:"q" maxLength:"1024" doc:"Filter; without it, every device in service"`
	Sort  string `query:"sort" default:"name" enum:"name,board,version,presence,last_seen,created,-name,-board,-version,-presence,-last_seen,-created" doc:"Order; - before it reverses"`
}

func (a *api) listDevices(ctx context.Context, _ fleet.Principal, in *listDevicesInput) (*answer[list[deviceView]],
	error) {
	q, err := fleet.ParseQuery(in.Query)
	if err != nil {
		return nil, err
	}
	sort, desc := strings.CutPrefix(in.Sort, "-")
	page, err := a.Devices.Devices(ctx, fleet.DeviceFilter{Query: q, Sort: fleet.DeviceSort(sort), Desc: desc,
		Limit: in.Limit, Cursor: in.Cursor})
	if err != nil {
		return nil, err
	}
	of, err := a.Campaigns.CampaignsOf(ctx, viewed(page.Items, func(d fleet.Device) fleet.DeviceID { return d.ID }))
	if err != nil {
		return nil, err
	}
	return pageOf(page, func(d fleet.Device) deviceView { return a.device(d, of[d.ID]) }), nil
}

func (a *api) getDevice(ctx context.Context, _ fleet.Principal, in *DevicePath) (*answer[deviceView], error) {
	d, err := a.find(ctx, *in)
	return a.shown(ctx, d, err)
}

// find returns the device in a path.
func (a *api) find(ctx context.Context, in DevicePath) (fleet.Device, error) {
	id, err := in.device()
	if err != nil {
		return fleet.Device{}, err
	}
	return a.Devices.Device(ctx, id)
}

// shown is the response of operations that return a device.
func (a *api) shown(ctx context.Context, d fleet.Device, err error) (*answer[deviceView], error) {
	if err != nil {
		return nil, err
	}
	of, err := a.Campaigns.CampaignsOf(ctx, []fleet.DeviceID{d.ID})
	if err != nil {
		return nil, err
	}
	return answerWith(a.device(d, of[d.ID])), nil
}

type updateDeviceInput struct {
	DevicePath
	Body struct {
		Name      *string          `json:"name,omitempty" doc:"Need not be unique; empty shows the MAC address instead"`
		Notes     *string          `json:"notes,omitempty"`
		Tags      *[]string        `json:"tags,omitempty" nullable:"false" doc:"Replaces all current tags"`
		Zone      *string          `json:"time_zone,omitempty" maxLength:"100" example:"Europe/Berlin" doc:"IANA name; empty is the server's"`
		Transport *fleet.Transport `json:"transport_choice,omitempty" enum:"mqtt,ws" doc:"Transport from its next start; ws connects only during conversations"`
	}
}

func (a *api) updateDevice(ctx context.Context, by fleet.Principal, in *updateDeviceInput) (*answer[deviceView],
	error) {
	id, err := in.device()
	if err != nil {
		return nil, err
	}
	d, err := a.Devices.Update(ctx, by, id, fleet.DevicePatch{Name: in.Body.Name, Notes: in.Body.Notes, Tags: in.Body.Tags,
		TimeZone: in.Body.Zone, Transport: in.Body.Transport})
	return a.shown(ctx, d, err)
}

func (a *api) retireDevice(ctx context.Context, by fleet.Principal, in *DevicePath) (*empty, error) {
	id, err := in.device()
	if err != nil {
		return nil, err
	}
	return &empty{}, a.Devices.Retire(ctx, by, id)
}
