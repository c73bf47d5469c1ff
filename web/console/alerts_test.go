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
