package api

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// A call is written in the same way as by encoding/json, or left to it.
func TestUsualCallIsWrittenAsJSON(t *testing.T) {
	at := time.Date(2026, 3, 29, 2, 30, 0, 120_000_000, time.UTC)
	usual := fleet.Call{ID: uuid.Must(uuid.NewV7()), Device: unit, Tool: "self.<&>.set", State: fleet.CallSucceeded,
		Arguments: json.RawMessage(` { "a" : "<\u2028 é\\u00e9" , "b":[ ] } `), Result: json.RawMessage(`{"content":[]}`),
		Actor:   fleet.Principal{Kind: fleet.KindProgram, ID: "7", Name: "O'Neill <ops>", Role: fleet.RoleOperator},
		Timeout: 10 * time.Second, CreatedAt: at, SentAt: &at, FinishedAt: new(at.Add(1234567 * time.Nanosecond))}
	tests := []struct {
		name   string
		change func(*fleet.Call)
		usual  bool
	}{
		{"succeeded", func(*fleet.Call) {}, true},
		{"whole seconds", func(c *fleet.Call) { c.CreatedAt = at.Truncate(time.Second) }, true},
		{"without a result", func(c *fleet.Call) { c.Result = nil }, true},
		{"without arguments", func(c *fleet.Call) { c.Arguments = nil }, true},
		{"another state", func(c *fleet.Call) { c.State = fleet.CallUnknown }, true},
		{"of a fan-out", func(c *fleet.Call) { c.FanOut = uuid.Max }, false},
		{"error", func(c *fleet.Call) { c.Error = fleet.NewCallError(fleet.CodeTooLarge, "bytes", 1, "limit", 0) }, false},
		{"evidence", func(c *fleet.Call) { c.Evidence = []fleet.Evidence{{At: at, Kind: fleet.EvidenceSent}} }, false},
		{"late", func(c *fleet.Call) { c.Late = &fleet.LateAnswer{At: at} }, false},
		{"not sent", func(c *fleet.Call) { c.SentAt = nil }, false},
		{"not finished", func(c *fleet.Call) { c.FinishedAt = nil }, false},
		{"name that needs escapes", func(c *fleet.Call) { c.Actor.Name = `"` }, false},
		{"name with a backslash", func(c *fleet.Call) { c.Actor.Name = `\` }, false},
		{"name in Chinese", func(c *fleet.Call) { c.Actor.Name = "运维" }, false},
		{"name in no encoding", func(c *fleet.Call) { c.Actor.Name = "\xff" }, false},
		{"tool with a control character", func(c *fleet.Call) { c.Tool = "\x7f\t" }, false},
		{"result that is no JSON", func(c *fleet.Call) { c.Result = json.RawMessage(`{"content":`) }, false},
	}
	for _, tt := range tests {
		c := usual
		tt.change(&c)
		v := viewOfCall(c)
		var got, want bytes.Buffer
		if ok := v.writeUsual(&got); ok != tt.usual {
			t.Errorf("%s: written without encoding/json: %t", tt.name, ok)
		}
		e := json.NewEncoder(&want)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); tt.usual && (err != nil || got.String()+"\n" != want.String()) {
			t.Errorf("%s: written\n%s, encoding/json writes\n%s (%v)", tt.name, &got, &want, err)
		}
	}
}
