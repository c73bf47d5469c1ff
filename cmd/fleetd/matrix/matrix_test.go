package matrix

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// An operation is one that REST, or the MCP server, offers.
type operation struct{ id, method, path string }

// operations reads the document.
func (w *world) operations() map[string]operation {
	w.t.Helper()
	a := w.rest(w.root, "GET", "/openapi.json", nil)
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(a.text), &document); err != nil || len(document.Paths) == 0 {
		w.t.Fatalf("the document is answered %d %.200s: %v", a.status, a.text, err)
	}
	all := map[string]operation{}
	for path, item := range document.Paths {
		for method, data := range item {
			var op struct{ OperationID string }
			if json.Unmarshal(data, &op) == nil && op.OperationID != "" {
				all[op.OperationID] = operation{op.OperationID, strings.ToUpper(method), path}
			}
		}
	}
	w.toolsOfMCP(all)
	w.pagesOf(all)
	return all
}

// do sends a request of a principal.
func (w *world) do(op operation, p *principal, r request) answer {
	w.t.Helper()
	switch op.method {
	case byMCP:
		return w.mcp(p.secret, "tools/call", obj{"name": op.path, "arguments": r.body})
	case byPage:
		return w.page(p.secret, pagePath(op, r), formOf(r))
	}
	return w.rest(p.secret, op.method, address(op, r), r.body)
}

// fix creates the objects that reads return, on each side.
func (w *world) fix() {
	w.t.Helper()
	w.must("POST", "/images?board="+liveBoard, w.appImage(version))
	images := w.must("GET", "/images", nil).items()
	for _, i := range images {
		if i["version"] == version {
			w.image, _ = i["sha256"].(string)
		}
	}
	w.release = w.must("POST", "/releases", obj{"images": []string{w.image}}).str("id")
	w.must("POST", "/policies", obj{"name": "ask first", "enabled": true, "tools": []string{asked}, "decision": "require_approval"})
	people := w.must("POST", "/operators", person(w, inside)).str("id")
	joins := w.must("POST", "/enrolment/rules", joinRule(w, inside)).str("id")
	voice := w.must("POST", "/upstreams", voiceServer(w, inside)).str("id")
	dialled := w.must("POST", "/endpoints", dialIn(w, inside)).str("name")
	plugged := w.must("POST", "/plugins", plugIn(w, inside)).str("name")
	alert := w.alert()
	for _, s := range sides {
		id := string(w.live[s])
		name := w.name(s)
		call := w.must("POST", "/devices/"+id+"/calls", obj{"tool": "self.get_device_status", "purpose": name})
		w.must("POST", "/devices/"+id+"/calls", obj{"tool": "self.get_system_info", "purpose": name})
		fan := w.must("POST", "/fanouts", obj{"devices": []string{id}, "tool": "self.get_device_status", "purpose": name, "confirm": 1})
		w.fanOutEnds(s, request{args: thing{"id": fan.str("id")}})
		repeated := w.must("POST", "/schedules", nightly(w, s)).str("id")
		sends := w.must("POST", "/log-streams", logStream(w, s)).str("id")
		hides := w.must("POST", "/redaction/rules", obj{"tool": name, "path": "$.value"}).str("id")
		plan := w.must("POST", "/campaigns", obj{"name": name, "release_id": w.release, "devices": []string{id}})
		waits := w.must("POST", "/devices/"+id+"/calls", obj{"tool": asked, "arguments": obj{"theme": "light"}, "purpose": name})
		picture := w.must("POST", "/devices/"+id+"/calls", obj{"tool": "self.screen.snapshot", "purpose": name})
		shot := ""
		w.eventually("the picture", func() bool {
			for _, item := range w.must("GET", "/snapshots?device="+id, nil).items() {
				shot, _ = item["id"].(string)
			}
			return shot != ""
		})
		inventory, _ := w.must("GET", "/devices/"+id+"/inventories", nil).items()[0]["id"].(string)
		talk := uuid.Must(uuid.NewV7()).String()
		w.exec(`INSERT INTO conversations (id, device_id, upstream, created_at, calls, hello_us, received, lost, refused, dropped,
			sent, moves, jitter_us) VALUES ($1, $2, $3, now(), 0, 0, 0, 0, 0, 0, 0, 0, 0)`, talk, id, name)
		w.fixture[s] = map[string]string{"device": id, "call": call.str("id"), "picture": picture.str("id"), "fanout": fan.str("id"),
			"campaign": plan.str("id"), "approval": waits.str("approval_id"), "conversation": talk, "snapshot": shot,
			"schedule": repeated, "log_stream": sends, "redaction": hides,
			"core-dump": w.coreDump(s), "inventory": inventory, "session": people, "sha256": w.image, "release": w.release, "operator": people, "rule": joins,
			"upstream": voice, "endpoint": dialled, "alert": alert, "name": plugged}
	}
}

// nouns map the beginning of a path to the object that {id} names.
var nouns = map[string]string{"alerts": "alert", "approvals": "approval", "calls": "call", "campaigns": "campaign",
	"conversations": "conversation", "core-dumps": "core-dump", "devices": "device", "enrolment": "rule", "fanouts": "fanout", "log-streams": "log_stream",
	"operators": "operator", "redaction": "redaction", "releases": "release", "schedules": "schedule", "snapshots": "snapshot", "upstreams": "upstream"}

// address fills in the path of an operation.
func address(op operation, r request) string {
	at := op.path
	for name, v := range r.args {
		at = strings.ReplaceAll(at, "{"+name+"}", v)
	}
	if op.method == "GET" {
		noun := nouns[strings.Split(op.path, "/")[1]]
		at = strings.ReplaceAll(at, "{id}", r.args[noun])
		if op.id == "diff-inventories" {
			return at + r.query
		}
		if strings.Contains(op.path, "{") {
			return at
		}
		if op.id != "match-upstream" && op.id != "list-calls" && op.id != "list-snapshots" {
			return at
		}
	}
	return at + r.query
}

// may reports whether the principal may do the operation of a row, on a side.
func (p *principal) may(r row, s side) bool {
	role := map[reach]fleet.Role{onDevice: p.on(s), onFleet: p.onFleet(), somewhere: p.role}[r.reach]
	switch {
	case !allows(role, r.need):
		return false
	case p.isModel() && r.models != too:
		return false
	case p.isModel() && r.of != "" && !p.mayCall(r.of):
		return false
	case r.manage && (p.scoped || p.isModel() || p.tools != allTools):
		return false
	}
	return r.tool == "" || p.calls(r.tool, s)
}

// quiet waits until the database no longer changes.
func (w *world) quiet() {
	w.t.Helper()
	for last, since := int64(-1), time.Now(); time.Since(since) < 40*time.Millisecond; time.Sleep(5 * time.Millisecond) {
		var n int64
		if err := w.db.QueryRow(w.t.Context(), `SELECT coalesce(max(n), 0) FROM matrix.changes`).Scan(&n); err != nil {
			w.t.Fatal(err)
		}
		if n != last {
			last, since = n, time.Now()
		}
	}
}

// engineRests waits until stopped campaigns have ended.
func (w *world) engineRests() {
	w.t.Helper()
	w.eventually("campaigns to stop", func() bool {
		var open int
		err := w.db.QueryRow(w.t.Context(), `SELECT count(*) FROM campaigns c
			WHERE state = 'stopping' OR state = 'aborted' AND (rollback_wanted OR EXISTS (
				SELECT FROM waves v WHERE v.campaign_id = c.id AND v.state IN ('running', 'soaking', 'gate')))`).Scan(&open)
		if err != nil {
			w.t.Fatal(err)
		}
		return open == 0
	})
	w.quiet()
}

// try sends the request of a principal, and checks its effect.
func (w *world) try(op operation, name string, p *principal, s side) {
	w.t.Helper()
	r := rows[name]
	if r.ask == nil || r.reach == onFleet && s == outside && op.method != "GET" {
		return // objects without a device have no side
	}
	if (p.kind == fleet.KindOperator) != (op.method == byPage) {
		return // operators have no token, and tokens no session
	}
	w.used = nil
	ask := r.ask(w, p, s)
	w.changes() // discards the changes of the set-up
	a := w.do(op, p, ask)
	for i := 0; a.str("code") == "devices_left" && i < 10; i++ {
		ask = r.ask(w, p, s) // the number to confirm fell, because a device restarted since it was read
		a = w.do(op, p, ask)
	}
	may := p.may(r, s)
	if may && r.undo != nil && (r.tool != "" || r.runs != "") {
		r.undo(w, s, ask) // the effects of the request are visible now
	}
	if may && r.runs != "" && r.inert == "" && a.status/100 == 2 {
		w.eventually(r.runs+" to run", func() bool { return len(w.sims[w.live[s]].Calls()) > w.ran[w.live[s]] })
		w.quiet()
	}
	if a.status/100 == 2 && slices.Contains(r.writes, "campaigns") {
		w.engineRests()
	}
	w.judge(&verdict{w: w, op: op, name: name, row: r, p: p, side: s, ask: ask, answer: a, may: may})
	if op.method != "GET" && a.status/100 == 2 {
		for _, key := range w.used {
			delete(w.kept, key)
		}
		if slices.Contains(r.writes, "policies") {
			for _, s := range sides {
				delete(w.kept, string(s)+" asked") // requests under other rules are stale
			}
		}
		if r.undo != nil && (r.tool == "" && r.runs == "" || !may) {
			r.undo(w, s, ask)
			w.engineRests()
		}
	}
	w.log = append(w.log[max(0, len(w.log)-20):], fmt.Sprintf("%s %s by %s: %d", name, s, p, a.status))
}

// settleDevices marks the calls that ran on devices as checked.
func (w *world) settleDevices() {
	for id, d := range w.sims {
		w.ran[id] = len(d.Calls())
	}
}

// tryStranger sends the request without a token.
func (w *world) tryStranger(op operation) {
	w.t.Helper()
	if op.method == byMCP {
		if a := w.mcp("", "tools/call", obj{"name": op.path, "arguments": obj{}}); a.status != 401 && a.status != 429 {
			w.t.Errorf("%s without a token is answered %d %s", op.id, a.status, a.text)
		}
		return
	}
	if op.method == byPage {
		if a := w.page("", pagePath(op, request{}), nil); a.status != 401 {
			w.t.Errorf("%s by somebody who is not signed in is answered %d %s", op.id, a.status, a.text)
		}
		return
	}
	at := address(op, request{args: w.fixture[inside]})
	req := w.request("", op.method, at, nil)
	req.Header.Del("Authorization")
	a := w.send(req)
	// After a few attempts the address has to wait.
	if code := a.str("code"); code != "token_missing" && code != "too_many_attempts" {
		w.t.Errorf("%s without a token is answered %d %s", op.id, a.status, a.text)
	}
}

// A verdict collects the facts about an action.
type verdict struct {
	w      *world
	op     operation
	name   string
	row    row
	p      *principal
	side   side
	ask    request
	answer answer
	may    bool

	breaches []string
}

func (v *verdict) errorf(format string, args ...any) {
	v.w.t.Helper()
	if v.breaches = append(v.breaches, fmt.Sprintf(format, args...)); len(v.breaches) > 4 {
		v.breaches = append(v.breaches[:3], "and more")
	}
}

// report fails the test if anything was found.
func (v *verdict) report() {
	v.w.t.Helper()
	if len(v.breaches) > 0 {
		v.w.t.Errorf("%s about a device %s, by %s: answered %d %.160s\n\t%s", v.name, v.side, v.p, v.answer.status,
			v.answer.text, strings.Join(v.breaches, "\n\t"))
	}
}

// judge compares the effects with the permitted ones.
func (w *world) judge(v *verdict) {
	w.t.Helper()
	done := false
	for _, c := range w.changes() {
		if why := v.breach(c); why != "" {
			v.errorf("%s: %s", why, c)
		}
		done = done || slices.Contains(v.row.writes, c.table) && w.actor(c) != w.rootID
	}
	for _, s := range sides {
		id := w.live[s]
		calls := w.sims[id].Calls()
		for _, c := range calls[min(w.ran[id], len(calls)):] {
			if !v.may || cmp.Or(v.row.runs, v.row.tool) != c.Tool || !allows(v.p.on(s), asOperator) {
				v.errorf("%s ran on the device %s", c.Tool, s)
			}
		}
		w.ran[id] = len(calls)
	}
	ok := v.answer.status/100 == 2
	hidden := v.row.reach == onDevice && v.p.on(v.side) == "" && strings.Contains(v.op.path, "{id}")
	if hidden && allows(v.p.role, v.row.need) && (!v.p.isModel() || v.row.models == too) &&
		(v.answer.status != 404 || v.op.method != byPage && !strings.HasPrefix(v.answer.str("code"), "unknown_")) {
		v.errorf("it is not answered as if there were no such thing")
	}
	role := v.p.role
	if v.row.reach == onFleet {
		role = v.p.onFleet()
	}
	if !allows(role, v.row.need) && v.answer.status != 403 && v.op.method != byMCP {
		v.errorf("its role does not suffice, and that is not the answer")
	}
	switch {
	case v.answer.status >= 500 || v.answer.status == 401 || v.answer.status == 429:
		v.errorf("no answer to it")
	case v.may && !done && len(v.row.writes) > 0 && v.row.inert == "":
		v.errorf("it may, and changed nothing")
	case v.may && !ok && v.row.inert == "" && !(v.row.absent && v.answer.status == 404):
		v.errorf("it may, and was refused")
	case !v.may && ok && v.row.tool == "" && v.row.inert == "" && !v.row.partly:
		v.errorf("it may not, and was not refused")
	}
	v.leaks()
	v.report()
}

// leaks finds data in an answer that this principal must not see.
func (v *verdict) leaks() {
	v.w.t.Helper()
	if v.answer.status == 200 && v.p.on(outside) == "" {
		if strings.Contains(v.answer.text, marker) || strings.Contains(v.answer.text, string(v.w.live[outside])) {
			v.errorf("it shows a device outside")
		}
	}
	if v.p.isModel() && strings.Contains(v.name, "call") && strings.Contains(v.answer.text, "flash_size") {
		v.errorf("it shows the result of a tool that no model may call")
	}
	for _, client := range v.w.clients {
		if strings.Contains(v.answer.text, client) {
			v.errorf("it shows a Client-Id")
		}
	}
}

// actor returns the id of the principal that made a change, according to its row.
func (w *world) actor(c change) string {
	if c.op == "UPDATE" && c.table != "calls" {
		return ""
	}
	return c.get("actor_id")
}

// breach returns the reason for which the action may not make a change; "" if it
// may.
func (v *verdict) breach(c change) string {
	if c.unasked() {
		return ""
	}
	switch c.table {
	case "calls":
		return v.breachOfCall(c)
	case "campaigns":
		if reason := c.get("pause_reason"); c.op == "UPDATE" && (reason == "threshold" || reason == "system") {
			return "" // the engine stops it
		}
	case "waves":
		if c.op == "UPDATE" && c.get("state") != c.old["state"] && !v.may {
			return "" // the engine advances waves; an action changes the campaign first, which is checked
		}
	case "sessions":
		if v.op.method == byPage && c.op == "UPDATE" {
			return "" // decides only what the next page shows
		}
	case "audit_entries":
		// Later effects of fleetd are checked through the rows that it changes.
		if id := c.get("actor_id"); id == v.p.id && !v.may {
			return "on record"
		}
		return ""
	}
	switch {
	case !v.may:
		return "it may not"
	case !slices.Contains(v.row.writes, c.table):
		return "the row does not say that it writes " + c.table
	}
	if id := c.device(); id != "" {
		if c.table == "devices" && c.op == "INSERT" {
			v.w.where[id] = v.side
		}
		s, ok := v.w.where[id]
		if !ok || !allows(v.p.on(s), v.row.need) {
			return fmt.Sprintf("the device %s is %s", id, s)
		}
		v.own(c)
		return ""
	}
	if c.op == "INSERT" || v.row.reach == onFleet {
		v.own(c)
		return ""
	}
	if s, ok := v.w.owner[c.key()]; !ok || !allows(v.p.on(s), v.row.need) {
		return "it is not what was asked about"
	}
	return ""
}

// own records which side a new row belongs to.
func (v *verdict) own(c change) {
	if _, ok := v.w.owner[c.key()]; !ok {
		v.w.owner[c.key()] = v.side
	}
}

// breachOfCall checks a call by its maker, whenever it was made.
func (v *verdict) breachOfCall(c change) string {
	s := v.w.where[c.device()]
	if c.get("actor_id") == v.w.rootID {
		return ""
	}
	p := v.w.actors[c.get("actor_id")]
	switch {
	case p == nil:
		return fmt.Sprintf("a call by %s %q", c.get("actor_kind"), c.get("actor_name"))
	case p.on(s) == "":
		return "a call of a device that does not exist for it"
	case c.get("state") == "refused":
		return ""
	case !p.calls(c.get("tool"), s):
		return "a call that it may not make"
	}
	return ""
}

// Principals of every kind, role, scope and choice of tools try every operation
// of REST on a device inside and a device outside of the scope. Nothing forbidden
// happens, and everything permitted does.
func TestMatrix(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.watch()
	w.fix()
	ops := w.operations()
	for id := range ops {
		if _, ok := rows[id]; !ok {
			t.Errorf("the operation %s has no row: say who may do it, and with what request it acts", id)
		}
	}
	principals := pairwise(allTokens())
	if os.Getenv("FLEETD_MATRIX_FULL") != "" {
		principals = allTokens()
	}
	t.Logf("%d principals, %d rows", len(principals), len(rows))
	for _, p := range principals {
		w.token(p)
	}
	for _, p := range operators() {
		w.signIn(p)
		principals = append(principals, p)
	}
	w.quiet()
	w.changes()
	w.settleDevices()
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		id, _, _ := strings.Cut(name, "/")
		op, ok := ops[id]
		if !ok {
			t.Errorf("the row %s is of no operation", name)
			continue
		}
		begin := time.Now()
		w.tryStranger(op)
		for _, p := range principals {
			for _, s := range sides {
				w.try(op, name, p, s)
			}
		}
		if took := time.Since(begin); took > time.Second {
			t.Logf("%s took %v", name, took)
		}
	}
	w.quiet()
	if late := slices.DeleteFunc(w.changes(), change.unasked); len(late) > 0 {
		t.Errorf("after the end: %v", late)
	}
}
