package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/operator"
)

const firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"

// logins returns the ids of the operator's sessions, the latest used first.
func (c *site) logins(o operator.Operator) (ids []string) {
	c.t.Helper()
	by := o.Principal()
	list, err := c.operators.Logins(c.t.Context(), by, o.ID)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, l := range list {
		ids = append(ids, l.ID.String())
	}
	return ids
}

func TestOwnSessions(t *testing.T) {
	c := newConsole(t)
	ada := c.operator("ada", fleet.RoleViewer)
	there := c.signIn("ada")
	old := c.logins(ada)[0]
	here := c.browser()
	here.headers["User-Agent"], here.headers["X-Forwarded-For"] = firefox, "198.51.100.7"
	here.post("/sign-in", url.Values{"name": {"ada"}, "password": {password}}).wantRedirect("/")
	here.get("/settings/account").wantStatus(200).wantText("#sessions", "Firefox · Linux").wantText("#sessions",
		"198.51.100.7").wantText("#sessions", "this session").wantText("#sessions", "127.0.0.1").wantText("#account",
		"198.51.100.7")
	if c.logins(ada)[0] == old {
		t.Error("the session that was used last is not the first")
	}

	eve := c.operator("eve", fleet.RoleOperator)
	other := c.signIn("eve")
	other.post("/settings/account/sessions/"+old+"/end", nil).wantStatus(http.StatusNotFound)
	other.post("/settings/account/sessions/nonsense/end", nil).wantStatus(http.StatusNotFound)
	other.post("/settings/operators/"+ada.ID.String()+"/sessions/"+old+"/end", nil).wantStatus(http.StatusForbidden)
	other.get("/settings/operators/" + ada.ID.String()).wantStatus(http.StatusForbidden)
	there.get("/").wantStatus(200)

	live := there.stream("/events?view=overview")
	here.post("/settings/account/sessions/"+old+"/end", nil).wantRedirect("/settings/account")
	live.wantEnd()
	there.get("/calls?tool=x").wantRedirect("/sign-in?next=" + url.QueryEscape("/calls?tool=x"))
	there.post("/sign-in", url.Values{"name": {"ada"}, "password": {password}, "next": {"/calls?tool=x"}}).
		wantRedirect("/calls?tool=x")
	third := c.signIn("ada")
	here.post("/settings/account/sessions/end", nil).wantRedirect("/settings/account")
	there.get("/").wantRedirect("/sign-in")
	third.get("/").wantRedirect("/sign-in")
	here.get("/").wantStatus(200)
	if n := len(c.logins(ada)); n != 1 {
		t.Errorf("%d sessions are left, want the present one", n)
	}
	if n := len(c.logins(eve)); n != 1 {
		t.Errorf("%d sessions of another operator are left, want 1", n)
	}
	entries, err := c.store.AuditEntries(t.Context(), audit.Filter{Action: "operator.end_session"})
	if err != nil || len(entries.Items) != 2 || entries.Items[0].Subject != ada.ID.String() ||
		entries.Items[0].Actor.Name != "ada" {
		t.Errorf("audit: %+v, %v", entries, err)
	}
	here.post("/sign-out", nil).wantRedirect("/sign-in")
	if n := len(c.logins(ada)); n != 0 {
		t.Errorf("%d sessions are left after signing out", n)
	}
}

func TestAnAdminEndsSessions(t *testing.T) {
	c := newConsole(t)
	admin := c.as(fleet.RoleAdmin)
	ada := c.operator("ada", fleet.RoleViewer)
	first, second := c.signIn("ada"), c.signIn("ada")
	page := "/settings/operators/" + ada.ID.String()
	admin.get("/settings").wantText("#main", "127.0.0.1")
	admin.get(page).wantStatus(200).wantText("#sessions", "End all 2 sessions")
	admin.post(page+"/sessions/"+c.logins(ada)[0]+"/end", nil).wantRedirect(page)
	if n := len(c.logins(ada)); n != 1 {
		t.Errorf("%d sessions are left, want 1", n)
	}
	admin.post(page+"/sessions/end", nil).wantRedirect(page)
	first.get("/").wantRedirect("/sign-in")
	second.get("/").wantRedirect("/sign-in")
	admin.get(page).wantStatus(200).wantText("#sessions", "No sessions.")

	// A role or password set on the page takes effect at once.
	admin.post(page+"/access", url.Values{"role": {"king"}}).wantStatus(422)
	admin.post(page+"/access", url.Values{"role": {"operator"}}).wantRedirect(page)
	admin.get(page).wantText("#account", "Operator")
	third := c.signIn("ada")
	admin.post(page+"/password", url.Values{"password": {"short"}}).wantStatus(422).wantText("#main", "at least 10")
	third.get("/").wantStatus(200)
	admin.post(page+"/password", url.Values{"password": {"tin roof gravel"}}).wantRedirect(page)
	third.get("/").wantRedirect("/sign-in")
	third.post("/sign-in", url.Values{"name": {"ada"}, "password": {"tin roof gravel"}}).wantRedirect("/")
	admin.post(page+"/disable", nil).wantRedirect(page)
	if n := len(c.logins(ada)); n != 0 {
		t.Errorf("%d sessions of a disabled operator are left", n)
	}

	// The admin's own page is the account page; the last admin remains an admin.
	me, err := c.store.OperatorByName(t.Context(), "admin-1")
	if err != nil {
		t.Fatal(err)
	}
	own := "/settings/operators/" + me.ID.String()
	admin.get(own).wantRedirect("/settings/account")
	admin.post(own+"/access", url.Values{"role": {"viewer"}}).wantStatus(http.StatusConflict)
	admin.get("/settings/operators/nonsense").wantStatus(http.StatusNotFound)
}

func TestSystemPage(t *testing.T) {
	c := newConsole(t)
	p := c.as(fleet.RoleAdmin).get("/settings/system").wantStatus(200)
	p.wantText("#main", "1.2.3").wantText("#main", "Server version").wantText("#main", "audit_entries")
	operator := c.as(fleet.RoleOperator)
	operator.get("/settings/system").wantStatus(http.StatusForbidden)
	if strings.Contains(operator.get("/settings").body, "/settings/system") {
		t.Error("an operator is led to the page about the system")
	}
}

// A scope over facts that devices report about themselves shows a warning, on the form and wherever
// the scope is shown; a scope over tags shows none.
func TestScopesOfClaims(t *testing.T) {
	c := newConsole(t)
	c.operator("root", fleet.RoleAdmin)
	b := c.signIn("root")
	const warning = "devices report about themselves: "
	token := func(scope string) *page {
		return b.post("/settings/tokens", url.Values{"name": {scope}, "role": {"viewer"}, "kind": {"program"},
			"scope": {scope}, "days": {"30"}}).wantStatus(200)
	}
	if page := token("tag:lab"); strings.Contains(page.body, warning) {
		t.Error("a scope of tags is warned of")
	}
	token("tag:lab board:lock").wantText("main", warning+"board.")
	b.post("/settings/operators", url.Values{"name": {"eve"}, "role": {"operator"}, "scope": {"chip:esp32s3"},
		"password": {password}})
	b.get("/settings").wantStatus(200).wantText("main", warning+"chip.")
	eve, err := c.operators.ByName(t.Context(), "eve")
	if err != nil {
		t.Fatal(err)
	}
	b.get("/settings/operators/"+eve.ID.String()).wantStatus(200).wantText("main", warning+"chip.")
}
