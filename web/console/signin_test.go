package console_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/alexedwards/argon2id"

	"fleetd/fleet"
	"fleetd/web/console"
	"fleetd/web/request"
)

func TestSignIn(t *testing.T) {
	c := newConsole(t)
	c.operator("ada", fleet.RoleOperator)
	b := c.browser()
	b.get("/sign-in?next=/calls").wantStatus(200)
	b.post("/sign-in", url.Values{"name": {"ada"}, "password": {"wrong password"}}).wantStatus(422).wantText("form",
		"Wrong name or password.")
	b.post("/sign-in", url.Values{"name": {"nobody"}, "password": {password}}).wantStatus(422)
	b.post("/sign-in", url.Values{"name": {"ADA"}, "password": {password}, "next": {"/calls?tool=x"}}).wantRedirect(
		"/calls?tool=x")
	b.get("/calls").wantStatus(200).wantText("summary", "ada")
	b.get("/sign-in?next=/calls").wantRedirect("/calls")
	if strings.Contains(c.logged.String(), password) {
		t.Error("the log has the password")
	}
	b.post("/sign-out", nil).wantRedirect("/sign-in")
	b.get("/calls").wantRedirect("/sign-in")
}

func TestSessionIsRenewedAtSignIn(t *testing.T) {
	c := newConsole(t)
	c.operator("ada", fleet.RoleViewer)
	b := c.browser()
	sessionOf := func(p *page) *http.Cookie {
		for _, k := range (&http.Response{Header: p.header}).Cookies() {
			if k.Name == "fleetd_session" {
				return k
			}
		}
		return nil
	}
	first := sessionOf(b.post("/sign-in", url.Values{"name": {"ada"}, "password": {password}}))
	second := sessionOf(b.post("/sign-in", url.Values{"name": {"ada"}, "password": {password}}))
	if first == nil || second == nil || first.Value == second.Value {
		t.Fatalf("session cookies %v and %v, want two different ones", first, second)
	}
	if !second.HttpOnly || second.SameSite != http.SameSiteLaxMode || second.Path != "/" {
		t.Errorf("cookie %v, want HttpOnly, SameSite=Lax, for all paths", second)
	}
	stale := c.browser()
	stale.headers["Cookie"] = first.Name + "=" + first.Value
	stale.get("/").wantRedirect("/sign-in")
}

func TestSecureCookieBehindHTTPS(t *testing.T) {
	c := newConsole(t, func(o *console.Options) { o.PublicURL = "https://fleet.test" })
	c.operator("ada", fleet.RoleViewer)
	p := c.browser().post("/sign-in", url.Values{"name": {"ada"}, "password": {password}}).wantStatus(303)
	for _, name := range []string{"__Host-fleetd_session=", "__Host-fleetd_browser="} {
		if !slices.ContainsFunc(p.header["Set-Cookie"], func(got string) bool {
			return strings.HasPrefix(got, name) && strings.Contains(got, "; Secure")
		}) {
			t.Errorf("Set-Cookie: %q, want %s with Secure", p.header["Set-Cookie"], name)
		}
	}
}

func TestDisabledOperatorIsCutOffAtOnce(t *testing.T) {
	c := newConsole(t)
	admin := c.as(fleet.RoleAdmin)
	ada := c.operator("ada", fleet.RoleOperator)
	b := c.signIn("ada")
	b.get("/").wantStatus(200)
	live := b.stream("/events?view=overview")
	admin.post("/settings/operators/"+ada.ID.String()+"/disable", nil).wantRedirect("/settings/operators/" + ada.ID.String())
	live.wantEnd()
	b.get("/").wantRedirect("/sign-in")
	b.post("/sign-in", url.Values{"name": {"ada"}, "password": {password}}).wantStatus(422)
	admin.post("/settings/operators/"+ada.ID.String()+"/enable", nil).wantRedirect("/settings/operators/" + ada.ID.String())
	b.post("/sign-in", url.Values{"name": {"ada"}, "password": {password}}).wantRedirect("/")
}

func TestNewPasswordEndsOtherSessions(t *testing.T) {
	c := newConsole(t)
	c.operator("ada", fleet.RoleViewer)
	here, there := c.signIn("ada"), c.signIn("ada")
	here.post("/settings/password", url.Values{"old": {"not the old one"}, "new": {"tin roof gravel"}}).wantStatus(422)
	there.get("/").wantStatus(200)
	here.post("/settings/password", url.Values{"old": {password}, "new": {"short"}}).wantStatus(422)
	here.post("/settings/password", url.Values{"old": {password}, "new": {"tin roof gravel"}}).wantRedirect("/settings/account")
	here.get("/settings/account").wantStatus(200).wantText("#flash", "changed")
	there.get("/").wantRedirect("/sign-in")
}

// A weak password is refused wherever it is set; an old one remains valid.
func TestWeakPasswordsAreRefused(t *testing.T) {
	c := newConsole(t)
	admin := c.as(fleet.RoleAdmin)
	grace := c.operator("grace", fleet.RoleViewer)
	old, err := argon2id.CreateHash("password123", argon2id.DefaultParams)
	if err == nil {
		by := fleet.Principal{Kind: fleet.KindSystem, Role: fleet.RoleAdmin}
		err = c.store.SetOperatorPassword(t.Context(), by, grace.ID, old)
	}
	if err != nil {
		t.Fatal(err)
	}
	b := c.browser()
	signIn := url.Values{"name": {"grace"}, "password": {"password123"}}
	b.post("/sign-in", signIn).wantRedirect("/")
	for weak, text := range map[string]string{"password1234": "attackers try first", "aaaaaaaaaaaa": "repeats",
		"grace-Tz!k9-w2": "name"} {
		b.post("/settings/password", url.Values{"old": {"password123"}, "new": {weak}}).wantStatus(422).
			wantText("#main", text)
		admin.post("/settings/operators/"+grace.ID.String()+"/password", url.Values{"password": {weak}}).wantStatus(422).
			wantText("#main", text)
		admin.post("/settings/operators", url.Values{"name": {"grace2"}, "role": {"viewer"},
			"password": {strings.ReplaceAll(weak, "grace", "grace2")}}).wantStatus(422).wantText("#main", text)
	}
	c.browser().post("/sign-in", signIn).wantRedirect("/")
	if _, err := c.store.OperatorByName(t.Context(), "grace2"); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("an operator with a weak password was made: %v", err)
	}
}

func TestSignInIsRateLimited(t *testing.T) {
	t.Run("by name", func(t *testing.T) {
		c := newConsole(t, stopClock().use)
		b := c.browser()
		limited := false
		for i := range 12 {
			b.headers["X-Forwarded-For"] = "192.0.2." + string(rune('1'+i%9)) // loopback is trusted like a proxy
			p := b.post("/sign-in", url.Values{"name": {"ada"}, "password": {"wrong password"}})
			limited = limited || p.status == http.StatusTooManyRequests
		}
		if !limited {
			t.Error("12 tries for one name from many places were not slowed down")
		}
	})
	t.Run("by address", func(t *testing.T) {
		c := newConsole(t, stopClock().use)
		c.operator("ada", fleet.RoleViewer)
		b := c.browser()
		limited := 0
		for i := range 25 {
			if b.post("/sign-in", url.Values{"name": {"name" + string(rune('a'+i))},
				"password": {"x"}}).status == http.StatusTooManyRequests {
				limited++
			}
		}
		if limited == 0 {
			t.Error("25 names from one address were not slowed down")
		}
		b.post("/sign-in", url.Values{"name": {"ada"}, "password": {password}}).wantStatus(429).wantText("form", "Too many")
		b.headers["X-Forwarded-For"] = "198.51.100.9"
		b.post("/sign-in", url.Values{"name": {"ada"}, "password": {password}}).wantRedirect("/")
	})
}

func TestLocalPath(t *testing.T) {
	tests := []struct{ next, want string }{
		{"/devices?q=tag:lab", "/devices?q=tag:lab"},
		{"", "/"},
		{"//evil.test", "/"},
		{"/\\evil.test", "/"},
		{"https://evil.test/", "/"},
		{"javascript:alert(1)", "/"},
		{"/%2f/evil.test", "/"},
		{"/a\r\nSet-Cookie: x", "/"},
		{"devices", "/"},
		{"/sign-in?next=/sign-in", "/"},
		{"/sign-out", "/"},
	}
	for _, tt := range tests {
		if got := console.LocalPath(tt.next); got != tt.want {
			t.Errorf("localPath(%q) = %q, want %q", tt.next, got, tt.want)
		}
	}
}

func TestOtherSitesCannotAct(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	b := c.as(fleet.RoleAdmin)
	for name, headers := range map[string]map[string]string{
		"cross-site":         {"Sec-Fetch-Site": "cross-site"},
		"same-site":          {"Sec-Fetch-Site": "same-site"},
		"old browser":        {"Origin": "https://evil.test"},
		"sandboxed document": {"Origin": "null"},
	} {
		b.headers = headers
		b.post("/devices/a085e3112233/hold", url.Values{"reason": {"x"}, "hours": {"1"}}).wantStatus(403)
		if d, err := c.devices.Device(t.Context(), "a085e3112233"); err != nil || d.Hold != nil {
			t.Fatalf("%s: the device is held by another site's page: %v, %v", name, d.Hold, err)
		}
	}
	b.headers = map[string]string{"Origin": "http://fleet.test"} // behind a proxy that changes the Host
	b.post("/devices/a085e3112233/hold", url.Values{"reason": {"x"}, "hours": {"1"}}).wantRedirect("/devices/a085e3112233")
	b.headers = map[string]string{"Sec-Fetch-Site": "same-origin"}
	b.post("/devices/a085e3112233/release", nil).wantRedirect("/devices/a085e3112233")
}

func TestSecurityHeaders(t *testing.T) {
	c := newConsole(t)
	for _, path := range []string{"/sign-in", "/nope", "/static/nope.css"} {
		h := c.browser().get(path).header
		if csp := h.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") || strings.Contains(csp,
			"unsafe") {
			t.Errorf("%s: policy %q", path, csp)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("X-Frame-Options") != "DENY" {
			t.Errorf("%s: headers %v", path, h)
		}
	}
}

func TestLogHasNoSecrets(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleViewer)
	b.get("/devices?q=hidden-word").wantStatus(200)
	b.get("/d/one-time-secret/preview.jpg").wantStatus(404)
	b.post("/u/one-time-secret", nil).wantStatus(404)
	log := c.logged.String()
	for _, secret := range []string{"hidden-word", "one-time-secret"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log has %q", secret)
		}
	}
	if !strings.Contains(log, "/d/…/preview.jpg") || !strings.Contains(log, "/devices") {
		t.Error("the log does not have the requests")
	}
	if got := request.Redact("/u/x"); got != "/u/…" {
		t.Errorf("redacted to %q", got)
	}
}

// A device that uses the wrong method gets an error: a redirect to the sign-in would show its
// secret address to the next person who signs in.
func TestDevicesAreNotAskedToSignIn(t *testing.T) {
	c := newConsole(t)
	b := c.browser()
	b.get("/u/one-time-secret").wantStatus(http.StatusMethodNotAllowed)
	b.do(http.MethodPut, "/devices", "", nil).wantRedirect("/sign-in")
}

// Programs get JSON for unknown addresses: an OAuth client follows a redirect to the sign-in, and
// fails on its HTML. Browsers are redirected to the sign-in as before.
func TestUnknownAddresses(t *testing.T) {
	c := newConsole(t)
	const page = "text/html,application/xhtml+xml,*/*;q=0.8"
	for _, tt := range []struct {
		method, path, accept, code string // no code: the sign-in
	}{
		{"GET", "/.well-known/oauth-authorization-server", "*/*", "no_authorization_server"},
		{"GET", "/.well-known/oauth-authorization-server/mcp", "application/json", "no_authorization_server"},
		{"GET", "/.well-known/openid-configuration", page, "no_authorization_server"},
		{"GET", "/.well-known/security.txt", page, "no_address"},
		{"POST", "/register", "application/json", "no_authorization_server"},
		{"POST", "/token", "*/*", "no_authorization_server"},
		{"GET", "/authorize?response_type=code", page, "no_authorization_server"},
		{"GET", "/robots.txt", "*/*", "no_address"},
		{"GET", "/no/such/page", "", "no_address"},
		{"GET", "/u/one-time-secret/x", "*/*", "no_address"},
		{"GET", "/no/such/page", page, ""},
	} {
		b := c.browser()
		b.headers["Accept"] = tt.accept
		p := b.do(tt.method, tt.path, "", nil)
		if tt.code == "" {
			p.wantRedirect("/sign-in")
			continue
		}
		var body struct {
			Status       int
			Code, Detail string
			Error        string
			Description  string `json:"error_description"`
		}
		if err := json.Unmarshal([]byte(p.wantStatus(404).body), &body); err != nil || body.Status != 404 ||
			body.Code != tt.code || body.Detail == "" || strings.Contains(p.body, "secret") ||
			p.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: %v, %s", tt.method, tt.path, err, p.body)
		}
		if oauth := tt.code == "no_authorization_server"; oauth != (body.Error == "invalid_request") ||
			oauth != strings.Contains(body.Description, "token create") {
			t.Errorf("%s %s: %s", tt.method, tt.path, p.body)
		}
	}
}

func TestPagesAreCompressed(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleViewer)
	b.headers["Accept-Encoding"] = "gzip"
	if got := b.get("/help").wantStatus(200).header.Get("Content-Encoding"); got != "gzip" {
		t.Errorf("encoding %q", got)
	}
	if p := b.do(http.MethodHead, "/help", "", nil).wantStatus(200); p.body != "" {
		t.Error("HEAD has a body")
	}
}

func TestPreferences(t *testing.T) {
	c := newConsole(t)
	ada := c.operator("ada", fleet.RoleViewer)
	b := c.browser()
	b.headers["Accept-Language"] = "zh-CN,zh;q=0.9"
	b.get("/sign-in").wantText("h1", "登录")
	b.get("/sign-in?lang=en").wantText("h1", "Sign in")
	b.get("/sign-in").wantText("h1", "Sign in")
	b.post("/sign-in", url.Values{"name": {"ada"}, "password": {password}}).wantRedirect("/")
	b.post("/preferences", url.Values{"lang": {"zh-CN"}, "theme": {"dark"}, "next": {"/devices?q=x"}}).wantRedirect(
		"/devices?q=x")
	p := b.get("/devices").wantText("h1", "设备")
	if got := attribute(p.find("html")[0], "data-theme"); got != "dark" {
		t.Errorf("theme %q, want dark", got)
	}
	if o, err := c.store.Operator(t.Context(), ada.ID); err != nil || o.Locale != "zh-CN" {
		t.Errorf("operator's language %q, %v", o.Locale, err)
	}
	c.signIn("ada").get("/devices").wantText("h1", "设备") // another browser, without a cookie
	b.post("/preferences", url.Values{"lang": {"xx"}, "theme": {"<script>"}, "next": {"//evil.test"}}).wantRedirect("/")
	b.headers["Cookie"] = "fleetd_zone=Asia%2FShanghai"
	b.get("/devices").wantText("footer", "Asia/Shanghai")
	b.headers["Cookie"] = "fleetd_zone=..%2f..%2fetc%2fpasswd"
	b.get("/devices").wantText("footer", "UTC")
}
