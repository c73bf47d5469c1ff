package console_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/console"
)

// The address that a refused form leaves in the browser redirects to a page.
func TestAddressesOfFormsReload(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	admin, stranger := c.as(fleet.RoleAdmin), c.browser()
	path := strings.NewReplacer("{device}", "a085e3112233", "{tool}", "self.reboot")
	id := uuid.NewString()
	tried := 0
	for _, route := range console.Routes() {
		if route.Method != http.MethodPost {
			continue
		}
		at := path.Replace(route.Pattern)
		if before, _, ok := strings.Cut(at, "{"); ok { // an id that does not exist redirects to the page of its list
			at = before + id + at[strings.LastIndexByte(at, '}')+1:]
		}
		for hops := 0; ; hops++ {
			p := admin.get(at)
			if p.status == http.StatusSeeOther && hops < 2 {
				tried++
				at = p.header.Get("Location")
				continue
			}
			if gone := p.status == http.StatusNotFound && strings.Contains(at, id); p.status != http.StatusOK && !gone {
				t.Errorf("GET %s of POST %s: %d", at, route.Pattern, p.status)
			}
			break
		}
	}
	if tried < 40 {
		t.Errorf("only %d addresses led elsewhere", tried)
	}
	for from, to := range map[string]string{
		"/devices/a085e3112233/edit":              "/devices/a085e3112233",
		"/devices/a085e3112233/config":            "/devices/a085e3112233/configuration",
		"/devices/a085e3112233/config/read":       "/devices/a085e3112233/configuration",
		"/devices/a085e3112233/logs/level":        "/devices/a085e3112233/logs",
		"/devices/a085e3112233/quarantine":        "/devices/a085e3112233/firmware",
		"/devices/a085e3112233/tools/x%2Fy/pin":   "/devices/a085e3112233/tools/x%2Fy",
		"/campaigns/" + id + "/rollback":          "/campaigns/" + id,
		"/firmware/releases":                      "/firmware/releases/new",
		"/settings/operators/" + id + "/password": "/settings/operators/" + id,
		"/settings/account/sessions/end":          "/settings/account",
	} {
		admin.get(from).wantRedirect(to)
		stranger.get(from).wantRedirect("/sign-in?next=")
	}
}
