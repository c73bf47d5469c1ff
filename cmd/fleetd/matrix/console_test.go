package matrix

import (
	"cmp"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// byPage is the method of actions that the console offers to operators.
const byPage = "PAGE"

// operators returns people of each role: everywhere, in a scope, and in a scope
// with a lower role on the rest.
func operators() (all []*principal) {
	for _, role := range []fleet.Role{viewer, asOperator, admin} {
		all = append(all, &principal{kind: fleet.KindOperator, role: role, tools: allTools},
			&principal{kind: fleet.KindOperator, role: role, scoped: true, tools: allTools},
			&principal{kind: fleet.KindOperator, role: role, scoped: true, rest: viewer, tools: allTools})
	}
	return all
}

// signIn adds the operator and signs them in: the session is the secret.
func (w *world) signIn(p *principal) {
	w.t.Helper()
	access := operator.Access{Role: p.role, Rest: p.rest}
	if p.scoped {
		access.Scope = "tag:" + scopeTag
	}
	name := w.name(inside)
	o, err := w.srv.Operators.Create(w.t.Context(), w.people[0],
		operator.Request{Name: name, Password: goodPassword, Access: access})
	if err != nil {
		w.t.Fatal(err)
	}
	a := w.page("", "/sign-in", url.Values{"name": {name}, "password": {goodPassword}})
	for _, c := range (&http.Response{Header: a.header}).Cookies() {
		p.secret += c.Name + "=" + c.Value + "; "
	}
	if a.status != 200 || p.secret == "" {
		w.t.Fatalf("%s does not sign in: %d %s", p, a.status, a.text)
	}
	p.id = o.ID.String()
	w.actors[p.id] = p
}

// page posts a form to the console. The redirect after an action has the status
// 200, and the redirect to the sign-in page 401.
func (w *world) page(cookies, path string, form url.Values) answer {
	w.t.Helper()
	req, err := http.NewRequest("POST", "http://"+w.http+path, strings.NewReader(form.Encode()))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Cookie", cookies)
	a := w.send(req)
	if a.status == http.StatusSeeOther {
		a.status = 200
		if strings.HasPrefix(a.header.Get("Location"), "/sign-in") {
			a.status = 401
		}
	}
	return a
}

// pageRows are the console's actions on devices. Each has the row of the REST
// operation that does the same, which states who may do it.
var pageRows = map[string]struct {
	path, operation string
	form            func(r request) url.Values
	undo            func(w *world, s side, r request)
}{
	"page edit": {path: "/devices/{id}/edit", operation: "update-device", form: func(r request) url.Values {
		notes, _ := r.body.(obj)["notes"].(string)
		return url.Values{"notes": {notes}}
	}},
	"page hold": {path: "/devices/{id}/hold", operation: "hold-device",
		form: func(request) url.Values { return url.Values{"reason": {"hands in machine"}, "hours": {"0"}} }},
	"page release": {path: "/devices/{id}/release", operation: "release-device"},
	"page approve": {path: "/devices/{id}/approve", operation: "approve-device",
		form: func(r request) url.Values { return url.Values{"code": {r.args["code"]}} }},
	"page reject": {path: "/devices/{id}/reject", operation: "reject-device"},
	"page retire": {path: "/devices/{id}/retire", operation: "retire-device",
		form: func(r request) url.Values { return url.Values{"confirm": {r.args["id"]}} }},
	"page call": {path: "/devices/{id}/tools/self.get_device_status", operation: "make-call", undo: (*world).callsEnd},
	"page deny call": {path: "/approvals/{id}/deny", operation: "deny-call",
		form: func(request) url.Values { return url.Values{"reason": {"too bright"}} }},
	"page approve call":   {path: "/approvals/{id}/approve", operation: "approve-call"},
	"page cancel call":    {path: "/calls/{id}/cancel", operation: "cancel-call"},
	"page cancel fan-out": {path: "/fanouts/{id}/cancel", operation: "cancel-fanout"},
	"page pause":          {path: "/campaigns/{id}/pause", operation: "pause-campaign"},
}

func init() {
	for name, page := range pageRows {
		r := rows[page.operation]
		ask := r.ask
		r.ask = func(w *world, p *principal, s side) request {
			q := ask(w, p, s)
			form := url.Values{}
			if page.form != nil {
				form = page.form(q)
			}
			return request{args: q.args, body: form}
		}
		if page.undo != nil {
			r.undo = page.undo
		}
		rows[name] = r
	}
}

// pagesOf adds the console's actions.
func (w *world) pagesOf(all map[string]operation) {
	for name := range maps.Keys(pageRows) {
		all[name] = operation{name, byPage, pageRows[name].path}
	}
}

// callsEnd waits until no call of "page call" is running; others wait for an
// approval.
func (w *world) callsEnd(s side, _ request) {
	w.t.Helper()
	w.eventually("the call to end", func() bool {
		var open int
		if err := w.db.QueryRow(w.t.Context(), `SELECT count(*) FROM calls WHERE finished_at IS NULL AND device_id = $1 AND tool = $2`,
			string(w.live[s]), "self.get_device_status").Scan(&open); err != nil {
			w.t.Fatal(err)
		}
		return open == 0
	})
}

func formOf(r request) url.Values {
	form, _ := r.body.(url.Values)
	return form
}

// pagePath fills in the path of an action.
func pagePath(op operation, r request) string {
	return strings.ReplaceAll(op.path, "{id}", cmp.Or(r.args["id"], "a085e3112233"))
}
