package matrix

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/operator"
)

// An asker requests work that waits, and then loses the right to it.
type asker struct {
	name   string
	actor  fleet.Principal
	secret string // of a token; "" for an operator
	strike func() // revokes the right
}

// askers returns principals of both kinds that people give rights to, one for
// each way in which a right ends. At first all may call every tool of the devices
// inside.
func (w *world) askers() []asker {
	w.t.Helper()
	ctx, by := w.t.Context(), w.people[0]
	token := func(name string, r operator.TokenRequest) asker {
		r.Name, r.Role = w.name(inside), asOperator
		made, secret, err := w.srv.Operators.NewToken(ctx, w.people[1], r)
		if err != nil {
			w.t.Fatal(err)
		}
		actor, err := w.srv.Operators.Authenticate(ctx, secret)
		if err != nil {
			w.t.Fatal(err)
		}
		return asker{name: name, actor: actor, secret: secret, strike: func() {
			if err := w.srv.Operators.Revoke(ctx, by, made.ID); err != nil {
				w.t.Fatal(err)
			}
		}}
	}
	person := func(name string, strike func(id uuid.UUID) error) asker {
		o, err := w.srv.Operators.Create(ctx, by, operator.Request{Name: w.name(inside), Password: goodPassword,
			Access: operator.Access{Role: asOperator, Scope: "tag:" + scopeTag}})
		if err != nil {
			w.t.Fatal(err)
		}
		return asker{name: name, actor: o.Principal(), strike: func() {
			if err := strike(o.ID); err != nil {
				w.t.Fatal(err)
			}
		}}
	}
	access := func(a operator.Access) func(uuid.UUID) error {
		return func(id uuid.UUID) error { return w.srv.Operators.SetAccess(ctx, by, id, a) }
	}
	later := time.Now().Add(time.Hour)
	expires := token("a token that expires", operator.TokenRequest{ExpiresAt: &later})
	expires.strike = func() { // at a moment that the test chooses
		if _, err := w.db.Exec(ctx, `UPDATE tokens SET expires_at = now() WHERE id = $1`, expires.actor.ID); err != nil {
			w.t.Fatal(err)
		}
		w.eventually("the token to expire", func() bool { return w.rest(expires.secret, "GET", "/devices", nil).status == 401 })
	}
	moved := token("a token whose devices leave its scope", operator.TokenRequest{Scope: "tag:" + scopeTag})
	moved.strike = func() {
		for _, devices := range []map[side]fleet.DeviceID{w.live, w.asleep} {
			w.must("PATCH", "/devices/"+string(devices[inside]), obj{"tags": []string{"elsewhere"}})
		}
	}
	return []asker{
		token("a program that is revoked", operator.TokenRequest{}),
		token("a model that is revoked", operator.TokenRequest{Kind: fleet.KindModel, Tools: []string{"*"}}),
		expires, moved,
		person("an operator who is disabled", func(id uuid.UUID) error {
			return w.srv.Operators.SetDisabled(ctx, by, id, true)
		}),
		person("an operator who becomes a viewer", access(operator.Access{Role: viewer, Scope: "tag:" + scopeTag})),
		person("an operator whose scope changes", access(operator.Access{Role: asOperator, Scope: "tag:other"})),
		person("an operator who keeps to reading there", access(operator.Access{Role: asOperator, Scope: "tag:other", Rest: viewer})),
	}
}

// Waiting work does not go on once its requester has lost the right, whether or
// not the server restarted meanwhile.
func TestWorkThatWaits(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			t.Parallel()
			testWorkThatWaits(t, restart)
		})
	}
}

func testWorkThatWaits(t *testing.T, restart bool) {
	w := newWorld(t)
	w.must("POST", "/policies", obj{"name": "ask first", "enabled": true, "tools": []string{asked}, "decision": "require_approval"})
	all := w.askers()
	approvals, by := map[string]string{}, map[string]string{} // call of each approval; requester of each call
	for _, a := range all {
		by[a.actor.ID] = a.name
		w.waitForWakeUp(a.actor, a.name)
		approvals[a.name] = w.waitForApproval(a.actor, a.name)
	}
	good := w.people[1] // keeps its rights: its waiting work runs
	w.waitForWakeUp(good, "control")
	approvals["control"] = w.waitForApproval(good, "control")
	before := map[fleet.DeviceID]int{w.asleep[inside]: 0, w.live[inside]: len(w.sims[w.live[inside]].Calls())}
	for _, a := range all {
		a.strike()
	}
	if restart {
		w.restart()
		w.online(w.live) // otherwise the approved call would find no connection
	}

	for name, id := range approvals {
		a := w.rest(w.root, "POST", "/approvals/"+id+"/approve", nil)
		if ok := a.status/100 == 2; name == "control" && !ok {
			t.Errorf("the call of somebody who may is not approved: %d %s", a.status, a.text)
		}
	}
	w.run(w.fleetOf(0))
	w.eventually("the fan-outs to end", func() bool {
		var open int
		if err := w.db.QueryRow(t.Context(), `SELECT count(*) FROM fanouts WHERE finished_at IS NULL`).Scan(&open); err != nil {
			t.Fatal(err)
		}
		return open == 0
	})
	w.eventually("the approved call to run", func() bool {
		return len(w.sims[w.live[inside]].Calls()) > before[w.live[inside]]
	})
	rows, err := w.db.Query(t.Context(), `SELECT actor_id, actor_kind, tool, state FROM calls WHERE state NOT IN
		('refused', 'canceled', 'pending_approval')`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var id, kind, tool, state string
		if err := rows.Scan(&id, &kind, &tool, &state); err != nil {
			t.Fatal(err)
		}
		if by[id] != "" || kind == string(fleet.KindSystem) {
			t.Errorf("a call of %s, by %s %q, is %s", tool, kind, by[id], state)
		}
	}
	for id, n := range before {
		if calls := w.sims[id].Calls(); len(calls) != n+1 {
			t.Errorf("%d calls ran on %s, want the one of somebody who may: %+v", len(calls)-n, id, calls)
		}
	}
}

// waitForWakeUp makes a call that waits until a device wakes up.
func (w *world) waitForWakeUp(actor fleet.Principal, purpose string) {
	w.t.Helper()
	_, err := w.srv.FanOuts.Create(w.t.Context(), call.FanOutRequest{Actor: actor,
		Devices: []fleet.DeviceID{w.asleep[inside]}, Tool: "self.get_device_status", OfflineWait: time.Hour, Purpose: purpose})
	if err != nil {
		w.t.Fatalf("%s: %v", purpose, err)
	}
}

// waitForApproval makes a call that needs an approval.
func (w *world) waitForApproval(actor fleet.Principal, purpose string) string {
	w.t.Helper()
	c, err := w.srv.Calls.Make(w.t.Context(), call.Request{Actor: actor, Device: w.live[inside], Tool: asked,
		Arguments: json.RawMessage(`{"theme":"dark"}`), Purpose: purpose})
	if err != nil || c.Approval == uuid.Nil {
		w.t.Fatalf("%s: %+v, %v", purpose, c, err)
	}
	return c.Approval.String()
}

// A stream ends once its principal may not read it any more.
func TestStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, a := range w.askers() {
		if a.secret == "" || strings.Contains(a.name, "scope") {
			continue
		}
		events := w.open(w.request(a.secret, "GET", "/events", nil))
		session := w.openMCP(a.secret)
		a.strike()
		for name, stream := range map[string]io.Reader{"events of REST": events, "MCP": session} {
			if _, err := io.Copy(io.Discard, stream); err != nil {
				t.Logf("%s, %s: %v", a.name, name, err)
			}
		}
	}
}

// open sends a request and returns the body of its answer as a stream.
func (w *world) open(req *http.Request) io.Reader {
	w.t.Helper()
	client := &http.Client{Transport: &http.Transport{}} // without a timeout
	resp, err := client.Do(req)
	if err != nil || resp.StatusCode != 200 {
		w.t.Fatalf("%s %s: %v, %v", req.Method, req.URL.Path, resp, err)
	}
	w.t.Cleanup(func() {
		resp.Body.Close()
		client.CloseIdleConnections()
	})
	return bufio.NewReader(resp.Body)
}

// openMCP opens a session of MCP, and returns the stream of its notifications.
func (w *world) openMCP(secret string) io.Reader {
	w.t.Helper()
	request := func(method, session, body string) *http.Request {
		req, err := http.NewRequest(method, "http://"+w.http+"/mcp", strings.NewReader(body))
		if err != nil {
			w.t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+secret)
		req.Header.Set("Accept", cmp.Or(map[string]string{"GET": "text/event-stream"}[method],
			"application/json, text/event-stream"))
		req.Header.Set("Content-Type", "application/json")
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
			req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
		}
		return req
	}
	hello := w.send(request("POST", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",
		"capabilities":{},"clientInfo":{"name":"matrix","version":"1"}}}`))
	session := hello.header.Get("Mcp-Session-Id")
	if hello.status != 200 || session == "" {
		w.t.Fatalf("MCP is answered %d %s %v", hello.status, hello.text, hello.header)
	}
	w.send(request("POST", session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	return w.open(request("GET", session, ""))
}
