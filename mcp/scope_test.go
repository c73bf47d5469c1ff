package mcp_test

import (
	"testing"

	"fleetd/mcp"
)

func TestScopeIsOutsideThePayload(t *testing.T) {
	const answer = `{"type":"mcp","payload":{"jsonrpc":"2.0","id":7,"result":{"content":[],"isError":false}}}`
	for scope, want := range map[mcp.Scope]string{
		mcp.ScopeNone:     `{"type":"mcp","payload":{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"self.a","arguments":{}}}}`,
		mcp.ScopeOperator: `{"type":"mcp","scope":"operator","payload":{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"self.a","arguments":{}}}}`,
	} {
		s, d := connect(mcp.SessionOptions{}, replies(answer))
		if _, err := s.Call(t.Context(), mcp.CallToolParams{ID: 7, Name: "self.a", Scope: scope}); err != nil {
			t.Fatal(err)
		}
		if d.sent[0] != want {
			t.Errorf("scope %q: sent %s, want %s", scope, d.sent[0], want)
		}
		request, err := mcp.EncodeCall(mcp.CallToolParams{ID: 7, Name: "self.a", Scope: scope})
		if message := mcp.AppendEnvelope(nil, request, scope); string(message) != want || err != nil {
			t.Errorf("scope %q: EncodeCall makes %s, %v, and Call sends %s", scope, request, err, want)
		}
		if err := silence(d.sent[0]); err != nil {
			t.Errorf("scope %q: a stock device drops it: %v", scope, err)
		}
	}
}
