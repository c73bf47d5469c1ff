package console_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/fleettest"
)

// twoUnits makes two boards use one id, and waits until a page can show it.
func (c *site) twoUnits(id fleet.DeviceID, board string) {
	c.t.Helper()
	poll := func(client, addr string) {
		_, err := c.enrolments.Poll(enrolment.BootPoll{Device: id, ClientID: client, RemoteAddr: addr, Board: board,
			Chip:    "esp32s3",
			Version: "2.4.0", ELFSHA256: strings.Repeat("9f", 32), At: time.Now().UTC()})
		if err != nil {
			c.t.Fatal(err)
		}
	}
	root := fleet.Principal{Kind: fleet.KindSystem, Name: "test", Role: fleet.RoleAdmin}
	poll("A", "192.0.2.1")
	if err := c.enrolments.Approve(c.t.Context(), root, id, ""); err != nil {
		c.t.Fatal(err)
	}
	poll("A", "192.0.2.1")
	poll("B", "192.0.2.2")
	poll("A", "192.0.2.1")
	if err := c.enrolments.Stored(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	if err := c.enrolments.StoredConflicts(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	fleettest.Eventually(c.t, "the conflict is stored", func() bool {
		d, err := c.devices.Device(c.t.Context(), id)
		return err == nil && d.Conflict != nil
	})
}

func TestConflictPage(t *testing.T) {
	c := newConsole(t)
	c.poll("a085e3112244") // a device without a conflict
	c.twoUnits("a085e3112233", `box"><b id="foreign">x`)
	b := c.as(fleet.RoleOperator)
	b.get("/").wantText("#attention", "1 Device-Id seems to be used by two units")
	list := b.get("/devices?q=conflict").wantText("#device-a085e3112233", "duplicate ID")
	if len(list.find("#device-a085e3112244")) != 0 {
		t.Error("the filter lists a device without a conflict")
	}
	if p := b.get("/devices?q=-conflict"); len(p.find("#device-a085e3112233")) != 0 ||
		len(p.find("#device-a085e3112244")) != 1 {
		t.Error("the negated filter does not")
	}
	p := b.get(dev)
	a := fleet.ClientTag("A")
	for _, text := range []string{"Two units", a, fleet.ClientTag("B"), "192.0.2.1", "192.0.2.2", "start alternately",
		"esp32s3", `box"><b id="foreign">x`} {
		p.wantText("#conflict", text)
	}
	if len(p.find("button[name=act]")) != 4 {
		t.Errorf("%d buttons, want two to keep a unit, two for both", len(p.find("button[name=act]")))
	}
	if len(p.find("#foreign")) != 0 {
		t.Error("what a device says is read as HTML")
	}
	b.get(dev+"/facts").wantText("#device-head", "Two units")
	viewer := c.as(fleet.RoleViewer)
	if p := viewer.get(dev).wantText("#conflict", a); len(p.find("button[name=act]")) != 0 {
		t.Error("a viewer is offered an act")
	}
	viewer.post(dev+"/resolve-conflict", url.Values{"act": {"dismiss"}}).wantStatus(403)
	b.post(dev+"/resolve-conflict", url.Values{"act": {"guess"}}).wantRedirect(dev)
	b.get(dev).wantText("#conflict", a)
	b.post(dev+"/resolve-conflict", url.Values{"act": {"keep"}, "client": {"none"}}).wantRedirect(dev)
	b.get(dev).wantText("#flash", "The conflict has no unit")
	b.post(dev+"/resolve-conflict", url.Values{"act": {"keep"}, "client": {a}}).wantRedirect(dev)
	if p := b.get(dev).wantText("#flash", "is resolved"); len(p.find("#conflict")) != 0 {
		t.Error("the conflict is still shown")
	}
	b.post(dev+"/resolve-conflict", url.Values{"act": {"dismiss"}}).wantRedirect(dev)
	b.get(dev).wantText("#flash", "has no conflict")
}
