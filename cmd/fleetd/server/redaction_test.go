package server

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/operator"
	"fleetd/fleet/redaction"
)

// noTrace fails the test if a value is anywhere in the database, in any column of any table.
func (d *testServer) noTrace(when, value string) {
	d.t.Helper()
	var tables []string
	err := d.pool.QueryRow(d.t.Context(), `SELECT array_agg(relname::text) FROM pg_class
		WHERE relkind IN ('r', 'p') AND NOT relispartition AND relnamespace = 'public'::regnamespace`).Scan(&tables)
	if err != nil || len(tables) < 50 {
		d.t.Fatal(len(tables), err)
	}
	for _, table := range tables {
		for _, text := range []string{value, hex.EncodeToString([]byte(value)),
			base64.RawStdEncoding.EncodeToString([]byte(value))} {
			var row *string
			if err := d.pool.QueryRow(d.t.Context(), `SELECT min(t::text) FROM "`+table+`" t WHERE strpos(t::text, $1) > 0`, text).
				Scan(&row); err != nil {
				d.t.Fatal(table, err)
			}
			if row != nil {
				d.t.Errorf("%s: the table %s has the value: %.400s", when, table, *row)
			}
		}
	}
}

func (d *testServer) count(sql string) (n int) {
	d.t.Helper()
	if err := d.pool.QueryRow(d.t.Context(), sql).Scan(&n); err != nil {
		d.t.Fatal(sql, err)
	}
	return n
}

// Devices get a value under a rule, however the call was made, and also after a restart. Nothing that fleetd stores
// or logs has it, and the calls are found by its digest. The simulated devices know no such theme, and say so.
func TestRedactedArguments(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	d := startTestServer(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	const tool, secret = "self.screen.set_theme", "s3cret-theme-7731"
	simulated := sim.Options{Devices: 2, Boards: []string{"esp-box-3"}, Seed: 7, TimeScale: 0.1, RecordCalls: 100}
	f, end := d.simulateFor(simulated)
	devices := d.listed(2)
	one := devices[0].ID
	arguments := map[string]any{"theme": secret}
	token := func(maker, name string, kind fleet.PrincipalKind, role fleet.Role) string {
		by := fleet.Principal{Kind: fleet.KindOperator, ID: maker, Name: maker, Role: fleet.RoleAdmin}
		_, secret, err := d.Operators.NewToken(t.Context(), by, operator.TokenRequest{Name: name, Kind: kind, Role: role,
			Tools: []string{"*"}})
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	asker := token("2", "asker", fleet.KindProgram, fleet.RoleOperator)
	model := token("2", "model", fleet.KindModel, fleet.RoleOperator)

	rule := map[string]any{"tool": "self.screen.*", "path": "$.theme"}
	var refused struct{ Code string }
	for path, body := range map[string]any{"/redaction/rules": rule, "/redaction/digest": map[string]any{"value": secret}} {
		if status := d.as(asker).rest("POST", path, body, &refused); status != 403 {
			t.Errorf("an operator gets %d from %s", status, path)
		}
	}
	if n := d.count(`SELECT count(*) FROM redactions`); n != 0 {
		t.Fatalf("%d rules", n)
	}
	sealer, err := enrolment.NewSealer(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	// A process that does not lead, or another core.
	other, err := redaction.New(redaction.Options{Store: d.store, Sealer: sealer, Secret: make([]byte, 32)})
	if err == nil {
		err = other.Load(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = other.Run(t.Context()) }()
	var made struct {
		ID       string
		Revision int64
	}
	if status := d.rest("POST", "/redaction/rules", rule, &made); status != 201 {
		t.Fatalf("the rule is answered %d", status)
	}
	var stale struct{ Code string }
	if status := d.rest("PATCH", "/redaction/rules/"+made.ID, map[string]any{"note": "x", "revision": 7}, &stale); status != 409 ||
		stale.Code != "redaction_changed" {
		t.Errorf("a stale change: %d %s", status, stale.Code)
	}

	// At once, through REST and through MCP.
	var c struct {
		ID, State string
		Arguments any
		Approval  string `json:"approval_id"`
		Error     *struct{ Code, Message string }
	}
	d.rest("POST", "/devices/"+one+"/calls", map[string]any{"tool": tool, "arguments": arguments}, &c)
	var found struct{ Digest string }
	d.rest("POST", "/redaction/digest", map[string]any{"value": secret}, &found)
	shown := fmt.Sprint(map[string]any{"theme": found.Digest})
	if c.State != "tool_error" || fmt.Sprint(c.Arguments) != shown {
		t.Fatalf("the call %+v", c)
	}
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: d.URL() + "/mcp", HTTPClient: &http.Client{Transport: bearerTransport(model)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "call_device", Arguments: map[string]any{"device": one,
		"tool": tool, "arguments": arguments}})
	if err != nil {
		t.Fatal(err)
	}
	text, _ := json.Marshal(r)
	if strings.Contains(string(text), secret) || !strings.Contains(string(text), found.Digest) {
		t.Errorf("the model is shown %s", text)
	}
	s.Close()

	d.eventually("the other core to apply the rule", func() bool {
		_, digests := other.Redact(tool, json.RawMessage(`{"theme":"x"}`))
		return len(digests) == 1
	})

	// What a person reads cannot be sent again, and an error does not show the value.
	d.rest("POST", "/devices/"+one+"/calls", map[string]any{"tool": tool, "arguments": map[string]any{"theme": found.Digest}},
		&refused)
	if refused.Code != "redacted_arguments" {
		t.Errorf("a digest as the value: %s", refused.Code)
	}
	d.rest("POST", "/devices/"+one+"/calls", map[string]any{"tool": tool, "arguments": map[string]any{"theme": []string{secret}}}, &c)
	if c.State != "invalid" || strings.Contains(c.Error.Message, secret) {
		t.Errorf("an invalid call: %+v %+v", c, c.Error)
	}
	last, err := d.Calls.LastArguments(t.Context(), testOperator, tool)
	if err != nil || strings.Contains(string(last), "hmac") {
		t.Errorf("the form begins with %s, %v", last, err)
	}

	// To many devices, now and later, and after an approval.
	var fan struct{ ID, State string }
	d.rest("POST", "/fanouts", map[string]any{"q": "presence:online", "tool": tool, "arguments": arguments}, &fan)
	d.eventually("the fan-out to end", func() bool {
		d.rest("GET", "/fanouts/"+fan.ID, nil, &fan)
		return fan.State == "completed"
	})
	var nightly scheduleJSON
	d.rest("POST", "/schedules", map[string]any{"name": "nightly", "cron": "0 2 * * *", "time_zone": "UTC", "tool": tool,
		"arguments": arguments}, &nightly)
	d.rest("PATCH", "/schedules/"+nightly.ID, map[string]any{"name": "each night"}, &nightly)
	d.rest("PATCH", "/schedules/"+nightly.ID, map[string]any{"q": "id:" + one}, &refused)
	if refused.Code != "redacted_arguments" {
		t.Errorf("a schedule brings its value to other devices: %s", refused.Code)
	}
	d.rest("POST", "/policies", map[string]any{"name": "ask", "names": []string{"asker"}, "decision": "require_approval"}, &refused)
	var waits struct {
		ID, State string
		Approval  string `json:"approval_id"`
	}
	d.as(asker).rest("POST", "/devices/"+one+"/calls", map[string]any{"tool": tool, "arguments": arguments}, &waits)
	if waits.State != "pending_approval" {
		t.Fatalf("the call that needs an approval: %+v", waits)
	}
	d.noTrace("while work waits", secret)

	// A call waits for its device over a restart; the next process applies the rule and sends what waits.
	end()
	d.eventually("the devices to leave", func() bool {
		var online list[deviceView]
		d.rest("GET", "/devices?q=presence:online", nil, &online)
		return len(online.Items) == 0
	})
	var away struct{ ID, State string }
	d.rest("POST", "/devices/"+one+"/calls", map[string]any{"tool": tool, "arguments": arguments, "offline": "wait"}, &away)
	if away.State != "pending_device" {
		t.Fatalf("the call to an absent device: %+v", away)
	}
	if n := d.count(`SELECT (SELECT count(*) FROM calls WHERE sealed_arguments IS NOT NULL) +
		(SELECT count(*) FROM schedules WHERE sealed_arguments IS NOT NULL)`); n != 3 {
		t.Errorf("%d rows have sealed arguments, want two calls and a schedule", n)
	}
	d.restart()
	before := deviceNamed(t, f, 2, one).Calls()
	f = d.simulate(simulated)
	d.listed(2)
	state := func(id string) string {
		d.rest("GET", "/calls/"+id, nil, &c)
		return c.State
	}
	d.eventually("the waiting call to end", func() bool { return state(away.ID) == "tool_error" })
	d.rest("POST", "/approvals/"+waits.Approval+"/approve", map[string]any{}, &refused)
	d.eventually("the approved call to end", func() bool { return state(waits.ID) == "tool_error" })
	d.moveNext(nightly.ID, 0)
	d.eventually("the scheduled run to end", func() bool {
		runs := d.runsOf(nightly.ID)
		return len(runs) == 1 && runs[0].State == "done"
	})

	received := 0
	for _, call := range append(before, deviceNamed(t, f, 2, one).Calls()...) {
		if call.Tool == tool {
			received++
			if !strings.Contains(call.Arguments, secret) {
				t.Errorf("the device got %s", call.Arguments)
			}
		}
	}
	if received != 6 { // REST, MCP, fan-out, waited, approved, scheduled
		t.Errorf("the device got %d calls", received)
	}
	var calls list[struct{ Arguments any }]
	d.rest("GET", "/calls?digest="+found.Digest, nil, &calls)
	if len(calls.Items) != 8 {
		t.Errorf("%d calls have the digest", len(calls.Items))
	}
	for _, c := range calls.Items {
		if fmt.Sprint(c.Arguments) != shown {
			t.Errorf("a call shows %v", c.Arguments)
		}
	}
	if status := d.rest("GET", "/calls?digest=hmac-sha256:00", nil, &refused); status != 422 {
		t.Errorf("half a digest: %d", status)
	}
	if n := d.count(`SELECT (SELECT count(*) FROM calls WHERE sealed_arguments IS NOT NULL) +
		(SELECT count(*) FROM fanouts WHERE sealed_arguments IS NOT NULL)`); n != 0 {
		t.Errorf("%d rows keep sealed arguments after the end", n)
	}
	d.noTrace("at the end", secret)
	if n := d.count(`SELECT count(*) FROM audit_entries WHERE action = 'redaction.create'
		AND detail->'after'->>'path' = '$.theme'`); n != 1 {
		t.Errorf("%d audit entries", n)
	}
	d.Close()
	if strings.Contains(log.String(), secret) {
		t.Error("the log has the value")
	}
}
