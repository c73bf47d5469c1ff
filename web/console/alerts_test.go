package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/alert"
)

// An alert opens while pages are open, and is acknowledged without JavaScript.
func TestAlertsOnPages(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	b := c.as(fleet.RoleOperator)
	b.get("/").wantText("#alerts-now", "No alerts.")
	overview, devices := b.stream("/events?view=overview"), b.stream("/events?view=devices")

	for i, tool := range []string{"self.one", "self.<b>two"} { // with the same firmware
		if err := c.store.SaveListing(t.Context(), fleet.ToolListing{Device: "a085e3112233", Version: "2.0.3",
			At: time.Now(), Inventory: fleet.Inventory{ID: strings.Repeat("0", 63) + string(rune('1'+i)),
				Tools: []fleet.Tool{{Name: tool}}, CreatedAt: time.Now()}}); err != nil {
			t.Fatal(err)
		}
	}
	c.alerts.Look(t.Context())
	overview.want("patch", `id="alerts-now"`, "1 device changed its tools")
	devices.want("patch", `id="alerts-badge"`, `data-open="1"`, "favicon-warn")

	page := b.get("/")
	page.wantText("title", "(1) Overview · fleetd").wantText("#alerts-now", "1 device changed its tools")
	open := c.alerts.Current(fleet.Principal{Role: fleet.RoleViewer})
	at := "/alerts/" + open[0].ID.String()
	if len(page.find("form[action="+at+"/acknowledge]")) == 0 {
		t.Error("an operator has no form to acknowledge it")
	}
	if len(c.as(fleet.RoleViewer).get("/").find("form[action="+at+"/acknowledge]")) != 0 {
		t.Error("a viewer has a form to acknowledge it")
	}
	b.get(at).wantText("details[class=raw equivalent]", "fleetd alerts acknowledge "+open[0].ID.String())
	b.post(at+"/acknowledge", url.Values{}).wantRedirect("/")
	b.post(b.get("/").undoOf(), url.Values{}).wantRedirect("/")
	if now := c.alerts.Current(fleet.Principal{Role: fleet.RoleViewer}); now[0].State != alert.Open {
		t.Errorf("the acknowledgement was not taken back: %s", now[0].State)
	}
	b.get(at).says("Acknowledgement taken back")
	b.post(at+"/acknowledge", url.Values{"note": {"new <b>board"}, "next": {"//evil.example"}}).wantRedirect("/")
	b.get(at).says("new <b>board")
	b.get("/").wantText("title", "Overview · fleetd")
	b.post(at+"/acknowledge", url.Values{}).wantStatus(http.StatusConflict)

	admin := c.as(fleet.RoleAdmin)
	settings := admin.get("/settings/alerts")
	form := url.Values{"open_after": {"1m"}, "end_after": {"5m"}, "settle": {"5m"}}
	for _, cond := range alert.Conditions {
		k := string(cond.Kind)
		form[k+".enabled"], form[k+".percent"], form[k+".count"], form[k+".span"] = []string{"1"}, []string{"20"},
			[]string{"3"}, []string{"1h"}
		if cond.Kind == alert.ToolsChanged {
			delete(form, k+".enabled")
		}
		if len(settings.find("input[name="+k+".enabled]")) == 0 {
			t.Errorf("%s is not in the form", k)
		}
	}
	form.Set("online_dropped.span", "1 fortnight")
	admin.post("/settings/alerts", form).wantStatus(http.StatusUnprocessableEntity)
	form.Set("online_dropped.span", "2 h")
	admin.post("/settings/alerts", form).wantRedirect("/settings/alerts")
	c.alerts.Look(t.Context()) // a condition that is switched off ends
	b.get("/alerts").says("No alerts.")
	b.get("/alerts?state=ended").says("1 device changed its tools")
	admin.post("/settings/alerts/mail", url.Values{"recipients": {"ada@example.org\nBo <bo@example.org>"}}).
		wantStatus(http.StatusUnprocessableEntity)
}

// An operator silences an alert from its row, and the badge and the icon no longer show it.
func TestSilenceOnPages(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	for i, tool := range []string{"self.one", "self.two"} { // with the same firmware
		if err := c.store.SaveListing(t.Context(), fleet.ToolListing{Device: "a085e3112233", Version: "2.0.3",
			At: time.Now(), Inventory: fleet.Inventory{ID: strings.Repeat("0", 63) + string(rune('1'+i)),
				Tools: []fleet.Tool{{Name: tool}}, CreatedAt: time.Now()}}); err != nil {
			t.Fatal(err)
		}
	}
	c.alerts.Look(t.Context())
	b := c.as(fleet.RoleOperator)
	page := b.get("/alerts")
	page.wantText("title", "(1) Alerts · fleetd")
	at := c.alerts.Current(fleet.Principal{Role: fleet.RoleViewer})[0].ID.String()
	if len(page.find("form[action=/alerts/silences]")) != 2 { // and the form below the list
		t.Error("the row has no form to silence the alert")
	}
	viewer := c.as(fleet.RoleViewer)
	if len(viewer.get("/alerts").find("form[action=/alerts/silences]")) != 0 {
		t.Error("a viewer has a form to silence it")
	}
	form := url.Values{"alert": {at}, "for": {"8h"}, "reason": {"new <b>boards"}, "next": {"/alerts"}}
	viewer.post("/alerts/silences", form).wantStatus(http.StatusForbidden)
	b.get("/alerts").wantText("title", "(1) Alerts · fleetd")
	for _, bad := range []url.Values{
		{"alert": {at}, "for": {"8h"}, "reason": {""}},
		{"alert": {at}, "for": {"876000h"}, "reason": {"x"}},
		{"alert": {at}, "for": {"until"}, "until": {"tomorrow"}, "reason": {"x"}},
		{"alert": {"x"}, "for": {"8h"}, "reason": {"x"}},
		{"for": {"8h"}, "reason": {"x"}},
	} {
		if p := b.post("/alerts/silences", bad); p.status != http.StatusUnprocessableEntity {
			t.Errorf("%v: %d", bad, p.status)
		}
	}
	b.post("/alerts/silences", form).wantRedirect("/alerts")
	page = b.get("/alerts")
	page.wantText("title", "Alerts · fleetd").says("Silenced until", "new <b>boards", "1 open alert is silenced")
	if !strings.Contains(page.body, `data-open="0"`) || strings.Contains(page.body, "favicon-warn") {
		t.Error("the badge counts a silenced alert")
	}
	var id string
	if err := c.db.QueryRow(t.Context(), `SELECT id FROM silences`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	if len(page.find("form[action=/alerts/silences/"+id+"/end]")) != 1 {
		t.Error("an operator cannot end the silence")
	}
	viewer.post("/alerts/silences/"+id+"/end", nil).wantStatus(http.StatusForbidden)
	b.post("/alerts/silences/"+id+"/end", nil).wantRedirect("/alerts")
	if p := b.get("/alerts").wantText("title", "(1) Alerts · fleetd"); len(p.find("#silences")) != 0 {
		t.Error("the page lists a silence that has ended")
	}

	admin := c.as(fleet.RoleAdmin)
	groups := url.Values{"group.name": {"room 2", ""}, "group.query": {"tag:room-2", ""}, "group.warning": {"50", "50"},
		"group.critical": {"", "80"}, "group.least": {"2", "2"}, "group.span": {"5m", "5m"}}
	b.post("/settings/alerts/groups", groups).wantStatus(http.StatusForbidden)
	admin.post("/settings/alerts/groups", groups).wantRedirect("/settings/alerts")
	if p := admin.get("/settings/alerts"); len(p.find("input[name=group.name]")) != 2 || !strings.Contains(p.body, `value="room 2"`) {
		t.Error("the group is not in the form")
	}
	groups.Set("group.query", "presence:online")
	admin.post("/settings/alerts/groups", groups).wantStatus(http.StatusUnprocessableEntity)
}
