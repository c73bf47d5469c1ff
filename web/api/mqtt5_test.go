package api

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"fleetd/fleet"
)

func TestMQTT5Devices(t *testing.T) {
	w := newWorld(t)
	auth := func(c credentialsView) error {
		_, err := w.enrolment.Authenticate(c.ClientID, c.Username, []byte(c.Password), "192.0.2.9")
		return err
	}
	first := decode[credentialsView](t, w.post(t, "/devices", `{"id":"LAMP-1","name":"Desk"}`), 201)
	if first.DeviceID != "lamp-1" || first.ClientID != "lamp-1" || auth(first) != nil {
		t.Errorf("created %+v, %v", first, auth(first))
	}
	shown := w.as(t, fleet.RoleAdmin, http.MethodGet, "/devices/lamp-1", "")
	if d := decode[deviceView](t, shown, 200); d.Kind != fleet.DeviceMQTT5 || d.Name != "Desk" {
		t.Errorf("device %+v", d)
	}
	if bytes.Contains(shown.body, []byte(first.Password)) || bytes.Contains(shown.body, []byte(first.Username)) {
		t.Error("the device shows its credentials")
	}
	for body, code := range map[string]string{
		`{"id":"lamp-1"}`:         "device_exists",
		`{"id":"plugin.weather"}`: "invalid_mqtt5_id",
		`{"id":"presence"}`:       "invalid_mqtt5_id",
		`{"id":"lamp/2"}`:         "invalid_mqtt5_id",
		`{"id":"lamp-2","name":"` + strings.Repeat("x", fleet.MaxNameLength+1) + `"}`: "invalid_name",
		`{"name":"Desk"}`: "invalid_request",
	} {
		if r := w.post(t, "/devices", body); r.status/100 != 4 || !strings.Contains(string(r.body), code) {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
	}
	if r := w.as(t, fleet.RoleOperator, http.MethodPost, "/devices", `{"id":"lamp-2"}`); r.status != 403 {
		t.Errorf("an operator creates: %d %s", r.status, r.body)
	}
	if _, err := w.store.Device(t.Context(), "lamp-2"); err == nil {
		t.Error("a refused request created the device")
	}

	if r := w.as(t, fleet.RoleViewer, http.MethodPost, "/devices/lamp-1/credentials", ""); r.status != 403 || auth(first) != nil {
		t.Errorf("a viewer replaces the credentials: %d %s, %v", r.status, r.body, auth(first))
	}
	second := decode[credentialsView](t, w.as(t, fleet.RoleOperator, http.MethodPost, "/devices/lamp-1/credentials", ""), 201)
	if auth(first) == nil || auth(second) != nil {
		t.Errorf("after the replacement: %v, %v", auth(first), auth(second))
	}
	if r := w.as(t, fleet.RoleViewer, http.MethodDelete, "/devices/lamp-1/credentials", ""); r.status != 403 || auth(second) != nil {
		t.Errorf("a viewer revokes the credentials: %d %s, %v", r.status, r.body, auth(second))
	}
	if r := w.as(t, fleet.RoleOperator, http.MethodDelete, "/devices/lamp-1/credentials", ""); r.status != 204 || auth(second) == nil {
		t.Errorf("revoked: %d %s, %v", r.status, r.body, auth(second))
	}
}
