package console_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/audit"
)

func TestReplaceADevice(t *testing.T) {
	c := newConsole(t)
	const old, next, third = fleet.DeviceID("a085e3112233"), fleet.DeviceID("a085e3112244"), fleet.DeviceID("a085e3112255")
	c.enrol(old, third)
	code := c.asks(next, "bread-compact-wifi")
	by := fleet.Principal{Kind: fleet.KindSystem, Role: fleet.RoleAdmin}
	if err := c.store.UpdateDevice(t.Context(), by, old, fleet.DevicePatch{Name: new("Front <door>"),
		Tags: &[]string{"lab"}, Transport: new(fleet.TransportWebSocket)}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.devices.Hold(t.Context(), by, old, "broken screen", nil); err != nil {
		t.Fatal(err)
	}
	admin, operator, viewer := c.as(fleet.RoleAdmin), c.as(fleet.RoleOperator), c.as(fleet.RoleViewer)
	page := string("/devices/" + old + "/replace")
	admin.get("/devices/"+string(old)+"/configuration").wantText("#main", "Replace…")
	admin.get(page).wantText("#choose", "By the code on its screen")
	viewer.get(page).wantStatus(http.StatusForbidden)
	operator.post(page, url.Values{"successor": {string(next)}, "confirm": {string(old)}}).wantStatus(http.StatusForbidden)

	bad := []struct {
		query, want string
		status      int
	}{
		{"successor=" + string(old), "cannot replace itself", 422},
		{"successor=a0:85:e3:00:00:00", "There is no device a085e3000000", 422},
		{"successor=not/one", "not a device id", 422},
		{"code=12", "six digits", 422},
		{"code=000000", "No waiting device shows this code", 404},
	}
	for _, tt := range bad {
		if tt.query != "code="+code {
			admin.get(page+"?"+tt.query).wantStatus(tt.status).wantText("#main", tt.want)
		}
	}
	p := admin.get(page + "?code=" + code)
	for _, want := range []string{"a0:85:e3:11:22:44", "Front <door>", "lab", "broken screen", "WebSocket", "will be approved"} {
		p.wantText("#preview", want)
	}
	form := url.Values{"successor": {string(next)}, "code": {code}, "confirm": {"a085e3112299"}}
	admin.post(page, form).wantStatus(http.StatusUnprocessableEntity)
	form.Set("confirm", "A0:85:E3:11:22:33")
	admin.post(page, form).wantRedirect("/devices/" + string(next))
	d, err := c.store.Device(t.Context(), next)
	if err != nil || d.Name != "Front <door>" || d.Enrolment != fleet.EnrolmentEnrolled || d.Hold == nil ||
		d.Replaces != old || len(d.Tags) != 1 || d.TransportChoice != fleet.TransportWebSocket {
		t.Errorf("the new unit: %+v, %v", d, err)
	}
	admin.get("/devices/"+string(next)).wantText("#device-head", "This unit replaced").wantText("#device-head",
		"a0:85:e3:11:22:33")
	admin.get("/devices/"+string(old)).wantText("#device-head", "was replaced by").wantText("#device-head",
		"a0:85:e3:11:22:44")

	admin.get(page+"?successor="+string(third)).wantStatus(http.StatusConflict).wantText("#main",
		"was already replaced by a085e3112244")
	onThird := "/devices/" + string(third) + "/replace?successor="
	admin.get(onThird+string(old)).wantStatus(http.StatusConflict).wantText("#main", "is retired")
	admin.get(onThird+string(next)).wantStatus(http.StatusConflict).
		wantText("#main", "has already taken over from a085e3112233")
	entries, err := c.store.AuditEntries(t.Context(), audit.Filter{Action: "device.replace"})
	if err != nil || len(entries.Items) != 1 || entries.Items[0].Subject != string(old) {
		t.Errorf("audit: %+v, %v", entries, err)
	}
	if err := c.devices.Retire(t.Context(), by, third); err != nil {
		t.Fatal(err)
	}
	admin.get(onThird + string(next)).wantStatus(http.StatusConflict)
}

// A device that is being updated cannot be replaced; a device that waits in a campaign can.
func TestReplaceDuringACampaign(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233", "a085e3112244")
	active := true
	busy := fleet.NewDevices(fleet.DevicesOptions{Store: c.store, Targets: fleet.NewTargets(c.store, c.store),
		Events: c.events,
		Kick:   func(fleet.DeviceID, fleet.Cause) {}, Retiring: func(fleet.DeviceID) {},
		Busy: func(context.Context, fleet.DeviceID) ([]fleet.CampaignPart, error) {
			return []fleet.CampaignPart{{Name: "spring", Active: active}}, nil
		}})
	admin := fleet.Principal{Kind: fleet.KindSystem, Role: fleet.RoleAdmin}
	var e *fleet.Error
	if _, err := busy.Replace(t.Context(), admin, "a085e3112233", "a085e3112244", ""); !errors.As(err, &e) ||
		e.Code != "campaign_running" || e.Params["name"] != "spring" {
		t.Errorf("while it downloads: %v", err)
	}
	active = false
	plan, err := busy.PlanReplacement(t.Context(), "a085e3112233", "a085e3112244")
	if err != nil || len(plan.Leaves) != 1 {
		t.Errorf("while it waits: %+v, %v", plan, err)
	}
	for range 2 { // the second try finds it replaced
		_, err = busy.Replace(t.Context(), admin, "a085e3112233", "a085e3112244", "")
	}
	if !errors.As(err, &e) || e.Code != "already_replaced" {
		t.Errorf("replaced twice: %v", err)
	}
}
