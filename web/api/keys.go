package api

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/access"
)

func (a *api) registerKeys() {
	register(a, operation{id: "get-key-rotation", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/key-rotation", role: fleet.RoleViewer,
		summary: "Show the latest rotation of the key that signs device credentials"}, a.getRotation)
	register(a, operation{id: "list-key-rotation-devices", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/key-rotation/devices",
		role:    fleet.RoleViewer,
		summary: "List devices by their progress in the rotation"}, a.listRotationDevices)
	act := func(verb, summary, about string) operation {
		return operation{id: verb + "-key-rotation", reach: access.Fleet, models: fleet.ModelsNever,
			method: http.MethodPost, path: "/key-rotation/" + verb, role: fleet.RoleAdmin,
			summary: summary, about: about}
	}
	register(a, act("start", "Start a rotation: a new key signs, and both are accepted",
		`confirm must be "rotate". A device gets new credentials when it next starts.`), a.moveRotation(a.Keys.Start))
	register(a, act("finish", "End the rotation: the key that does not sign any more is refused",
		"confirm must be the number of devices that are left; if there are more by now, nothing is done. "+
			"Connections that are open stay open. A stock device that is refused gets new credentials only when it is restarted."), a.moveRotation(a.Keys.Finish))
	register(a, act("abort", "Have the old key sign again",
		`confirm must be "abort". Devices that came with the new key are accepted until the rotation is finished.`),
		a.moveRotation(a.Keys.Abort))
	register(a, operation{id: "restart-key-rotation-devices", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/key-rotation/restart",
		role:    fleet.RoleAdmin,
		summary: "Restart the remaining connected devices, a few at a time",
		about:   "Makes a fan-out of self.reboot and answers with it."}, a.restartLeft)
}

type rotationView struct {
	SigningGeneration int32          `json:"signing_generation" doc:"Generation of the signing key; 0: derived from the server's secret"`
	State             string         `json:"state" enum:"none,running,aborting,finished,aborted"`
	FromGeneration    int32          `json:"from_generation"`
	ToGeneration      int32          `json:"to_generation"`
	StartedAt         *time.Time     `json:"started_at"`
	StartedBy         string         `json:"started_by"`
	EndedAt           *time.Time     `json:"ended_at"`
	EndedBy           string         `json:"ended_by"`
	LeftBehind        int64          `json:"left_behind" doc:"Remaining devices when it ended"`
	Devices           rotationCounts `json:"devices"`
	Left              int64          `json:"left" doc:"Devices that are or will be refused until they restart"`
}

type rotationCounts struct {
	New     int64 `json:"new" doc:"Last connected with the new key"`
	Old     int64 `json:"old" doc:"Seen since the start, not with the new key"`
	NotSeen int64 `json:"not_seen" doc:"Not seen since the start"`
}

func (a *api) rotation(ctx context.Context) (*answer[rotationView], error) {
	r := a.Keys.Rotation()
	v := rotationView{SigningGeneration: a.Keys.SigningGeneration(), State: "none"}
	if r.ID == 0 {
		return answerWith(v), nil
	}
	counts, err := a.Keys.Counts(ctx)
	if err != nil {
		return nil, err
	}
	v.State, v.FromGeneration, v.ToGeneration = string(r.State), r.FromGeneration, r.ToGeneration
	v.StartedAt, v.StartedBy, v.EndedAt, v.EndedBy = utcOrNil(&r.StartedAt), r.StartedBy, utcOrNil(r.EndedAt), r.EndedBy
	v.Devices, v.Left, v.LeftBehind = rotationCounts(counts), counts.Left(r), r.LeftBehind
	return answerWith(v), nil
}

func (a *api) getRotation(ctx context.Context, _ fleet.Principal, _ *struct{}) (*answer[rotationView], error) {
	return a.rotation(ctx)
}

type confirmInput struct {
	Body struct {
		Confirm string `json:"confirm" maxLength:"40"`
	}
}

func (a *api) moveRotation(act func(context.Context, fleet.Principal, string) (enrolment.KeyRotation, error)) func(
	context.Context, fleet.Principal, *confirmInput) (*answer[rotationView], error) {
	return func(ctx context.Context, by fleet.Principal, in *confirmInput) (*answer[rotationView], error) {
		if _, err := act(ctx, by, in.Body.Confirm); err != nil {
			return nil, err
		}
		return a.rotation(ctx)
	}
}

type rotationDevicesInput struct {
	Paging
	Group []string `query:"group" enum:"new,old,not_seen" maxItems:"3" doc:"One or several, separated by commas"`
}

type rotationDeviceView struct {
	DeviceID fleet.DeviceID          `json:"device_id"`
	Name     string                  `json:"name"`
	Group    enrolment.RotationGroup `json:"group" enum:"new,old,not_seen"`
	Presence fleet.Presence          `json:"presence"`
	LastSeen *time.Time              `json:"last_seen"`
}

func (a *api) listRotationDevices(ctx context.Context, _ fleet.Principal, in *rotationDevicesInput) (
	*answer[list[rotationDeviceView]], error) {
	f := enrolment.RotationFilter{Limit: in.Limit, Cursor: in.Cursor}
	for _, g := range in.Group {
		f.Groups = append(f.Groups, enrolment.RotationGroup(g))
	}
	page, err := a.Keys.Devices(ctx, f)
	if err != nil {
		return nil, err
	}
	return pageOf(page, func(d enrolment.RotationDevice) rotationDeviceView {
		return rotationDeviceView{d.Device, d.Name, d.Group, d.Presence, utcOrNil(d.LastSeen)}
	}), nil
}

func (a *api) restartLeft(ctx context.Context, by fleet.Principal, _ *struct{}) (*answer[FanOutView], error) {
	request, err := a.Keys.Restart(ctx, by, a.Presence.IsConnected)
	if err != nil {
		return nil, err
	}
	f, err := a.FanOuts.Create(ctx, request)
	if err != nil {
		return nil, err
	}
	return answerWith(fanOut(f)), nil
}
