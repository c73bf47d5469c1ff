package api

import (
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/fleettest"
)

func TestResolveConflict(t *testing.T) {
	w := newWorld(t)
	code := w.poll(t, waiting).Activation.Code
	decode[deviceView](t, w.post(t, "/devices/claim", `{"code":"`+code+`"}`), 200)
	path := "/devices/" + string(waiting)
	if d := decode[deviceView](t, w.as(t, fleet.RoleViewer, "GET", path, ""), 200); d.Conflict != nil {
		t.Fatalf("one unit is a conflict: %+v", d.Conflict)
	}
	for i, client := range []string{"other", "", "other"} {
		p := enrolment.BootPoll{Device: waiting, ClientID: client, RemoteAddr: "192.0.2.9", At: time.Now().UTC()}
		if i == 1 {
			w.poll(t, waiting)
			continue
		}
		if _, err := w.enrolment.Poll(p); err != nil {
			t.Fatal(err)
		}
	}
	var c *idConflictView
	fleettest.Eventually(t, "the conflict is shown", func() bool {
		c = decode[deviceView](t, w.as(t, fleet.RoleViewer, "GET", path, ""), 200).Conflict
		return c != nil
	})
	if c.Code != fleet.ConflictDuplicateID || len(c.Sides) != 2 || !c.Sides[0].Bound ||
		c.Sides[1].Client != fleet.ClientTag("other") {
		t.Fatalf("conflict %+v", c)
	}
	for body, code := range map[string]string{`{"act":"keep"}`: "unknown_side",
		`{"act":"keep","client":"nobody"}`: "unknown_side"} {
		if p := w.post(t, path+"/resolve-conflict", body).problem(t); p.Status != 422 || p.Code != code {
			t.Errorf("%s is answered %+v", body, p)
		}
	}
	d := decode[deviceView](t, w.as(t, fleet.RoleOperator, "POST", path+"/resolve-conflict",
		`{"act":"keep","client":"`+c.Sides[1].Client+`"}`), 200)
	if d.Conflict != nil {
		t.Errorf("answered %+v", d.Conflict)
	}
}
