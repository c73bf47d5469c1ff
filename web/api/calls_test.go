package api

import (
	"net/http"
	"testing"

	"fleetd/fleet"
)

func TestCall(t *testing.T) {
	w := newWorld(t)
	r := w.as(t, fleet.RoleOperator, http.MethodPost, "/devices/A0:85:E3:11:22:33/calls", `{"tool":"self.audio_speaker.set_volume","arguments":{"volume":50}}`)
	c := decode[callView](t, r, http.StatusOK)
	if c.State != fleet.CallSucceeded || c.DeviceID != unit || c.Actor.Name != "operator-script" || c.DurationMs == nil || c.SentAt == nil {
		t.Errorf("answered %s", r.body)
	}
	stored := w.get(t, "/calls/"+c.ID.String())
	if string(stored.body) != string(r.body) {
		t.Errorf("the record is\n%s, the answer was\n%s", stored.body, r.body)
	}
}
