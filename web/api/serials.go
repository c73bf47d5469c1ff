package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
	"fleetd/web/i18n"
)

func (a *api) registerSerials() {
	register(a, operation{id: "list-serials", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/serials", role: fleet.RoleViewer,
		summary: "List serial numbers and the devices that proved them", about: "Keys are never shown."}, a.listSerials)
	register(a, operation{id: "load-serials", reach: access.Fleet, models: fleet.ModelsNever, heavy: heavy.Import,
		method: http.MethodPost, path: "/serials", role: fleet.RoleAdmin,
		streams: true,
		summary: "Load serial numbers and their HMAC keys",
		about: "text/csv: each line has a serial number, a comma and the key as 64 hex digits. Either all lines are loaded, or none; " +
			"a problem names the lines at fault in errors. Serial numbers that are loaded already, with the same key, are left as they are.",
		more: func(h *huma.Operation) { h.Errors = append(h.Errors, http.StatusUnprocessableEntity) }}, a.loadSerials)
	a.huma.OpenAPI().Paths["/serials"].Post.RequestBody = &huma.RequestBody{Required: true,
		Description: "The list, at most 16 MiB",
		Content:     map[string]*huma.MediaType{"text/csv": {Schema: &huma.Schema{Type: huma.TypeString}}}}
	register(a, operation{id: "release-serial", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/serials/{serial}/release",
		role: fleet.RoleAdmin, noun: "serial",
		summary: "Release a serial number from its device",
		about:   "The next device that proves it gets it. Enrolled devices stay enrolled."}, a.releaseSerial)
	register(a, operation{id: "delete-serial", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodDelete, path: "/serials/{serial}", role: fleet.RoleAdmin,
		noun:    "serial",
		summary: "Delete a serial number and its key"}, a.deleteSerial)
}

type serialsInput struct {
	Paging
	State  string `query:"state" enum:"unused,bound,conflict,refused" doc:"refused: with wrong proofs"`
	Prefix string `query:"prefix" maxLength:"64"`
}

type serialView struct {
	Serial         string                `json:"serial"`
	State          enrolment.SerialState `json:"state" enum:"unused,bound,conflict"`
	DeviceID       *fleet.DeviceID       `json:"device_id" doc:"The first device that proved the key"`
	BoundAt        *time.Time            `json:"bound_at"`
	ConflictDevice *fleet.DeviceID       `json:"conflict_device_id" doc:"A second device that proved it and was refused"`
	ConflictAt     *time.Time            `json:"conflict_at"`
	WrongProofs    int64                 `json:"wrong_proofs" doc:"Activations with a wrong HMAC"`
	WrongAt        *time.Time            `json:"wrong_at"`
	LoadedAt       time.Time             `json:"loaded_at"`
	LoadedBy       string                `json:"loaded_by"`
}

func serial(k enrolment.SerialKey) serialView {
	return serialView{Serial: k.Serial, State: k.State(), DeviceID: deviceOrNil(k.Device), BoundAt: utcOrNil(k.BoundAt),
		ConflictDevice: deviceOrNil(k.ConflictDevice), ConflictAt: utcOrNil(k.ConflictAt), WrongProofs: k.WrongProofs,
		WrongAt: utcOrNil(k.WrongAt), LoadedAt: utc(k.LoadedAt), LoadedBy: k.LoadedBy}
}

func deviceOrNil(id fleet.DeviceID) *fleet.DeviceID {
	if id == "" {
		return nil
	}
	return &id
}

func (a *api) listSerials(_ context.Context, _ fleet.Principal, in *serialsInput) (*answer[list[serialView]], error) {
	page, err := a.Serials.List(enrolment.SerialFilter{State: enrolment.SerialState(in.State), Prefix: in.Prefix,
		Limit:  in.Limit,
		Cursor: in.Cursor})
	if err != nil {
		return nil, err
	}
	return pageOf(page, serial), nil
}

// serialListInput contains the request itself: the list is read as it arrives.
type serialListInput struct {
	r *http.Request
	w http.ResponseWriter
}

// Resolve stores the request for the handler; it is not part of the document.
func (in *serialListInput) Resolve(ctx huma.Context) []error {
	in.r, in.w = humachi.Unwrap(ctx)
	return nil
}

type serialLoadView struct {
	Added     int `json:"added"`
	Unchanged int `json:"unchanged" doc:"Already loaded with the same key"`
}

func (a *api) loadSerials(ctx context.Context, by fleet.Principal, in *serialListInput) (*answer[serialLoadView],
	error) {
	body := newUploadBody(in.w, in.r.Body, enrolment.MaxSerialFile+1)
	defer body.finish()
	done, err := a.Serials.LoadList(ctx, by, body)
	var file *enrolment.SerialFileError
	if errors.As(err, &file) {
		return nil, lineProblems(file)
	}
	if err != nil {
		if p := body.fault(); p != nil {
			return nil, p
		}
		return nil, err
	}
	return answerWith(serialLoadView(done)), nil
}

// lineProblems returns a refused list as a problem, with a line number in each error.
func lineProblems(file *enrolment.SerialFileError) *problem {
	p := known(file)
	for _, l := range file.Problems {
		p.Errors = append(p.Errors, fieldProblem{"line " + strconv.Itoa(l.Line), i18n.Detail("error.code.", l.Reason())})
	}
	return p
}

// SerialPath names a serial number.
type SerialPath struct {
	Serial string `path:"serial" maxLength:"64"`
}

func (in *SerialPath) pathID() string { return in.Serial }

func (a *api) releaseSerial(ctx context.Context, by fleet.Principal, in *SerialPath) (*answer[serialView], error) {
	if err := a.Serials.Release(ctx, by, in.Serial); err != nil {
		return nil, err
	}
	k, _ := a.Serials.Serial(in.Serial)
	return answerWith(serial(k)), nil
}

func (a *api) deleteSerial(ctx context.Context, by fleet.Principal, in *SerialPath) (*empty, error) {
	return &empty{}, a.Serials.Delete(ctx, by, in.Serial)
}
