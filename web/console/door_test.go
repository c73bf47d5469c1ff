package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/web/console"
	"fleetd/web/ui"
)

// A stoppedClock is the server's clock; only the test advances it.
type stoppedClock struct{ nanos atomic.Int64 }

func stopClock() *stoppedClock {
	c := new(stoppedClock)
	c.pass(time.Duration(time.Now().UnixNano()))
	return c
}

func (c *stoppedClock) pass(d time.Duration) { c.nanos.Add(int64(d)) }

func (c *stoppedClock) use(o *console.Options) {
	o.Now = func() time.Time { return time.Unix(0, c.nanos.Load()) }
}

// guesser returns a browser with another address.
func (c *site) guesser(address string) *browser {
	b := c.browser()
	b.headers["X-Forwarded-For"] = address // loopback is trusted like a proxy
	return b
}

func (b *browser) guess(name, secret string) int {
	return b.post("/sign-in", url.Values{"name": {name}, "password": {secret}}).status
}

// Guesses of a password from elsewhere do not lock out its operator.
func TestGuessesElsewhereDoNotLockOut(t *testing.T) {
	clock := stopClock()
	c := newConsole(t, clock.use)
	c.operator("admin", fleet.RoleAdmin)
	known := c.guesser("203.0.113.77")
	if status := known.guess("admin", password); status != http.StatusSeeOther {
		t.Fatalf("the operator's first sign-in: %d", status)
	}
	known.post("/sign-out", nil).wantRedirect("/sign-in")

	// Ten wrong passwords a minute, from ten networks, for five minutes.
	for i := range 50 {
		clock.pass(6 * time.Second)
		if status := c.guesser(fmt.Sprintf("198.51.%d.9", i%10)).guess("admin", "wrong"); status != 422 {
			t.Fatalf("guess %d from ten networks: %d", i, status)
		}
	}
	if status := c.guesser("192.0.2.4").guess("admin", password); status != http.StatusSeeOther {
		t.Errorf("the right password from another network: %d", status)
	}
	// One network is blocked, whatever name it tries next.
	tried := 0
	for i := range 30 {
		if c.guesser(fmt.Sprintf("10.1.1.%d", i)).guess(fmt.Sprint("name", i/5), "wrong") == 422 {
			tried++
		}
	}
	if tried != 20 {
		t.Errorf("%d passwords were tried from one network, want 20", tried)
	}
	if status := c.guesser("10.1.1.200").guess("admin", password); status != http.StatusTooManyRequests {
		t.Errorf("the right password from the network that guesses: %d", status)
	}
	// Many networks are slowed; a browser that has signed in before gets in.
	slowed := false
	for i := 0; i < 100 && !slowed; i++ {
		slowed = c.guesser(fmt.Sprintf("10.2.%d.1", i)).guess("admin", "wrong") == http.StatusTooManyRequests
	}
	if !slowed {
		t.Error("100 networks that guess at one name were not slowed down")
	}
	if status := c.guesser("10.3.0.1").guess("admin", password); status != http.StatusTooManyRequests {
		t.Errorf("an unknown browser while many guess: %d", status)
	}
	known.headers["X-Forwarded-For"] = "10.2.0.1"
	if status := known.guess("admin", password); status != http.StatusSeeOther {
		t.Errorf("the operator's browser while many guess: %d", status)
	}
	// A known browser is known for its operator alone, and not forever.
	c.operator("eve", fleet.RoleViewer)
	for range 30 {
		known.guess("eve", "wrong")
	}
	if status := known.guess("eve", password); status != http.StatusTooManyRequests {
		t.Errorf("as another operator: %d", status)
	}
	for range 12 {
		known.guess("admin", "wrong")
	}
	if status := known.guess("admin", password); status != http.StatusTooManyRequests {
		t.Errorf("the known browser guessed on: %d", status)
	}
}

// browserCookie returns the cookie of a known browser.
func (b *browser) browserCookie() string {
	at, _ := url.Parse(b.base)
	for _, k := range b.client.Jar.Cookies(at) {
		if k.Name == "fleetd_browser" {
			return k.Value
		}
	}
	return ""
}

// A browser is no longer known after the credentials that it used have changed.
func TestKnownBrowsersEnd(t *testing.T) {
	c := newConsole(t)
	ada := c.operator("ada", fleet.RoleViewer)
	admin := c.as(fleet.RoleAdmin)
	known := func(secret string) bool {
		_, err := c.operators.KnownBrowser(t.Context(), secret)
		return err == nil
	}
	b := c.browser()
	p := b.post("/sign-in", url.Values{"name": {"ada"}, "password": {password}})
	set := strings.Join(p.header.Values("Set-Cookie"), "\n")
	for _, want := range []string{"fleetd_browser=", "HttpOnly", "SameSite=Strict", "Max-Age=15552000"} {
		if !strings.Contains(set, want) {
			t.Errorf("cookies %s, want %s", set, want)
		}
	}
	first := b.browserCookie()
	b.post("/sign-out", nil)
	if !known(first) {
		t.Error("a browser is forgotten when its operator leaves")
	}
	b.post("/sign-in", url.Values{"name": {"ada"}, "password": {password}}).wantRedirect("/")
	second := b.browserCookie()
	if first == second || known(first) || !known(second) {
		t.Error("a sign-in does not replace the secret of the browser")
	}
	var kept int
	if err := c.db.QueryRow(t.Context(), `SELECT count(*) FROM known_browsers WHERE position(convert_to($1, 'UTF8')
		IN hash) > 0`, second).Scan(&kept); err != nil || kept != 0 {
		t.Errorf("the secret is stored, %v", err)
	}
	page := "/settings/operators/" + ada.ID.String()
	for what, end := range map[string]func(){
		"ended session":  func() { admin.post(page+"/sessions/"+c.logins(ada)[0]+"/end", nil).wantRedirect(page) },
		"ended sessions": func() { admin.post(page+"/sessions/end", nil).wantRedirect(page) },
		"new password": func() {
			admin.post(page+"/password", url.Values{"password": {"tin roof gravel"}}).wantRedirect(page)
			c.exec(`UPDATE operators SET password_hash = $1 WHERE name = 'ada'`, passwordHash())
		},
		"locked out": func() {
			admin.post(page+"/disable", nil).wantRedirect(page)
			admin.post(page+"/enable", nil).wantRedirect(page)
		},
	} {
		b := c.signIn("ada")
		if !known(b.browserCookie()) {
			t.Fatalf("%s: not known after the sign-in", what)
		}
		if end(); known(b.browserCookie()) {
			t.Errorf("%s: the browser is still known", what)
		}
	}
	mine := c.signIn("ada")
	old := mine.browserCookie()
	mine.post("/settings/password", url.Values{"old": {password}, "new": {"tin roof gravel"}}).
		wantRedirect("/settings/account")
	if now := mine.browserCookie(); now == old || known(old) || !known(now) {
		t.Error("the browser in which the password was changed is not known by a new secret")
	}
}

func TestIdleSessionsEnd(t *testing.T) {
	c := newConsole(t)
	c.operators.EndIdle(12 * time.Hour)
	ada := c.operator("ada", fleet.RoleViewer)
	b, other := c.signIn("ada"), c.signIn("ada")
	b.get("/settings/account").wantStatus(200).wantText("#sessions", "if unused, ends in")
	c.exec(`UPDATE logins SET seen_at = now() - interval '11 hours 55 minutes' WHERE id = $1`, c.logins(ada)[1])
	c.exec(`UPDATE logins SET seen_at = now() - interval '12 hours 1 minute' WHERE id = $1`, c.logins(ada)[0])
	if n := len(c.logins(ada)); n != 1 {
		t.Errorf("%d sessions are listed, want the one that was used", n)
	}
	stay, gone := b, other
	if stay.get("/").status != 200 {
		stay, gone = other, b
	}
	stay.get("/").wantStatus(200)
	gone.get("/calls?tool=x").wantRedirect("/sign-in?next=" + url.QueryEscape("/calls?tool=x"))
}

// rule returns a form that creates a rule of the policy.
func (c *site) rule(name string) url.Values {
	return url.Values{"name": {name}, "decision": {"deny"}, "tools": {"self.*"}, "enabled": {"1"},
		"version": {fmt.Sprint(c.policies.Table().Version)}}
}

func (c *site) hasRule(name string) bool {
	var n int
	if err := c.db.QueryRow(c.t.Context(), `SELECT count(*) FROM policies WHERE name = $1`, name).Scan(&n); err != nil {
		c.t.Fatal(err)
	}
	return n > 0
}

// An act that is too dangerous for a session left open requires the password, and then runs with
// the form as typed.
func TestOldConfirmationAsksForThePassword(t *testing.T) {
	c := newConsole(t)
	admin := c.as(fleet.RoleAdmin)
	admin.post(ui.PathPolicies, c.rule("fresh")).wantRedirect(ui.PathPolicies)
	if !c.hasRule("fresh") {
		t.Fatal("a rule was not made after a sign-in")
	}
	c.exec(`UPDATE logins SET confirmed_at = now() - interval '10 minutes 1 second'`)

	form := c.rule(`typed "<b>` + "\n二")
	p := admin.post(ui.PathPolicies, form).wantStatus(http.StatusForbidden).wantText("h1", "Confirm your identity")
	if c.hasRule(form.Get("name")) {
		t.Fatal("the rule was made without the password")
	}
	again := url.Values{}
	for _, in := range p.find("input[type=hidden]") {
		if name := attribute(in, "name"); form.Has(name) {
			again.Add(name, attribute(in, "value"))
		}
	}
	if again.Encode() != form.Encode() {
		t.Errorf("the page keeps %v of %v", again, form)
	}
	if action := attribute(p.find("form[action=" + ui.PathPolicies + "]")[0], "method"); action != "post" {
		t.Errorf("the page's form has the method %q", action)
	}
	again.Set(ui.ConfirmField, "not the password")
	admin.post(ui.PathPolicies, again).wantStatus(422).wantText("#main", "password is wrong")
	if c.hasRule(form.Get("name")) {
		t.Fatal("the rule was made with a wrong password")
	}
	again.Set(ui.ConfirmField, password)
	again.Set("name", "typed")
	admin.post(ui.PathPolicies, again).wantRedirect(ui.PathPolicies)
	if !c.hasRule("typed") {
		t.Error("the rule was not made with the password")
	}
	admin.post(ui.PathPolicies, c.rule("next")).wantRedirect(ui.PathPolicies) // a confirmation is valid for a while

	// Guesses of others do not use up the tries; guesses of this session are limited.
	c.exec(`UPDATE logins SET confirmed_at = now() - interval '1 hour'`)
	again.Set(ui.ConfirmField, "wrong")
	for range 11 {
		admin.post(ui.PathPolicies, again)
	}
	again.Set(ui.ConfirmField, password)
	admin.post(ui.PathPolicies, again).wantStatus(http.StatusTooManyRequests)

	// In Chinese, and separately for another browser of the same operator.
	other := c.signIn("admin-1")
	other.post(ui.PathPolicies, c.rule("other")).wantRedirect(ui.PathPolicies)
	admin.post(ui.PathPolicies+"?lang=zh-CN", c.rule("x")).wantText("h1", "请确认身份")
}

// Every act on the policy, keys, operators, tokens and nodes requires the password. Ending sessions does
// not, because it only makes things safer; neither does changing one's own password, which requires
// the old one.
func TestWhatAsksForThePassword(t *testing.T) {
	without := []string{"/settings/operators/{operator}/sessions/end", "/settings/operators/{operator}/sessions/{session}/end",
		"/settings/keys/restart", "/settings/plugins/{plugin}/reload", ui.PathRedactionDigest}
	asked := 0
	for _, r := range console.Routes() {
		guarded := r.Method == http.MethodPost && !slices.Contains(without, r.Pattern) &&
			(strings.HasPrefix(r.Pattern, ui.PathPolicies) || strings.HasPrefix(r.Pattern, ui.PathKeys) ||
				strings.HasPrefix(r.Pattern, ui.PathOperators) || strings.HasPrefix(r.Pattern, ui.PathSettings+"/tokens") ||
				strings.HasPrefix(r.Pattern, ui.PathPlugins) || strings.HasPrefix(r.Pattern, ui.PathEndpoints) ||
				strings.HasPrefix(r.Pattern, ui.PathMQTT5) || strings.HasPrefix(r.Pattern, ui.PathRedaction) ||
				strings.HasPrefix(r.Pattern, ui.PathCluster) || strings.HasSuffix(r.Pattern, "pin") ||
				strings.HasSuffix(r.Pattern, "/tools/{tool}/release") || strings.HasPrefix(r.Pattern, ui.PathTools) ||
				r.Pattern == "/devices/{device}/reissue" || r.Pattern == "/devices/{device}/revoke")
		if guarded != r.Confirm {
			t.Errorf("%s %s: asks for the password: %t, want %t", r.Method, r.Pattern, r.Confirm, guarded)
		}
		if r.Confirm {
			asked++
		}
	}
	if asked < 15 {
		t.Errorf("only %d acts ask for the password", asked)
	}
}
