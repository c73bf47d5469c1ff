package web_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web"
)

// forAdmins are the pages that only admins read: they show where others are signed
// in, secrets of receivers, and files of the server.
var forAdmins = map[string]bool{"/settings/operators/{operator}": true, "/settings/webhooks": true,
	"/settings/system": true}

// TestWhoMayDoWhat walks every route signed out and in each role. The routes
// come from the server's own table: one that is added there is tested here.
func TestWhoMayDoWhat(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	path := strings.NewReplacer("{device}", "a085e3112233", "{tool}", "self.get_device_status", "{call}", uuid.NewString(),
		"{n}", "0",
		"{snapshot}", uuid.NewString(), "{fanout}", uuid.NewString(), "{operator}", uuid.NewString(), "{token}",
		uuid.NewString(),
		"{image}", strings.Repeat("ab", 32), "{release}", uuid.NewString(), "{campaign}", uuid.NewString(), "{dump}",
		uuid.NewString(), "{rule}", uuid.NewString(), "{serial}", "SN-1", "{filter}", uuid.NewString(),
		"{policy}", uuid.NewString(), "{approval}", uuid.NewString(), "{webhook}", uuid.NewString(),
		"{upstream}", uuid.NewString(), "{alert}", uuid.NewString(), "{conversation}", uuid.NewString(),
		"{session}", uuid.NewString())
	viewers := map[fleet.Role]*browser{"": c.browser()}
	for _, role := range []fleet.Role{fleet.RoleViewer, fleet.RoleOperator, fleet.RoleAdmin} {
		viewers[role] = c.as(role)
	}
	changing := 0
	for _, route := range web.Routes() {
		at := path.Replace(route.Pattern)
		if at == "/sign-out" || at == "/events" {
			continue // ends the session, or never ends: tested on their own
		}
		if route.Method != http.MethodGet {
			changing++
			if route.Role == "" && at != "/sign-in" && at != "/preferences" {
				t.Errorf("%s changes something and is open to all", at)
			}
		} else if route.Method == http.MethodGet && route.Role == fleet.RoleAdmin && !forAdmins[route.Pattern] {
			t.Errorf("%s is not for reading by all", at)
		}
		for role, b := range viewers {
			p := b.do(route.Method, at, "application/x-www-form-urlencoded",
				strings.NewReader(url.Values{"days": {"x"}}.Encode()))
			checkAccess(t, p, route, role)
		}
	}
	if changing < 15 {
		t.Errorf("only %d routes that change something were tried", changing)
	}
}

func checkAccess(t *testing.T, p *page, route web.Route, role fleet.Role) {
	t.Helper()
	switch {
	case route.Role == "":
		if p.status == http.StatusForbidden {
			t.Errorf("%s as %q: forbidden, want it open to all", p.what, role)
		}
	case role == "":
		if p.status != http.StatusSeeOther || !strings.HasPrefix(p.header.Get("Location"), "/sign-in") {
			t.Errorf("%s signed out: %d to %q, want the sign-in page", p.what, p.status, p.header.Get("Location"))
		}
	case !role.Allows(route.Role):
		if p.status != http.StatusForbidden {
			t.Errorf("%s as %s: %d, want 403", p.what, role, p.status)
		}
	case p.status == http.StatusForbidden, p.status >= 500, strings.HasPrefix(p.header.Get("Location"), "/sign-in"):
		t.Errorf("%s as %s: %d to %q, want it allowed", p.what, role, p.status, p.header.Get("Location"))
	}
}

func TestStrangersLearnNothing(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	b := c.browser()
	known, unknown := b.get("/devices/a085e3112233"), b.get("/devices/ffffffffffff")
	if known.status != unknown.status {
		t.Errorf("a device that is there answers %d, one that is not %d", known.status, unknown.status)
	}
	b.get("/no/such/page").wantRedirect("/sign-in?next=%2Fno%2Fsuch%2Fpage")
	b.get("/devices?q=tag%3Alab").wantRedirect("/sign-in?next=" + url.QueryEscape("/devices?q=tag%3Alab"))
	b.headers["HX-Request"] = "true"
	b.headers["HX-Current-URL"] = c.url + "/calls?tool=x"
	p := b.get("/devices").wantStatus(http.StatusUnauthorized)
	if got := p.header.Get("HX-Redirect"); got != "/sign-in?next=%2Fcalls%3Ftool%3Dx" {
		t.Errorf("a page with script is led to %q", got)
	}
}
