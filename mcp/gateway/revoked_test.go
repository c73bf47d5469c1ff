package gateway_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
)

// When a token is revoked, even by another process, everything that it opened ends:
// the streams of sessions, the streams of old clients, and sessions without a
// stream.
func TestStreamsEndWithTheToken(t *testing.T) {
	w := newWorld(t)
	made, secret, err := w.operators.NewToken(t.Context(), root, operator.TokenRequest{Name: "short", Kind: fleet.KindModel,
		Role: fleet.RoleOperator})
	if err != nil {
		t.Fatal(err)
	}
	id := w.post(t, secret, "/mcp", initialize).Header.Get("Mcp-Session-Id")
	idle := w.client(t, secret, "/mcp", nil, "2025-11-25")
	if err := idle.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "device://" + string(unit) + "/calls"}); err != nil {
		t.Fatal(err)
	}
	if resp := w.post(t, secret, "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Session-Id",
		id); resp.StatusCode != http.StatusAccepted {
		t.Fatal(resp.Status)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Mcp-Session-Id", id)
	ofSession, err := (&http.Client{Transport: bearer{secret}}).Do(r)
	if err != nil || ofSession.StatusCode != 200 {
		t.Fatal(ofSession, err)
	}
	defer ofSession.Body.Close()
	old := w.open(t, secret, "/mcp/sse")
	defer old.Body.Close()
	if n := w.gateway.Sessions(); n != 2 {
		t.Errorf("%d sessions are open, want 2", n)
	}
	if err := operator.New(w.store).Revoke(t.Context(), root, made.ID); err != nil {
		t.Fatal(err)
	}
	for name, stream := range map[string]io.Reader{"of a session": ofSession.Body, "of an old client": old.Body} {
		if _, err := io.Copy(io.Discard, stream); err != nil {
			t.Errorf("the stream %s did not end on the server's side: %v", name, err)
		}
	}
	fleettest.Eventually(t, "no session is left", func() bool { return w.gateway.Sessions() == 0 })
}
