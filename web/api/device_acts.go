package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/access"
)

func (a *api) registerDeviceActs() {
	register(a, operation{id: "claim-device", reach: access.Record, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/devices/claim", role: fleet.RoleOperator,
		noun:    "device",
		summary: "Claim the device that shows a code"}, a.claim)
	a.registerBulk()
	act := func(verb, summary, about string, role fleet.Role) operation {
		return operation{id: verb + "-device", reach: access.Device, models: fleet.ModelsNever,
			method: http.MethodPost, path: "/devices/{id}/" + verb, role: role, noun: "device",
			summary: summary, about: about}
	}
	register(a, act("hold", "Hold a device", "Everyone but its owner is kept from acting on it.", fleet.RoleOperator),
		a.hold)
	register(a, act("release", "End a hold", "", fleet.RoleOperator), a.release)
	register(a, act("approve", "Let a waiting device in",
		"Also one that asks again under a new Client-Id, or was rejected.", fleet.RoleOperator), a.approve)
	register(a, act("reject", "Refuse a device", "Its request, if it makes one; else the device is put out.",
		fleet.RoleOperator), a.reject)
	register(a, act("resolve-conflict", "End a conflict of two units",
		"keep binds the credentials to one unit and refuses the other; reenrol takes them from both, and who starts next asks "+
			"to join; dismiss only removes the mark. New evidence makes a new conflict. "+
			"About another board or chip than is pinned: accept_hardware pins what the device claims, keep_hardware forgets it. "+
			"clear_key forgets the key that the device proves: the next one that it proves is bound.", fleet.RoleOperator), a.resolveConflict)
	register(a, act("replace", "Replace a device by another unit",
		"It is retired; its name, tags, notes, time zone, transport and hold go to the successor, which is answered. A successor that waits is let in along the way. Name it by its id, or by the code that it shows.", fleet.RoleAdmin), a.replace)
}

type claimInput struct {
	Body struct {
		Code string `json:"code" maxLength:"40" doc:"The six digits that the device shows and speaks" example:"123456"`
	}
}

func (a *api) claim(ctx context.Context, by fleet.Principal, in *claimInput) (*answer[deviceView], error) {
	id, err := a.Enrolment.Claim(ctx, by, in.Body.Code)
	if err != nil {
		return nil, err
	}
	d, err := a.Devices.Device(ctx, id)
	return a.shown(ctx, d, err)
}

type holdInput struct {
	DevicePath
	Body struct {
		Reason string     `json:"reason" minLength:"1" maxLength:"300"`
		Until  *time.Time `json:"until,omitempty" doc:"When the hold ends automatically; if omitted, it lasts until released"`
	}
}

func (a *api) hold(ctx context.Context, by fleet.Principal, in *holdInput) (*answer[deviceView], error) {
	id, err := in.device()
	if err != nil {
		return nil, err
	}
	d, err := a.Devices.Hold(ctx, by, id, in.Body.Reason, utcOrNil(in.Body.Until))
	return a.shown(ctx, d, err)
}

func (a *api) release(ctx context.Context, by fleet.Principal, in *DevicePath) (*answer[deviceView], error) {
	id, err := in.device()
	if err != nil {
		return nil, err
	}
	d, err := a.Devices.Release(ctx, by, id)
	return a.shown(ctx, d, err)
}

func (a *api) approve(ctx context.Context, by fleet.Principal, in *DevicePath) (*answer[deviceView], error) {
	return a.decide(ctx, by, in, func(ctx context.Context, by fleet.Principal, id fleet.DeviceID) error {
		return a.Enrolment.Approve(ctx, by, id, "")
	})
}

func (a *api) reject(ctx context.Context, by fleet.Principal, in *DevicePath) (*answer[deviceView], error) {
	return a.decide(ctx, by, in, a.Enrolment.Reject)
}

func (a *api) decide(ctx context.Context, by fleet.Principal, in *DevicePath, decide func(context.Context,
	fleet.Principal,
	fleet.DeviceID) error) (*answer[deviceView], error) {
	id, err := in.device()
	if err != nil {
		return nil, err
	}
	if err := decide(ctx, by, id); err != nil {
		return nil, err
	}
	d, err := a.Devices.Device(ctx, id)
	return a.shown(ctx, d, err)
}

type resolveInput struct {
	DevicePath
	Body struct {
		Act    enrolment.ConflictAct `json:"act" enum:"keep,reenrol,dismiss,accept_hardware,keep_hardware,clear_key"`
		Client string                `json:"client,omitempty" maxLength:"40" doc:"With keep: the client of the side to keep"`
	}
}

func (a *api) resolveConflict(ctx context.Context, by fleet.Principal, in *resolveInput) (*answer[deviceView], error) {
	return a.decide(ctx, by, &in.DevicePath, func(ctx context.Context, by fleet.Principal, id fleet.DeviceID) error {
		return a.Enrolment.ResolveConflict(ctx, by, id, enrolment.ConflictResolution{Act: in.Body.Act,
			Client: in.Body.Client})
	})
}

type replaceInput struct {
	DevicePath
	Body struct {
		Successor string `json:"successor,omitempty" maxLength:"80" doc:"Id of the unit that takes over"`
		Code      string `json:"code,omitempty" maxLength:"40" doc:"The six digits that it shows while it waits"`
	}
}

func (a *api) replace(ctx context.Context, by fleet.Principal, in *replaceInput) (*answer[deviceView], error) {
	id, err := in.device()
	if err != nil {
		return nil, err
	}
	if (in.Body.Successor == "") == (in.Body.Code == "") {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_successor.unnamed").At("body.successor")
	}
	if _, err := a.Devices.Device(ctx, id); err != nil {
		return nil, err
	}
	var successor fleet.DeviceID
	if in.Body.Code != "" {
		successor, err = a.Enrolment.ByCode(ctx, by, in.Body.Code)
	} else {
		successor, err = fleet.ParseDeviceID(in.Body.Successor)
	}
	if err != nil {
		return nil, err
	}
	if _, err := a.Devices.Device(ctx, successor); err != nil {
		return nil, missingIn(err, "successor", "device", in.Body.Successor)
	}
	d, err := a.Devices.Replace(ctx, by, id, successor, strings.NewReplacer(" ", "", "-", "").Replace(in.Body.Code))
	return a.shown(ctx, d, err)
}

// missingIn names a field of the body, not the path, as the cause of a missing object.
func missingIn(err error, field, noun, id string) error {
	p := known(err)
	if p == nil || p.Status != http.StatusNotFound {
		return err
	}
	p.Status, p.Title = http.StatusUnprocessableEntity, http.StatusText(http.StatusUnprocessableEntity)
	p.Code, p.Field = "unknown_"+noun, "body."+field
	p.Detail = "there is no " + noun + " " + id
	return p
}
