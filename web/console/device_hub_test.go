package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/fleettest"
)

const hubAt = "/devices/a085e3112233"

// Each act returns to the page, and the address contains its outcome.
func TestQuickActsStayOnThePage(t *testing.T) {
	c := newConsole(t)
	c.enrol(unit)
	c.connect(unit, says("true"))
	b := c.as(fleet.RoleOperator)
	p := b.get(hubAt).wantStatus(200)
	if got := attribute(p.find("input[name=arg.volume]")[0], "value"); got != "" {
		t.Errorf("a volume that no one knows is shown as %q", got)
	}
	set := hubAt + "/tools/" + fleet.ToolSetVolume
	at := b.post(set, url.Values{"arg.volume": {"35"}, "next": {hubAt}}).wantRedirect(hubAt + "?call=")
	p = b.get(at).wantStatus(200).wantText("#result", "succeeded").wantText("#result", "set_volume")
	p.wantText("#timeline", "set_volume")
	if got := attribute(p.find("input[name=arg.volume]")[0], "value"); got != "35" {
		t.Errorf("the volume is shown as %q, want what was set last, 35", got)
	}
	b.get(at).wantText("#result", "set_volume") // again

	for _, elsewhere := range []string{"/devices", "https://evil.example/", hubAt + "/facts", "//evil.example"} {
		b.post(set, url.Values{"arg.volume": {"36"}, "next": {elsewhere}}).wantRedirect(set + "?call=")
	}
	// A reboot is confirmed on the same page; without the confirmation nothing happens.
	reboot := hubAt + "/tools/" + fleet.ToolReboot
	b.post(reboot, url.Values{"next": {hubAt}}).wantStatus(http.StatusUnprocessableEntity)
	if got := attribute(p.find("input[name=confirm]")[0], "value"); got != "reboot" {
		t.Errorf("the second step sends %q", got)
	}
}

// A page shows the result of a call only if the call was made to its device.
func TestHubShowsCallsOfItsDeviceOnly(t *testing.T) {
	c := newConsole(t)
	c.enrol(unit)
	c.enrol("a085e3112244")
	c.connect("a085e3112244", says("secret"))
	b := c.as(fleet.RoleOperator)
	at := b.post("/devices/a085e3112244/tools/"+fleet.ToolDeviceStatus, nil).wantRedirect("/devices/a085e3112244")
	_, call, _ := strings.Cut(at, "?")
	for _, asked := range []string{call, "call=x", "call="} {
		if got := b.get(hubAt + "?" + asked).wantStatus(200).text("#result"); got != "" {
			t.Errorf("%s shows %q", asked, got)
		}
	}
}

func TestQuickActsFollowRoleAndInventory(t *testing.T) {
	c := newConsole(t)
	c.enrol(unit)
	viewer := c.as(fleet.RoleViewer).get(hubAt).wantStatus(200)
	if n := len(viewer.find("form[enctype=multipart/form-data]")); n != 0 {
		t.Errorf("a viewer is offered %d acts", n)
	}
	c.poll("a085e3112255") // offers nothing yet
	b := c.as(fleet.RoleOperator)
	p := b.get("/devices/a085e3112255").wantStatus(200)
	if n := len(p.find("form[enctype=multipart/form-data]")); n != 0 {
		t.Errorf("%d acts are offered for a device without tools", n)
	}
	for _, hidden := range []string{"Tools", "Health", "Screen", "Logs"} {
		if strings.Contains(p.text("nav[class=tabs]"), hidden) {
			t.Errorf("the tab %s is shown for a device that cannot fill it", hidden)
		}
	}
	for _, tab := range []string{"tools", "health", "screen", "logs"} {
		b.get("/devices/a085e3112255/" + tab).wantStatus(200)
	}
}

func TestTimelineOnThePage(t *testing.T) {
	c := newConsole(t)
	c.enrol(unit)
	b := c.as(fleet.RoleOperator)
	b.post(hubAt+"/edit", url.Values{"name": {"<b>kitchen"}}).wantRedirect(hubAt)
	b.post(hubAt+"/hold", url.Values{"reason": {"mine"}, "hours": {"0"}}).wantRedirect(hubAt)
	p := b.get(hubAt).wantText("#timeline", "<b>kitchen").wantText("#timeline", "mine").wantText("#timeline", "Today")
	if strings.Contains(p.body, "<b>kitchen") {
		t.Error("a name is not escaped")
	}
	calls := b.get(hubAt + "?show=calls").wantStatus(200).text("#timeline")
	if strings.Contains(calls, "mine") {
		t.Error("the filter lets a hold through")
	}
	b.get(hubAt+"?day=2020-01-01").wantText("#timeline", "No records of this kind").wantText("#timeline", "Newest")
	b.get(hubAt+"?day=x&show=y").wantText("#timeline", "mine")
	b.get(hubAt+"?cursor=x").wantStatus(200).wantText("#timeline", "cursor does not belong to this list")
	b.get(hubAt+"?lang=zh-CN").wantText("#timeline", "今天")
	c.as(fleet.RoleViewer).get(hubAt).wantText("#timeline", "mine")
}

func TestTimelineIsLive(t *testing.T) {
	c := newConsole(t)
	c.enrol(unit)
	b := c.as(fleet.RoleOperator)
	live, past := b.stream("/events?view=device&id=a085e3112233"), b.stream("/events?view=device&day=2020-01-01&id=a085e3112233")
	live.want("patch", `id="device-head"`)
	past.want("patch", `id="device-head"`)
	b.post(hubAt+"/edit", url.Values{"name": {"kitchen"}})
	live.want("new", "1")
	// It was stored after the entry that follows it.
	c.exec(`INSERT INTO report_changes (device_id, at, code, params)
		VALUES ($1, now() - interval '1 second', 'restarted', '{"proof": "boot_poll"}')`, unit)
	c.events.Publish(fleet.Event{Kind: fleet.EventDevice, Device: unit, At: time.Now().UTC()})
	live.want("new", "1")
	for len(past.events) > 0 {
		if e := <-past.events; e.kind == "new" {
			t.Errorf("a page of the past is sent %+v", e)
		}
	}
}

// A boot poll without changes proves a restart, which is stored a moment later: no other event need
// follow.
func TestRestartIsInTheLiveTimeline(t *testing.T) {
	c := newConsole(t)
	client := uuid.NewString()
	start := func() {
		t.Helper()
		_, err := c.enrolments.Poll(enrolment.BootPoll{Kind: enrolment.PollStart, Device: unit, ClientID: client,
			Board: "esp-box-3", Version: "2.4.2", At: time.Now().UTC()})
		if err != nil {
			t.Fatal(err)
		}
	}
	start()
	b := c.as(fleet.RoleOperator)
	b.post(hubAt+"/approve", nil).wantStatus(303)
	start()
	stored := func() (is bool) {
		err := c.db.QueryRow(t.Context(), "SELECT last_poll >= enrolled_at FROM devices WHERE id = $1", unit).Scan(&is)
		return err == nil && is
	}
	fleettest.Eventually(t, "the poll is stored", stored)
	live := b.stream("/events?view=device&id=" + string(unit))
	live.want("patch", `id="device-head"`)
	start()
	live.want("patch", "proven by its boot poll")
}

// The left column and the head are always from the same moment: acts come and go with the device,
// and a volume that others set is shown.
func TestActsAreLive(t *testing.T) {
	c := newConsole(t)
	c.poll(unit)
	b := c.as(fleet.RoleOperator)
	s := b.stream("/events?view=device&id=" + string(unit))
	s.want("patch", `id="device-head"`, "is-pending", `id="device-acts"`)
	c.enrol(unit)
	c.connect(unit, says("true"))
	s.want("patch", `id="device-head"`, "is-online", `id="device-acts"`, `id="act-self.reboot"`, `id="device-brief"`)
	c.signIn("operator-1").post(hubAt+"/tools/"+fleet.ToolSetVolume, url.Values{"arg.volume": {"61"}}).wantStatus(303)
	s.want("patch", `id="device-acts"`, `id="act-volume"`, `value="61"`)
	c.presences.Disconnected(fleet.Connection{Device: unit, Epoch: c.epoch}, true, fleet.Cause{})
	s.want("patch", `id="device-head"`, "is-offline", `id="device-acts"`, "Offline:")
}

// A viewer without any act sees the device's details instead of an empty column.
func TestViewersSeeWhatTheDeviceIs(t *testing.T) {
	c := newConsole(t)
	c.enrol(unit)
	c.connect(unit, says("true"))
	c.as(fleet.RoleOperator).post(hubAt+"/edit", url.Values{"notes": {"by the window"}})
	p := c.as(fleet.RoleViewer).get(hubAt).wantText("#device-brief", "192.0.2.7").wantText("#device-brief", "by the window")
	if got := p.text("#device-acts"); got != "" {
		t.Errorf("a viewer is offered %q", got)
	}
}
