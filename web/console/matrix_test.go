package console_test

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/console"
)

// forAdmins are the pages that only admins can read: they show sessions of others, secrets of
// receivers, and files of the server.
var forAdmins = map[string]bool{"/settings/operators/{operator}": true, "/settings/webhooks": true,
	"/settings/redaction": true, "/settings/log-streams": true, "/settings/log-streams/{stream}": true,
	"/settings/system": true, "/settings/plugins": true, "/settings/plugins/{plugin}": true, "/settings/endpoints": true, "/settings/endpoints/{endpoint}": true,
	"/settings/cluster/{node}/drain": true, "/styleguide": true}

// TestWhoMayDoWhat requests every route signed out and in each role. The routes come from the
// server's own table, so a new route is tested too.
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
		"{session}", uuid.NewString(), "{plugin}", "weather", "{endpoint}", "pc", "{node}", "edge-1",
		"{schedule}", uuid.NewString(), "{stream}", uuid.NewString(), "{undo}", uuid.NewString())
	viewers := map[fleet.Role]*browser{"": c.browser()}
	for _, role := range []fleet.Role{fleet.RoleViewer, fleet.RoleOperator, fleet.RoleAdmin} {
		viewers[role] = c.as(role)
	}
	changing := 0
	for _, route := range console.Routes() {
		at := path.Replace(route.Pattern)
		if at == "/sign-out" || at == "/events" {
			continue // ends the session, or never ends: has its own test
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

func checkAccess(t *testing.T, p *page, route console.Route, role fleet.Role) {
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

// reaches lists a second time who may request each route and what it concerns: a new route fails
// until it is listed here.
var reaches = map[string]string{
	"GET /":                                                      "viewer list",
	"GET /alerts":                                                "viewer fleet",
	"GET /alerts/{alert}":                                        "viewer fleet",
	"GET /api":                                                   "viewer own",
	"GET /approvals":                                             "viewer list",
	"GET /approvals/{approval}":                                  "viewer audience",
	"GET /audit":                                                 "viewer list",
	"GET /audit/export":                                          "viewer list",
	"GET /audit/record":                                          "viewer fleet",
	"GET /audit/record/checkpoint":                               "viewer fleet",
	"GET /audit/record/proof/{entry}":                            "viewer fleet",
	"POST /audit/record":                                         "admin fleet",
	"GET /bulk":                                                  "operator audience",
	"GET /calls":                                                 "viewer list",
	"GET /calls.csv":                                             "viewer list",
	"GET /calls/{call}":                                          "viewer record",
	"GET /calls/{call}/images/{n}":                               "viewer record",
	"GET /campaigns":                                             "viewer list",
	"GET /campaigns/new":                                         "operator audience",
	"GET /campaigns/{campaign}":                                  "viewer audience",
	"GET /campaigns/{campaign}/devices":                          "viewer audience",
	"GET /campaigns/{campaign}/devices/{device}":                 "viewer audience",
	"GET /campaigns/{campaign}/edit":                             "operator audience",
	"GET /claim":                                                 "viewer list",
	"GET /complete":                                              "viewer list",
	"GET /conversations":                                         "viewer list",
	"GET /conversations/{conversation}":                          "viewer record",
	"GET /core-dumps/{dump}/content":                             "operator record",
	"GET /devices":                                               "viewer list",
	"GET /devices.csv":                                           "viewer list",
	"GET /devices/{device}":                                      "viewer device",
	"GET /devices/{device}/activity":                             "viewer device",
	"GET /devices/{device}/configuration":                        "viewer device",
	"GET /devices/{device}/facts":                                "viewer device",
	"GET /devices/{device}/firmware":                             "viewer device",
	"GET /devices/{device}/health":                               "viewer device",
	"GET /devices/{device}/logs":                                 "viewer device",
	"GET /devices/{device}/logs.txt":                             "viewer device",
	"GET /devices/{device}/name":                                 "operator device",
	"GET /devices/{device}/replace":                              "operator device",
	"GET /devices/{device}/screen":                               "viewer device",
	"GET /devices/{device}/tools":                                "viewer device",
	"GET /devices/{device}/tools/{tool}":                         "viewer device",
	"GET /enrolment/rules":                                       "viewer fleet",
	"GET /enrolment/rules/{rule}":                                "viewer fleet",
	"POST /equivalent":                                           "viewer own",
	"GET /events":                                                "viewer list",
	"GET /fanouts":                                               "viewer list",
	"GET /fanouts/new":                                           "operator audience",
	"GET /fanouts/{fanout}":                                      "viewer audience",
	"GET /fanouts/{fanout}/answers.csv":                          "viewer audience",
	"GET /find":                                                  "viewer list",
	"GET /firmware":                                              "viewer shared",
	"GET /firmware/images":                                       "viewer shared",
	"GET /firmware/images/{image}":                               "viewer shared",
	"GET /firmware/releases/new":                                 "operator fleet",
	"GET /firmware/releases/{release}":                           "viewer shared",
	"GET /firmware/releases/{release}/edit":                      "operator fleet",
	"GET /flash":                                                 "operator fleet",
	"GET /flash/{image}/manifest.json":                           "operator fleet",
	"GET /flash/{image}/merged.bin":                              "operator fleet",
	"GET /flash/{image}/parts.zip":                               "operator fleet",
	"GET /flash/{image}/parts/{n}.bin":                           "operator fleet",
	"GET /help":                                                  "viewer own",
	"GET /import":                                                "operator audience",
	"GET /history":                                               "viewer list",
	"GET /dashboards":                                            "viewer list",
	"GET /changes":                                               "viewer list",
	"GET /places":                                                "viewer list",
	"GET /places/*":                                              "viewer list",
	"GET /schedules":                                             "viewer list",
	"GET /schedules/new":                                         "operator audience",
	"GET /schedules/{schedule}":                                  "viewer audience",
	"GET /schedules/{schedule}/edit":                             "operator audience",
	"POST /schedules":                                            "operator audience",
	"POST /schedules/{schedule}/delete":                          "operator audience",
	"POST /schedules/{schedule}/edit":                            "operator audience",
	"POST /schedules/{schedule}/pause":                           "operator audience",
	"POST /schedules/{schedule}/resume":                          "operator audience",
	"POST /schedules/{schedule}/run":                             "operator audience",
	"GET /settings":                                              "viewer own",
	"GET /settings/account":                                      "viewer own",
	"GET /settings/alerts":                                       "viewer fleet",
	"GET /settings/cluster":                                      "viewer fleet",
	"GET /settings/cluster/{node}/drain":                         "admin fleet",
	"GET /settings/endpoints":                                    "admin fleet",
	"GET /settings/endpoints/{endpoint}":                         "admin fleet",
	"GET /settings/keys":                                         "viewer fleet",
	"GET /settings/operators/{operator}":                         "admin fleet",
	"GET /settings/plugins":                                      "admin fleet",
	"GET /settings/plugins/{plugin}":                             "admin fleet",
	"GET /settings/policies":                                     "viewer fleet",
	"GET /settings/policies/{policy}":                            "viewer fleet",
	"GET /settings/serials":                                      "viewer fleet",
	"GET /settings/system":                                       "admin fleet",
	"GET /settings/voice":                                        "viewer fleet",
	"GET /settings/voice/{upstream}":                             "viewer fleet",
	"GET /settings/log-streams":                                  "admin fleet",
	"GET /settings/log-streams/{stream}":                         "admin fleet",
	"POST /settings/log-streams":                                 "admin fleet",
	"POST /settings/log-streams/{stream}":                        "admin fleet",
	"POST /settings/log-streams/{stream}/test":                   "admin fleet",
	"POST /settings/log-streams/{stream}/replay":                 "admin fleet",
	"POST /settings/log-streams/{stream}/enable":                 "admin fleet",
	"POST /settings/log-streams/{stream}/disable":                "admin fleet",
	"POST /settings/log-streams/{stream}/delete":                 "admin fleet",
	"GET /settings/redaction":                                    "admin fleet",
	"POST /settings/redaction":                                   "admin fleet",
	"POST /settings/redaction/digest":                            "admin fleet",
	"POST /settings/redaction/{rule}":                            "admin fleet",
	"POST /settings/redaction/{rule}/delete":                     "admin fleet",
	"GET /settings/webhooks":                                     "admin fleet",
	"GET /styleguide":                                            "admin own",
	"GET /sign-in":                                               "anyone own",
	"GET /pictures/compare":                                      "viewer list",
	"GET /pictures/{snapshot}":                                   "viewer record",
	"GET /fanouts/{fanout}/pictures":                             "viewer audience",
	"GET /snapshots/{snapshot}":                                  "viewer record",
	"POST /alerts/{alert}/acknowledge":                           "operator fleet",
	"POST /alerts/silences":                                      "operator part",
	"POST /alerts/silences/{silence}/end":                        "operator part",
	"POST /approvals/{approval}/approve":                         "operator audience",
	"POST /approvals/{approval}/deny":                            "operator audience",
	"POST /approvals/{approval}/withdraw":                        "operator audience",
	"POST /bulk":                                                 "operator audience",
	"POST /calls/{call}/interrupt":                               "operator record",
	"POST /calls/{call}/cancel":                                  "operator record",
	"POST /campaigns":                                            "operator audience",
	"POST /campaigns/{campaign}/abort":                           "operator audience",
	"POST /campaigns/{campaign}/advance":                         "operator audience",
	"POST /campaigns/{campaign}/approve":                         "operator audience",
	"POST /campaigns/{campaign}/deny":                            "operator audience",
	"POST /campaigns/{campaign}/devices/{device}/retry":          "operator audience",
	"POST /campaigns/{campaign}/discard":                         "operator audience",
	"POST /campaigns/{campaign}/edit":                            "operator audience",
	"POST /campaigns/{campaign}/pause":                           "operator audience",
	"POST /campaigns/{campaign}/pull-now":                        "operator audience",
	"POST /campaigns/{campaign}/resume":                          "operator audience",
	"POST /campaigns/{campaign}/retry":                           "operator audience",
	"POST /campaigns/{campaign}/rollback":                        "operator audience",
	"POST /campaigns/{campaign}/start":                           "operator audience",
	"POST /claim":                                                "operator record",
	"POST /claim/mqtt5":                                          "admin fleet",
	"POST /devices/{device}/reissue":                             "operator device",
	"POST /devices/{device}/revoke":                              "operator device",
	"POST /core-dumps/{dump}/delete":                             "operator record",
	"POST /devices/{device}/approve":                             "operator device",
	"POST /devices/{device}/config":                              "operator device",
	"POST /devices/{device}/config/read":                         "operator device",
	"POST /devices/{device}/core-dumps":                          "operator device",
	"POST /devices/{device}/edit":                                "operator device",
	"POST /devices/{device}/hold":                                "operator device",
	"POST /devices/{device}/logs/fetch":                          "operator device",
	"POST /devices/{device}/logs/follow":                         "operator device",
	"POST /devices/{device}/logs/level":                          "operator device",
	"POST /devices/{device}/logs/stop":                           "operator device",
	"POST /devices/{device}/quarantine":                          "operator device",
	"POST /devices/{device}/reject":                              "operator device",
	"POST /devices/{device}/release":                             "operator device",
	"POST /devices/{device}/replace":                             "admin device",
	"POST /devices/{device}/resolve-conflict":                    "operator device",
	"POST /devices/{device}/retire":                              "admin device",
	"GET /tools":                                                 "viewer list",
	"GET /tools/{tool}":                                          "viewer list",
	"POST /tools":                                                "admin fleet",
	"POST /tools/{tool}":                                         "admin fleet",
	"POST /devices/{device}/tools/{tool}":                        "operator device",
	"POST /devices/{device}/tools/{tool}/pin":                    "admin fleet",
	"POST /devices/{device}/tools/{tool}/release":                "admin fleet",
	"POST /devices/{device}/tools/{tool}/unpin":                  "admin fleet",
	"POST /enrolment/rules":                                      "admin fleet",
	"POST /enrolment/rules/{rule}/delete":                        "admin fleet",
	"POST /enrolment/rules/{rule}/disable":                       "admin fleet",
	"POST /enrolment/rules/{rule}/edit":                          "admin fleet",
	"POST /enrolment/rules/{rule}/enable":                        "admin fleet",
	"POST /enrolment/rules/{rule}/move":                          "admin fleet",
	"POST /fanouts":                                              "operator audience",
	"POST /fanouts/{fanout}/cancel":                              "operator audience",
	"POST /filters":                                              "operator fleet",
	"POST /filters/{filter}/delete":                              "operator fleet",
	"POST /filters/{filter}/rename":                              "operator fleet",
	"POST /firmware/images":                                      "operator fleet",
	"POST /firmware/images/confirm":                              "operator fleet",
	"POST /firmware/images/{image}/delete":                       "operator fleet",
	"POST /firmware/images/{image}/edit":                         "operator fleet",
	"POST /firmware/images/{image}/manifest":                     "operator fleet",
	"POST /firmware/images/{image}/revoke":                       "admin fleet",
	"POST /firmware/releases":                                    "operator fleet",
	"POST /firmware/releases/{release}/edit":                     "operator fleet",
	"POST /firmware/releases/{release}/revoke":                   "admin fleet",
	"POST /firmware/releases/{release}/state":                    "operator fleet",
	"POST /flash/build":                                          "operator fleet",
	"POST /flash/claim":                                          "operator fleet",
	"POST /flash/{image}/layout":                                 "operator fleet",
	"POST /import":                                               "operator audience",
	"POST /import/apply":                                         "operator audience",
	"POST /preferences":                                          "anyone own",
	"POST /undo/{undo}":                                          "operator own",
	"POST /settings/cluster/{node}/drain":                        "admin fleet",
	"POST /settings/cluster/{node}/drain/cancel":                 "admin fleet",
	"POST /settings/account/sessions/end":                        "viewer own",
	"POST /settings/account/sessions/{session}/end":              "viewer own",
	"POST /settings/alerts":                                      "admin fleet",
	"POST /settings/alerts/groups":                               "admin fleet",
	"POST /settings/alerts/mail":                                 "admin fleet",
	"POST /settings/alerts/mail/test":                            "admin fleet",
	"POST /settings/endpoints":                                   "admin fleet",
	"POST /settings/endpoints/{endpoint}/delete":                 "admin fleet",
	"POST /settings/endpoints/{endpoint}/disable":                "admin fleet",
	"POST /settings/endpoints/{endpoint}/edit":                   "admin fleet",
	"POST /settings/endpoints/{endpoint}/enable":                 "admin fleet",
	"POST /settings/endpoints/{endpoint}/token":                  "admin fleet",
	"POST /settings/endpoints/{endpoint}/token/revoke":           "admin fleet",
	"POST /settings/keys/abort":                                  "admin fleet",
	"POST /settings/keys/finish":                                 "admin fleet",
	"POST /settings/keys/restart":                                "admin fleet",
	"POST /settings/keys/start":                                  "admin fleet",
	"POST /settings/operators":                                   "admin fleet",
	"POST /settings/operators/{operator}/access":                 "admin fleet",
	"POST /settings/operators/{operator}/disable":                "admin fleet",
	"POST /settings/operators/{operator}/enable":                 "admin fleet",
	"POST /settings/operators/{operator}/password":               "admin fleet",
	"POST /settings/operators/{operator}/sessions/end":           "admin fleet",
	"POST /settings/operators/{operator}/sessions/{session}/end": "admin fleet",
	"POST /settings/password":                                    "viewer own",
	"POST /settings/plugins":                                     "admin fleet",
	"POST /settings/plugins/{plugin}/delete":                     "admin fleet",
	"POST /settings/plugins/{plugin}/disable":                    "admin fleet",
	"POST /settings/plugins/{plugin}/edit":                       "admin fleet",
	"POST /settings/plugins/{plugin}/enable":                     "admin fleet",
	"POST /settings/plugins/{plugin}/reload":                     "admin fleet",
	"POST /settings/policies":                                    "admin fleet",
	"POST /settings/policies/{policy}/delete":                    "admin fleet",
	"POST /settings/policies/{policy}/disable":                   "admin fleet",
	"POST /settings/policies/{policy}/edit":                      "admin fleet",
	"POST /settings/policies/{policy}/enable":                    "admin fleet",
	"POST /settings/policies/{policy}/move":                      "admin fleet",
	"POST /settings/serials":                                     "admin fleet",
	"POST /settings/serials/{serial}/delete":                     "admin fleet",
	"POST /settings/serials/{serial}/release":                    "admin fleet",
	"POST /settings/tokens":                                      "admin fleet",
	"POST /settings/tokens/{token}/revoke":                       "admin fleet",
	"POST /settings/voice":                                       "admin fleet",
	"POST /settings/voice/{upstream}/check":                      "admin fleet",
	"POST /settings/voice/{upstream}/delete":                     "admin fleet",
	"POST /settings/voice/{upstream}/disable":                    "admin fleet",
	"POST /settings/voice/{upstream}/edit":                       "admin fleet",
	"POST /settings/voice/{upstream}/enable":                     "admin fleet",
	"POST /settings/voice/{upstream}/move":                       "admin fleet",
	"POST /settings/webhooks":                                    "admin fleet",
	"POST /settings/webhooks/{webhook}":                          "admin fleet",
	"POST /settings/webhooks/{webhook}/delete":                   "admin fleet",
	"POST /settings/webhooks/{webhook}/disable":                  "admin fleet",
	"POST /settings/webhooks/{webhook}/enable":                   "admin fleet",
	"POST /settings/webhooks/{webhook}/test":                     "admin fleet",
	"POST /sign-in":                                              "anyone own",
	"POST /sign-out":                                             "anyone own",
}

func TestEachRouteIsListed(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range console.Routes() {
		name := r.Method + " " + r.Pattern
		seen[name] = true
		if got := fmt.Sprintf("%s %s", cmp.Or(string(r.Role), "anyone"), r.Reach); got != reaches[name] {
			t.Errorf("%q: %q, want %q", name, got, reaches[name])
		}
	}
	for name := range reaches {
		if !seen[name] {
			t.Errorf("%s is listed and no route", name)
		}
	}
}
