package fleet_test

import (
	"reflect"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/telemetry"
)

// Services check who acts. One that embeds a store offers the store's writes
// too, without the checks.
func TestServicesEmbedNoStore(t *testing.T) {
	for _, service := range []any{
		fleet.Calls{}, fleet.Devices{}, fleet.FanOuts{}, fleet.Operators{}, fleet.Presences{}, fleet.Snapshots{},
		fleet.Targets{}, fleet.URLLinks{},
		enrolment.Service{}, enrolment.Rules{}, enrolment.Serials{}, enrolment.SigningKeys{}, enrolment.BootPolls{},
		firmware.Service{}, firmware.Downloads{},
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
