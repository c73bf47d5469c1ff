package api

import (
	"context"
	"net/http"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/access"
)

func (a *api) registerDevices() {
	register(a, operation{id: "list-devices", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices", role: fleet.RoleViewer,
		summary: "List devices", about: "q is the filter language of the console: board:bread-compact-wifi tag:lab version<2.4 presence:online -hold kitchen"}, a.listDevices)
	register(a, operation{id: "create-device", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/devices", role: fleet.RoleAdmin, created: true,
		summary: "Create a device of MCP over MQTT 5",
		about:   "Other devices join with a boot poll. Only this answer contains the password."}, a.createDevice)
	register(a, operation{id: "get-device", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}", role: fleet.RoleViewer,
		noun:    "device",
		summary: "Show a device"}, a.getDevice)
	register(a, operation{id: "update-device", reach: access.Device, models: fleet.ModelsNever,
		method: http.MethodPatch, path: "/devices/{id}", role: fleet.RoleOperator,
		noun:    "device",
		summary: "Change a device's name, notes, tags or time zone", about: "Omitted fields stay as they are."}, a.updateDevice)
	register(a, operation{id: "reissue-credentials", reach: access.Device, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/devices/{id}/credentials", role: fleet.RoleOperator, noun: "device", created: true,
		summary: "Replace the credentials of a device of MCP over MQTT 5",
		about:   "The previous ones are revoked and its connection is closed. Only this answer contains the password."},
		a.reissueCredentials)
	register(a, operation{id: "revoke-credentials", reach: access.Device, models: fleet.ModelsNever,
		method: http.MethodDelete, path: "/devices/{id}/credentials", role: fleet.RoleOperator, noun: "device",
		summary: "Revoke the credentials of a device of MCP over MQTT 5", about: "Its connection is closed."},
		a.revokeCredentials)
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

type createDeviceInput struct {
	Body struct {
		ID   string `json:"id" minLength:"1" maxLength:"64" example:"lamp-1" doc:"Id of the device, and client id with which it connects: small letters, digits, and . _ - between them"`
		Name string `json:"name,omitempty" doc:"Need not be unique; empty shows the id instead"`
	}
}

// credentialsView contains what a device of MCP over MQTT 5 needs to connect.
type credentialsView struct {
	DeviceID fleet.DeviceID `json:"device_id"`
	Broker   string         `json:"broker" doc:"host:port of the MQTT broker; port 8883 means TLS"`
	ClientID string         `json:"client_id"`
	Username string         `json:"username"`
	Password string         `json:"password" doc:"Shown only once"`
}

func (a *api) credentials(c enrolment.MQTT5Credentials, err error) (*answer[credentialsView], error) {
	if err != nil {
		return nil, err
	}
	return answerWith(credentialsView{DeviceID: c.Device, Broker: a.MQTTEndpoint, ClientID: c.ClientID,
		Username: c.Username, Password: c.Password}), nil
}

func (a *api) createDevice(ctx context.Context, by fleet.Principal, in *createDeviceInput) (*answer[credentialsView],
	error) {
	return a.credentials(a.Enrolment.CreateMQTT5(ctx, by, in.Body.ID, in.Body.Name))
}

func (a *api) reissueCredentials(ctx context.Context, by fleet.Principal, in *DevicePath) (*answer[credentialsView],
	error) {
	id, err := in.device()
	if err != nil {
		return nil, err
	}
	return a.credentials(a.Enrolment.ReissueMQTT5(ctx, by, id, 0))
}

func (a *api) revokeCredentials(ctx context.Context, by fleet.Principal, in *DevicePath) (*empty, error) {
	id, err := in.device()
	if err != nil {
		return nil, err
	}
	return &empty{}, a.Enrolment.RevokeMQTT5(ctx, by, id, 0)
}
