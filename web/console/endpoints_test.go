package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/endpoint"
	"fleetd/fleet/operator"
	"fleetd/web/console"
	"fleetd/web/ui"
)

// scriptedDials accepts no connection: tests set the states.
type scriptedDials struct {
	mu      sync.Mutex
	applied []endpoint.Endpoint
	status  map[string]endpoint.Status
}

func (d *scriptedDials) ApplyEndpoints(list []endpoint.Endpoint) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.applied = list
}

func (d *scriptedDials) EndpointStatus(name string) endpoint.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status[name]
}

func (d *scriptedDials) set(name string, st endpoint.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status[name] = st
}

// of returns the endpoint that accepts connections.
func (d *scriptedDials) of(name string) (endpoint.Endpoint, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.applied, func(e endpoint.Endpoint) bool { return e.Name == name })
	if i < 0 {
		return endpoint.Endpoint{}, false
	}
	return d.applied[i], true
}

func newEndpoints(t testing.TB, store endpoint.Store, dials *scriptedDials) *endpoint.Service {
	t.Helper()
	endpoints := endpoint.New(endpoint.Options{Store: store, Runner: dials})
	if err := endpoints.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return endpoints
}

func withEndpoints(t *testing.T) (*site, *scriptedDials, *endpoint.Service) {
	dials := &scriptedDials{status: map[string]endpoint.Status{}}
	var endpoints *endpoint.Service
	c := newConsole(t, func(o *console.Options) {
		endpoints = newEndpoints(t, o.Pictures.(endpoint.Store), dials)
		o.Endpoints = endpoints
	})
	return c, dials, endpoints
}

// create adds an endpoint as the system does, and returns the secret of its provider.
func create(t *testing.T, endpoints *endpoint.Service, name string) string {
	t.Helper()
	_, secret, err := endpoints.Create(t.Context(), fleet.Principal{Kind: fleet.KindSystem, Role: fleet.RoleAdmin}, name,
		endpoint.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func endpointForm(name string) url.Values {
	return url.Values{"name": {name}, "second_connection": {"refuse"}, "tools": {"get_*, set_it"}, "audience": {"model"},
		"offer_to_voice": {"1"}}
}

var secretPattern = regexp.MustCompile(`fe[pc]_[0-9a-f]{64}`)

// secretOf returns the one secret that a page shows.
func secretOf(t *testing.T, p *page) string {
	t.Helper()
	secret := secretPattern.FindString(p.text("#secret"))
	if secret == "" || p.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%s: secret %q, cache control %q: %s", p.what, secret, p.header.Get("Cache-Control"), p.text("#main"))
	}
	return secret
}

func TestEndpointPages(t *testing.T) {
	c, dials, endpoints := withEndpoints(t)
	admin := c.as(fleet.RoleAdmin)
	admin.get(ui.PathEndpoints).wantStatus(200).wantText("#endpoints", "becomes a device of the fleet").
		wantText("#endpoints", "Add one")
	secret := create(t, endpoints, "pc")
	create(t, endpoints, "board")
	at := time.Now().Add(-time.Hour)
	dials.set("pc", endpoint.Status{Connected: true, Since: at, Address: "192.0.2.9", ServerName: "<i>tools</i>",
		ServerVersion: "3.1", Protocol: "2025-11-25", Connections: 7, Replaced: 3, Refused: 2, Consumers: 5})
	dials.set("board", endpoint.Status{Connections: 1, EndedAt: at,
		Ended: fleet.Because("endpoint_broke", "detail", "<script>alert(1)</script>")})
	p := admin.get(ui.PathEndpoints).wantStatus(200)
	for _, text := range []string{"connected", "<i>tools</i> 3.1", "MCP 2025-11-25", "192.0.2.9", "7", "3 replaced",
		"2 refused", "5"} {
		p.wantText("#endpoint-pc", text)
	}
	p.wantText("#endpoint-board", "not connected").wantText("#endpoint-board", "<script>alert(1)</script>")
	if len(p.find("a[href=/devices/endpoint.pc]")) == 0 {
		t.Error("the list has no link to the device")
	}
	one := admin.get(ui.EndpointPath("board")).wantStatus(200).wantText("#endpoint-now", "the connection broke").
		wantText("#endpoint-tokens", "created by").wantText("#token-consumer", "There is no token")
	for _, bad := range []string{secret, "<script>alert", "<i>tools"} {
		if strings.Contains(p.body+one.body, bad) {
			t.Errorf("a page contains %s", bad)
		}
	}
	only := admin.get(ui.PathEndpoints+"?state=away").wantText("#endpoint-board", "not connected")
	if len(only.find("#endpoint-pc")) > 0 {
		t.Error("the filter shows an endpoint that is connected")
	}
	admin.get(ui.PathEndpoints+"?state=disabled").wantText("#endpoints", "No endpoint is in this state")
	admin.get(ui.EndpointPath("nothing")).wantStatus(http.StatusNotFound)
	admin.get(ui.EndpointPath("pc", "token")).wantRedirect(ui.EndpointPath("pc"))
	admin.get(ui.EndpointPath("board")+"?lang=zh-CN").wantText("#endpoint-now", "连接中断")
}

// Pages of the list follow each other by name.
func TestEndpointsArePaged(t *testing.T) {
	c, _, endpoints := withEndpoints(t)
	for i := range 27 {
		create(t, endpoints, fmt.Sprintf("e%02d", i))
	}
	admin := c.as(fleet.RoleAdmin)
	first := admin.get(ui.PathEndpoints+"?limit=25").wantText("#endpoint-e24", "e24")
	next := first.find("a[rel=next]")
	if len(next) != 1 || len(first.find("#endpoint-e25")) > 0 {
		t.Fatalf("%d links to the next page", len(next))
	}
	second := admin.get(attribute(next[0], "href")).wantText("#endpoint-e25", "e25").wantText("#endpoint-e26", "e26")
	if len(second.find("#endpoint-e24"))+len(second.find("a[rel=next]")) > 0 {
		t.Error("the second page shows the first page again, or has a next one")
	}
}

func TestEndpointForm(t *testing.T) {
	c, dials, endpoints := withEndpoints(t)
	admin := c.as(fleet.RoleAdmin)
	for field, value := range map[string]string{"name": "No Name", "second_connection": "both", "tools": "a*b",
		"audience": "everybody"} {
		f := endpointForm("pc")
		f.Set(field, value)
		p := admin.post(ui.PathEndpoints, f).wantStatus(http.StatusUnprocessableEntity)
		if len(p.find("p[class=problem]")) != 1 || len(p.find("#secret")) > 0 {
			t.Errorf("%s=%q: want one error beside a field, and no secret: %s", field, value, p.text("#add"))
		}
	}
	if len(dials.applied) > 0 {
		t.Fatalf("%v accept connections after refused forms", dials.applied)
	}
	p := admin.post(ui.PathEndpoints, endpointForm("pc")).wantStatus(200).
		wantText("#secret", "ws://fleet.test/mcp_endpoint/mcp/?token=fep_")
	secret := secretOf(t, p)
	if e, err := endpoints.Authenticate(endpoint.Provider, secret); err != nil || e.Second != endpoint.Refuse ||
		!e.OfferToVoice || !slices.Equal(e.Tools, []string{"get_*", "set_it"}) || e.Audience != fleet.AudienceModel {
		t.Errorf("added %+v, %v", e, err)
	}
	p = admin.post(ui.PathEndpoints, endpointForm("pc")).wantStatus(http.StatusUnprocessableEntity) // as a reload does
	if strings.Contains(p.body, "fep_") || strings.Contains(admin.get(ui.EndpointPath("pc")).body, secret) {
		t.Error("the secret is shown again")
	}
	if e, err := endpoints.Authenticate(endpoint.Provider, secret); err != nil || e.Version != 1 {
		t.Errorf("after the form was sent again: %+v, %v", e, err)
	}

	edit := url.Values{"version": {"1"}, "audience": {"user"}, "second_connection": {"replace"}}
	admin.post(ui.EndpointPath("pc", "edit"), edit).wantRedirect(ui.EndpointPath("pc"))
	if e, _ := dials.of("pc"); e.Audience != fleet.AudienceUser || e.OfferToVoice || len(e.Tools) > 0 ||
		e.Second != endpoint.Replace {
		t.Errorf("edited: %+v", e)
	}
	stale := url.Values{"version": {"1"}, "audience": {"model"}}
	admin.post(ui.EndpointPath("pc", "edit"), stale).wantStatus(http.StatusUnprocessableEntity).
		wantText("#edit", "changed in the meantime")
	admin.post(ui.EndpointPath("pc", "disable"), url.Values{"version": {"1"}}).wantRedirect(ui.EndpointPath("pc"))
	if e, _ := dials.of("pc"); e.Disabled || e.Audience != fleet.AudienceUser || e.Version != 2 {
		t.Errorf("stale forms changed %+v", e)
	}
	admin.post(ui.EndpointPath("pc", "edit"), url.Values{"version": {"2"}}).wantRedirect(ui.EndpointPath("pc"))
	if e, _ := dials.of("pc"); e.Audience != fleet.AudienceUser {
		t.Error("a form without an audience let models call the tools")
	}
	admin.post(ui.EndpointPath("pc", "disable"), url.Values{"version": {"3"}}).wantRedirect(ui.EndpointPath("pc"))
	if _, err := endpoints.Authenticate(endpoint.Provider, secret); err != endpoint.ErrDisabled {
		t.Errorf("disabled: %v", err)
	}
	admin.post(ui.EndpointPath("pc", "enable"), url.Values{"version": {"4"}}).wantRedirect(ui.EndpointPath("pc"))
	admin.post(ui.EndpointPath("pc", "delete"), url.Values{"confirm": {"p"}}).wantStatus(422)
	if _, there := dials.of("pc"); !there {
		t.Error("deleted without its name")
	}
	admin.post(ui.EndpointPath("pc", "delete"), url.Values{"confirm": {"pc"}}).wantRedirect(ui.PathEndpoints)
	if _, err := endpoints.Authenticate(endpoint.Provider, secret); err != endpoint.ErrToken {
		t.Errorf("the token of a deleted endpoint: %v", err)
	}
}

// Tokens of both kinds are shown once, replaced and revoked; none is in a log or an address.
func TestEndpointTokens(t *testing.T) {
	c, _, endpoints := withEndpoints(t)
	admin := c.as(fleet.RoleAdmin)
	first := create(t, endpoints, "pc")
	works := func(kind endpoint.TokenKind, secret string, want error) {
		t.Helper()
		if _, err := endpoints.Authenticate(kind, secret); err != want {
			t.Errorf("token of the %s: %v, want %v", kind, err, want)
		}
	}
	issue := func(kind, version string) *page {
		return admin.post(ui.EndpointPath("pc", "token"), url.Values{"kind": {kind}, "version": {version}})
	}
	second := secretOf(t, issue("provider", "1").wantStatus(200).wantText("#token-provider", "admin-1"))
	works(endpoint.Provider, first, endpoint.ErrToken)
	works(endpoint.Provider, second, nil)
	issue("provider", "1").wantRedirect(ui.EndpointPath("pc")) // a reload makes no other token
	works(endpoint.Provider, second, nil)
	p := issue("consumer", "2").wantStatus(200).wantText("#secret", "ws://fleet.test/mcp_endpoint/call/?token=fec_").
		wantText("#secret", "ws://fleet.test/mcp_endpoint/mcp/?token=fec_")
	consumer := secretOf(t, p)
	works(endpoint.Consumer, consumer, nil)
	works(endpoint.Provider, consumer, endpoint.ErrToken)
	issue("both", "3").wantRedirect(ui.EndpointPath("pc"))
	admin.post(ui.EndpointPath("pc", "token", "revoke"), url.Values{"kind": {"consumer"}, "version": {"2"}}).
		wantRedirect(ui.EndpointPath("pc"))
	works(endpoint.Consumer, consumer, nil)
	admin.post(ui.EndpointPath("pc", "token", "revoke"), url.Values{"kind": {"consumer"}, "version": {"3"}}).
		wantRedirect(ui.EndpointPath("pc"))
	works(endpoint.Consumer, consumer, endpoint.ErrToken)
	works(endpoint.Provider, second, nil)
	shown := admin.get(ui.EndpointPath("pc")).body + admin.get(ui.PathEndpoints).body + admin.get("/audit").body +
		c.logged.String()
	if found := secretPattern.FindString(shown); found != "" {
		t.Errorf("a page or the log contains %s", found)
	}
	admin.post(ui.EndpointPath("none", "token"), url.Values{"kind": {"provider"}}).wantStatus(http.StatusNotFound)

	// Without a recent password, nothing is issued.
	c.exec(`UPDATE logins SET confirmed_at = now() - interval '1 hour'`)
	if p := issue("provider", "4").wantStatus(http.StatusForbidden); secretPattern.MatchString(p.body) {
		t.Error("a token is shown without the password")
	}
	works(endpoint.Provider, second, nil)
}

// Only an administrator of the whole fleet sees or changes endpoints.
func TestEndpointRights(t *testing.T) {
	c, dials, endpoints := withEndpoints(t)
	c.operator("other", fleet.RoleAdmin)
	scoped := c.operator("scoped", fleet.RoleAdmin)
	if err := c.operators.SetAccess(t.Context(), fleet.Principal{Kind: fleet.KindSystem, Role: fleet.RoleAdmin}, scoped.ID,
		operator.Access{Role: fleet.RoleAdmin, Scope: "tag:lab"}); err != nil {
		t.Fatal(err)
	}
	secret := create(t, endpoints, "pc")
	form := endpointForm("other")
	form.Set("confirm", "pc")
	form.Set("kind", "provider")
	for name, b := range map[string]*browser{"viewer": c.as(fleet.RoleViewer), "operator": c.as(fleet.RoleOperator),
		"scoped": c.signIn("scoped")} {
		for _, path := range []string{ui.PathEndpoints, ui.EndpointPath("pc"), ui.EventsURL(ui.ViewEndpoints, nil),
			ui.EventsURL(ui.ViewEndpoint, url.Values{"name": {"pc"}})} {
			if p := b.get(path).wantStatus(http.StatusForbidden); strings.Contains(p.body, "endpoint.pc") {
				t.Errorf("%s sees %s", name, path)
			}
		}
		for _, path := range []string{ui.PathEndpoints, ui.EndpointPath("pc", "edit"), ui.EndpointPath("pc", "enable"),
			ui.EndpointPath("pc", "disable"), ui.EndpointPath("pc", "token"), ui.EndpointPath("pc", "token", "revoke"),
			ui.EndpointPath("pc", "delete")} {
			if p := b.post(path, form).wantStatus(http.StatusForbidden); secretPattern.MatchString(p.body) {
				t.Errorf("%s gets a token from %s", name, path)
			}
		}
		if strings.Contains(b.get("/settings").body, `href="`+ui.PathEndpoints+`"`) {
			t.Errorf("%s has a link to endpoints", name)
		}
	}
	e, err := endpoints.Authenticate(endpoint.Provider, secret)
	if err != nil || e.Version != 1 || len(dials.applied) != 1 {
		t.Errorf("changed: %+v, %v; %d endpoints", e, err, len(dials.applied))
	}
}

// The pages follow the connections; a row that no longer matches the filter stays.
func TestEndpointsLive(t *testing.T) {
	c, dials, endpoints := withEndpoints(t)
	create(t, endpoints, "pc")
	admin := c.as(fleet.RoleAdmin)
	list := admin.stream(ui.EventsURL(ui.ViewEndpoints, url.Values{"state": {"away"}}))
	one := admin.stream(ui.EventsURL(ui.ViewEndpoint, url.Values{"name": {"pc"}}))
	list.want("patch", `id="endpoint-pc"`, "not connected")
	one.want("patch", `id="endpoint-now"`, "not connected")
	dials.set("pc", endpoint.Status{Connected: true, Since: time.Now(), ServerName: "tools", Protocol: "2025-11-25"})
	list.want("patch", `id="endpoint-pc"`, "is-connected", "tools")
	one.want("patch", `id="endpoint-now"`, "is-connected")
	create(t, endpoints, "board")
	list.want("new", "1")
	if err := endpoints.Delete(t.Context(), fleet.Principal{Kind: fleet.KindSystem, Role: fleet.RoleAdmin},
		"pc"); err != nil {
		t.Fatal(err)
	}
	list.want("patch", `id="endpoint-pc"`, "is-deleted")
	one.want("patch", `id="endpoint-now"`, "is-deleted")
}

// The page of an endpoint's device links to the settings, for administrators.
func TestEndpointDevicePage(t *testing.T) {
	c, _, endpoints := withEndpoints(t)
	create(t, endpoints, "pc")
	id := endpoint.DeviceOf("pc")
	if err := c.store.SaveProgram(t.Context(), id, fleet.DeviceEndpoint, "3.1", time.Now()); err != nil {
		t.Fatal(err)
	}
	c.as(fleet.RoleAdmin).get(ui.DevicePath(id)).wantText("#device-brief", "Settings of the endpoint")
	if strings.Contains(c.as(fleet.RoleOperator).get(ui.DevicePath(id)).body, ui.EndpointPath("pc")) {
		t.Error("an operator has a link to the settings of the endpoint")
	}
}
