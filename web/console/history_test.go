package console_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"fleetd/fleet"
)

// The slider leads to the address of its moment, with the filter; the page shows the fleet of that moment.
func TestHistorySlider(t *testing.T) {
	c := newConsole(t)
	c.enrol(unit)
	b := c.as(fleet.RoleViewer)
	at := b.get("/history?slide=1000&q=id:" + string(unit)).wantRedirect("/history?")
	u, err := url.Parse(at)
	if err != nil || u.Query().Get("q") != "id:"+string(unit) || u.Query().Get("slide") != "" {
		t.Errorf("the slider leads to %s", at)
	}
	if _, err := time.Parse("2006-01-02T15:04:05", u.Query().Get("at")); err != nil {
		t.Errorf("the moment: %v", err)
	}
	for _, place := range []string{"-1", "1001", "x"} {
		b.get("/history?slide=" + place).wantStatus(http.StatusOK)
	}
	start := b.get("/history?slide=0").wantRedirect("/history?at=")
	b.get(start).wantStatus(http.StatusOK)
	b.get("/history").wantStatus(http.StatusOK).wantText("main", "Versions over time")
}

// The page of a device lists its states, and leads to a past moment of it.
func TestStatesOnThePageOfADevice(t *testing.T) {
	c := newConsole(t)
	c.enrol(unit)
	by := fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "ana", Role: fleet.RoleAdmin}
	err := c.store.UpdateDevice(t.Context(), by, unit, fleet.DevicePatch{Name: new("<b>Hall"), Tags: &[]string{"lab"}})
	if err != nil {
		t.Fatal(err)
	}
	p := c.as(fleet.RoleViewer).get("/devices/" + string(unit) + "/firmware").wantStatus(http.StatusOK)
	p.wantText("#states", "<b>Hall").wantText("#states", "lab")
	if !slices.ContainsFunc(p.find("a"), func(n *html.Node) bool {
		return strings.HasPrefix(attribute(n, "href"), "/history?q=id")
	}) {
		t.Error("no link to a past moment of the device")
	}
}
