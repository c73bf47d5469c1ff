package server_test

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/operator"
	"fleetd/fleet/picture"
	"fleetd/fleet/telemetry"
)

// Services check the caller's rights. A service that embeds a store would also
// offer the store's writes, without the checks.
func TestServicesEmbedNoStore(t *testing.T) {
	for _, service := range []any{
		call.Service{}, fleet.Devices{}, call.FanOuts{}, operator.Service{}, fleet.Presences{}, picture.Service{},
		fleet.Targets{}, picture.URLLinks{},
		enrolment.Service{}, enrolment.Rules{}, enrolment.Serials{}, enrolment.SigningKeys{}, enrolment.BootPolls{},
		campaign.Service{}, firmware.Service{}, firmware.Downloads{},
		telemetry.CoreDumps{}, telemetry.Logs{}, telemetry.Reports{},
	} {
		service := reflect.TypeOf(service)
		for i := range service.NumField() {
			switch field := service.Field(i); {
			case field.Anonymous && field.Type.Kind() == reflect.Interface:
				t.Errorf("%v embeds %v: hold it in an unexported field", service, field.Type)
			case field.IsExported() && !field.Anonymous:
				t.Errorf("%v has the exported field %s: its callers could go around it", service, field.Name)
			}
		}
	}
	for _, write := range []string{"RetireDevice", "SetHold", "UpdateDevice", "ReplaceDevice", "SaveListing"} {
		if _, ok := reflect.TypeFor[*fleet.Devices]().MethodByName(write); ok {
			t.Errorf("Devices has %s of its store, which checks no role", write)
		}
	}
}

// Every method with an actor checks it first: these services have no stores,
// and a method that reached its store would panic.
func TestWritesCheckTheRole(t *testing.T) {
	unchecked := map[string]string{ // the reason
		"CoreDumps.Ask":           "makes a call, which the gate judges",
		"CoreDumps.Fetch":         "makes a call, which the gate judges",
		"CoreDumps.UploadRequest": "does nothing",
		"Service.StagedUpload":    "reads what the principal itself uploaded",
		"Service.SetState":        "the state decides which role it takes",
	}
	sealer, err := enrolment.NewSealer(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := enrolment.NewSigningKeys(nil, make([]byte, enrolment.KeySize), nil)
	if err != nil {
		t.Fatal(err)
	}
	joining, err := enrolment.New(enrolment.Options{Mode: fleet.EnrolOpen, Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	viewer := fleet.Principal{Kind: fleet.KindOperator, ID: uuid.NewString(), Name: "vera", Role: fleet.RoleViewer}
	checked := 0
	for _, service := range []any{
		fleet.NewDevices(fleet.DevicesOptions{}), call.NewFanOuts(call.FanOutsOptions{}), operator.New(nil),
		joining, enrolment.NewRules(nil, nil), enrolment.NewSerials(nil, sealer, nil), keys,
		firmware.New(firmware.Options{}), telemetry.NewCoreDumps(telemetry.CoreDumpsOptions{}),
	} {
		v := reflect.ValueOf(service)
		for i := range v.NumMethod() {
			method := v.Type().Method(i)
			name := v.Type().Elem().Name() + "." + method.Name
			var args []reflect.Value
			takesActor := false
			for j := 1; j < method.Type.NumIn(); j++ {
				switch in := method.Type.In(j); in {
				case reflect.TypeFor[context.Context]():
					args = append(args, reflect.ValueOf(t.Context()))
				case reflect.TypeFor[fleet.Principal]():
					takesActor = true
					args = append(args, reflect.ValueOf(viewer))
				default:
					args = append(args, reflect.Zero(in))
				}
			}
			if _, ok := unchecked[name]; !takesActor || ok {
				continue
			}
			checked++
			t.Run(v.Type().String()+"."+method.Name, func(t *testing.T) {
				var out []reflect.Value
				if method.Type.IsVariadic() {
					out = method.Func.CallSlice(append([]reflect.Value{v}, args...))
				} else {
					out = method.Func.Call(append([]reflect.Value{v}, args...))
				}
				if err, _ := out[len(out)-1].Interface().(error); !errors.Is(err, fleet.ErrForbidden) {
					t.Errorf("a viewer is answered %v, want forbidden", err)
				}
			})
		}
	}
	if checked < 30 {
		t.Errorf("%d methods take an actor, want 30 at least", checked)
	}
	// Actions on campaigns check within the change of the row; this one has no
	// row.
	if err := campaign.New(campaign.Options{}).ClearQuarantine(t.Context(), viewer, "a085e3112233"); !errors.Is(err,
		fleet.ErrForbidden) {
		t.Errorf("campaign: a viewer is answered %v, want forbidden", err)
	}
}
