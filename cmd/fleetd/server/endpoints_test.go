package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
)

// An endpointView has the fields of an endpoint that tests read.
type endpointView struct {
	Name, Token, Path, Protocol, Reason string
	Connected                           bool
	ReasonCode                          string `json:"reason_code"`
	Replaced, Refused, Consumers        int
}

func (d *testServer) newEndpoint(name string, fields map[string]any) endpointView {
	d.t.Helper()
	body := map[string]any{"name": name}
	for k, v := range fields {
		body[k] = v
	}
	var v endpointView
	if status := d.rest("POST", "/endpoints", body, &v); status != http.StatusCreated {
		d.t.Fatalf("POST /endpoints: %d %+v", status, v)
	}
	return v
}

func (d *testServer) endpoint(name string) (v endpointView) {
	d.t.Helper()
	d.rest("GET", "/endpoints/"+name, nil, &v)
	return v
}

func (d *testServer) consumerOf(name string) endpointView {
	d.t.Helper()
	var v endpointView
	if status := d.rest("POST", "/endpoints/"+name+"/token", map[string]any{"kind": "consumer"}, &v); status != 201 {
		d.t.Fatalf("consumer token: %d", status)
	}
	return v
}

// dial opens a WebSocket; it returns the status and the body if it is refused.
func (d *testServer) dial(path string) (*websocket.Conn, int, string) {
	d.t.Helper()
	ws, resp, err := websocket.DefaultDialer.Dial("ws://"+d.http+path, nil)
	if err != nil {
		if resp == nil {
			d.t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		return nil, resp.StatusCode, string(body)
	}
	d.t.Cleanup(func() { ws.Close() })
	return ws, resp.StatusCode, ""
}

func (d *testServer) mustDial(path string) *rawSocket {
	d.t.Helper()
	ws, status, body := d.dial(path)
	if ws == nil {
		d.t.Fatalf("refused: %d %s", status, body)
	}
	return &rawSocket{t: d.t, Conn: ws}
}

// A rawSocket sends and receives frames as text.
type rawSocket struct {
	t *testing.T
	*websocket.Conn
	mu sync.Mutex
}

func (s *rawSocket) send(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.WriteMessage(websocket.TextMessage, []byte(text))
}

type frame struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
	}
}

func (s *rawSocket) next() (f frame, err error) {
	_ = s.SetReadDeadline(time.Now().Add(30 * time.Second))
	_, data, err := s.ReadMessage()
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	return f, err
}

// serve answers requests as a small provider of MCP 2024-11-05 does, until the end of the
// connection. answer may answer other methods and tools/call.
func (s *rawSocket) serve(answer func(f frame) string) error {
	for {
		f, err := s.next()
		if err != nil {
			return err
		}
		result := ""
		switch f.Method {
		case "initialize":
			result = `{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"esp32-mcp","version":"0.1.0"}}`
		case "ping":
			result = `{}`
		case "tools/list":
			result = `{"tools":[{"name":"led","description":"Switches the LED","inputSchema":{"type":"object","properties":` +
				`{"state":{"type":"string","enum":["on","off"]}},"required":["state"]}},` +
				`{"name":"secret_reset","description":"Resets","inputSchema":{"type":"object","properties":{}}}]}`
		case "tools/call":
			result = `{"content":[{"type":"text","text":"{\"success\":true}"}],"isError":false}`
		default:
			if f.ID == nil {
				continue
			}
		}
		if answer != nil {
			if other := answer(f); other != "" {
				result = other
			}
		}
		if result == "none" {
			continue
		}
		if strings.HasPrefix(result, "raw ") {
			s.send(result[4:])
			continue
		}
		s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, f.ID, result))
	}
}

func (d *testServer) connected(name string) {
	d.t.Helper()
	d.eventually(name+" connected with its tools", func() bool {
		return d.endpoint(name).Connected && d.host.Introduced(fleet.DeviceID("endpoint."+name))
	})
}

type callView struct {
	State  string
	Tool   string
	Result json.RawMessage
	Error  *struct{ Code, Message string }
	Actor  struct{ Kind, Name string }
}

func (d *testServer) call(device, tool, arguments string) (c callView) {
	d.t.Helper()
	d.rest("POST", "/devices/"+device+"/calls?wait=true", map[string]any{"tool": tool,
		"arguments": json.RawMessage(arguments)}, &c)
	return c
}

// A program with the go-sdk and a small program without one dial in; their tools are those of
// devices.
func TestEndpointsDialIn(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	sdkEnd, raw := d.newEndpoint("pc", nil), d.newEndpoint("board", map[string]any{"tools": []string{"led*"}})

	server := mcp.NewServer(&mcp.Implementation{Name: "pc", Version: "2.1.0"}, nil)
	type in struct {
		A, B int
	}
	mcp.AddTool(server, &mcp.Tool{Name: "add", Description: "Adds"}, func(_ context.Context, _ *mcp.CallToolRequest,
		x in) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(x.A + x.B)}}}, nil, nil
	})
	ws := d.mustDial(sdkEnd.Path)
	session, err := server.Connect(t.Context(), &testTransport{ws.Conn}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	// Without the last slash, as mcp_pipe.py is often configured.
	board := d.mustDial(strings.Replace(raw.Path, "/mcp/?", "/mcp?", 1))
	go func() { _ = board.serve(nil) }()
	d.connected("pc")
	d.connected("board")
	if v := d.endpoint("board"); v.Protocol != "2024-11-05" {
		t.Errorf("protocol of the board: %+v", v)
	}
	if c := d.call("endpoint.pc", "add", `{"A":2,"B":40}`); c.State != "succeeded" || !strings.Contains(string(c.Result), "42") {
		t.Errorf("call of the SDK's server: %+v", c)
	}
	if c := d.call("endpoint.board", "led", `{"state":"on"}`); c.State != "succeeded" {
		t.Errorf("call of the board: %+v", c)
	}
	if c := d.call("endpoint.board", "secret_reset", `{}`); c.State == "succeeded" {
		t.Errorf("a tool that is not offered was called: %+v", c)
	}
	// Tools that appear later.
	mcp.AddTool(server, &mcp.Tool{Name: "later"}, func(context.Context, *mcp.CallToolRequest, struct{}) (
		*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{}, nil, nil
	})
	d.eventually("the new tool", func() bool { return d.call("endpoint.pc", "later", `{}`).State == "succeeded" })

	// Deletion ends the connection and retires the device.
	if status := d.do("DELETE", "/endpoints/pc"); status != http.StatusNoContent {
		t.Errorf("delete: %d", status)
	}
	if err := session.Wait(); err != nil && !errors.Is(err, io.EOF) {
		t.Logf("session of a deleted endpoint: %v", err)
	}
	d.eventually("the device retired", func() bool {
		v, err := d.Devices.Device(t.Context(), "endpoint.pc")
		return err == nil && v.RetiredAt != nil
	})
	if _, status, _ := d.dial(sdkEnd.Path); status != http.StatusUnauthorized {
		t.Errorf("dial with the token of a deleted endpoint: %d", status)
	}
	d.restart()
	if _, status, _ := d.dial(raw.Path); status != http.StatusSwitchingProtocols {
		t.Errorf("dial after a restart: %d", status)
	}
}

// do sends a request without reading the answer.
func (d *testServer) do(method, path string) int {
	d.t.Helper()
	req, _ := http.NewRequest(method, "http://"+d.http+"/api/v1"+path, nil)
	req.Header.Set("Authorization", "Bearer "+d.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// A testTransport is the WebSocket of a provider.
type testTransport struct{ ws *websocket.Conn }

func (c *testTransport) Connect(context.Context) (mcp.Connection, error) { return c, nil }
func (c *testTransport) SessionID() string                               { return "" }
func (c *testTransport) Close() error                                    { return c.ws.Close() }

func (c *testTransport) Read(context.Context) (jsonrpc.Message, error) {
	_, data, err := c.ws.ReadMessage()
	if err != nil {
		return nil, io.EOF
	}
	return jsonrpc.DecodeMessage(data)
}

func (c *testTransport) Write(_ context.Context, m jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	return c.ws.WriteMessage(websocket.TextMessage, data)
}

// Tokens: wrong, of the wrong kind, revoked, of a disabled endpoint. None is in the log.
func TestEndpointTokens(t *testing.T) {
	t.Parallel()
	var log syncBuffer
	d := startTestServer(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	v := d.newEndpoint("pc", nil)
	consumer := d.consumerOf("pc")
	const call, provide = "/mcp_endpoint/call/?token=", "/mcp_endpoint/mcp/?token="
	refused := func(what, path string, want int) {
		t.Helper()
		if ws, status, body := d.dial(path); status != want || ws == nil && len(body) < 20 {
			t.Errorf("%s: %d %q, want %d", what, status, body, want)
		}
	}
	refused("no token", "/mcp_endpoint/mcp/", 401)
	refused("wrong token", provide+"fep_00", 401)
	refused("API token", provide+d.token, 401)
	refused("the consumer's token at the provider's address", provide+consumer.Token, 401)
	refused("the provider's token at the consumer's address", call+v.Token, 401)
	if resp, err := http.Get("http://" + d.http + v.Path); err != nil || resp.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("plain GET: %v %v", resp, err)
	}
	s := d.mustDial(v.Path)
	ended := make(chan error, 1)
	go func() { ended <- s.serve(nil) }()
	d.connected("pc")
	c := d.mustDial(consumer.Path)
	if d.do("DELETE", "/endpoints/pc/token?kind=consumer"); !closedWith(c, websocket.ClosePolicyViolation) {
		t.Error("the consumer's connection goes on")
	}
	if !d.endpoint("pc").Connected {
		t.Error("revoking the consumer's token ended the provider's connection")
	}
	refused("revoked consumer's token", consumer.Path, 401)
	var again endpointView
	d.rest("POST", "/endpoints/pc/token", map[string]any{}, &again)
	if err := <-ended; !websocket.IsCloseError(err, websocket.ClosePolicyViolation) {
		t.Errorf("end of the provider's connection: %v", err)
	}
	refused("token that was issued again", v.Path, 401)
	if v := d.endpoint("pc"); v.Connected || v.ReasonCode != "endpoint_revoked" {
		t.Errorf("after the revocation: %+v", v)
	}
	s = d.mustDial(again.Path)
	go func() { ended <- s.serve(nil) }()
	d.connected("pc")
	d.rest("PATCH", "/endpoints/pc", map[string]any{"disabled": true}, &v)
	<-ended
	refused("disabled", again.Path, 403)
	if c := d.call("endpoint.pc", "led", `{"state":"on"}`); c.State == "succeeded" {
		t.Errorf("call of a disabled endpoint: %+v", c)
	}
	d.Close()
	for _, secret := range []string{v.Token, again.Token, consumer.Token} {
		if secret != "" && strings.Contains(log.String(), secret) {
			t.Error("a token is in the log")
		}
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func closedWith(s *rawSocket, code int) bool {
	for {
		if _, err := s.next(); err != nil {
			return websocket.IsCloseError(err, code)
		}
	}
}

// A second connection replaces the first, or is refused.
func TestEndpointSecondConnection(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	replace := d.newEndpoint("replaced", nil)
	first := d.mustDial(replace.Path)
	ended := make(chan error, 1)
	go func() { ended <- first.serve(nil) }()
	d.connected("replaced")
	// One that does not answer initialize replaces nothing.
	silent := d.mustDial(replace.Path)
	time.Sleep(200 * time.Millisecond)
	if c := d.call("endpoint.replaced", "led", `{"state":"on"}`); c.State != "succeeded" {
		t.Errorf("while another connection begins: %+v", c)
	}
	second := d.mustDial(replace.Path)
	calls := make(chan struct{}, 10)
	go func() {
		_ = second.serve(func(f frame) string {
			if f.Method == "tools/call" {
				calls <- struct{}{}
			}
			return ""
		})
	}()
	if err := <-ended; !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Errorf("the first connection ended with %v", err)
	}
	if !closedWith(silent, websocket.CloseNormalClosure) {
		t.Error("the silent connection goes on")
	}
	d.connected("replaced")
	if c := d.call("endpoint.replaced", "led", `{"state":"on"}`); c.State != "succeeded" || len(calls) != 1 {
		t.Errorf("through the second connection: %+v, %d calls", c, len(calls))
	}
	if v := d.endpoint("replaced"); v.Replaced != 2 {
		t.Errorf("replaced: %+v", v)
	}
	// A connection ends when calls go to the next one.
	for i := range 10 {
		name := fmt.Sprint("pair", i)
		pair := d.newEndpoint(name, nil)
		before := d.mustDial(pair.Path)
		go func() { ended <- before.serve(nil) }()
		d.connected(name)
		next := d.mustDial(pair.Path)
		go func() { _ = next.serve(nil) }()
		<-ended
		if c := d.call("endpoint."+name, "led", `{"state":"on"}`); c.State != "succeeded" {
			t.Errorf("just after a connection was replaced: %+v", c)
		}
	}

	refuse := d.newEndpoint("refused", map[string]any{"second_connection": "refuse"})
	only := d.mustDial(refuse.Path)
	go func() { _ = only.serve(nil) }()
	d.connected("refused")
	_, status, body := d.dial(refuse.Path)
	if status != http.StatusConflict || !strings.Contains(body, "another program") {
		t.Errorf("second connection: %d %s", status, body)
	}
	if c := d.call("endpoint.refused", "led", `{"state":"on"}`); c.State != "succeeded" {
		t.Errorf("after the refusal: %+v", c)
	}
	only.Close()
	d.eventually("the connection's end", func() bool { return !d.endpoint("refused").Connected })
	d.mustDial(refuse.Path)
}

// A provider that floods, answers too much or not at all harms only itself.
func TestEndpointHostileProvider(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	good, bad := d.newEndpoint("good", nil), d.newEndpoint("bad", nil)
	g := d.mustDial(good.Path)
	go func() { _ = g.serve(nil) }()
	b := d.mustDial(bad.Path)
	large := strings.Repeat("x", 8<<20)
	go func() {
		_ = b.serve(func(f frame) string {
			switch {
			case f.Method != "tools/call":
				return ""
			case bytes.Contains(f.Params, []byte("secret_reset")):
				return "none"
			case bytes.Contains(f.Params, []byte("off")):
				return "raw this is no JSON"
			}
			return `{"content":[{"type":"text","text":"` + large + `"}]}`
		})
	}()
	d.connected("good")
	d.connected("bad")
	if c := d.call("endpoint.bad", "led", `{"state":"on"}`); c.State == "succeeded" || c.Error == nil {
		t.Errorf("an answer of 8 MiB: %+v", c)
	}
	var hung callView
	d.rest("POST", "/devices/endpoint.bad/calls?wait=true", map[string]any{"tool": "secret_reset",
		"timeout_ms": 500}, &hung)
	if hung.State != "timed_out" {
		t.Errorf("no answer: %+v", hung)
	}
	go func() {
		for range 100_000 {
			b.send(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		}
	}()
	for range 5 {
		if c := d.call("endpoint.good", "led", `{"state":"on"}`); c.State != "succeeded" {
			t.Errorf("during a flood: %+v", c)
		}
	}
	// 100 MB in one message end the connection.
	v := d.newEndpoint("huge", nil)
	h := d.mustDial(v.Path)
	go func() { _ = h.serve(nil) }()
	d.connected("huge")
	go func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		w, err := h.NextWriter(websocket.TextMessage)
		for i := 0; i < 100 && err == nil; i++ {
			_, err = w.Write([]byte(large[:1<<20]))
		}
	}()
	d.eventually("the end of the connection", func() bool { return !d.endpoint("huge").Connected })
	if c := d.call("endpoint.good", "led", `{"state":"on"}`); c.State != "succeeded" {
		t.Errorf("after 100 MB of another: %+v", c)
	}
}

// A consumer has the frames of xiaozhi-esp32-server's client.
func TestEndpointConsumer(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	v := d.newEndpoint("pc", nil)
	other := d.newEndpoint("other", nil)
	for _, path := range []string{v.Path, other.Path} {
		s := d.mustDial(path)
		go func() { _ = s.serve(nil) }()
	}
	d.connected("pc")
	d.connected("other")
	consumer := d.consumerOf("pc")
	if strings.Contains(consumer.Path, "key") {
		t.Errorf("xiaozhi-esp32-server refuses %s", consumer.Path)
	}
	c := d.mustDial(consumer.Path)
	ask := func(text string) frame {
		t.Helper()
		c.send(text)
		for {
			f, err := c.next()
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if f.ID != nil {
				return f
			}
		}
	}
	f := ask(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":` +
		`{"roots":{"listChanged":true},"sampling":{}},"clientInfo":{"name":"XiaozhiMCPEndpointClient","version":"1.0.0"}}}`)
	if string(f.ID) != "1" || !strings.Contains(string(f.Result), `"2024-11-05"`) {
		t.Errorf("initialize: %s %s", f.ID, f.Result)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized","params":{}}`)
	if f = ask(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`); !strings.Contains(string(f.Result), `"led"`) {
		t.Errorf("tools/list: %s", f.Result)
	}
	if f = ask(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"led","arguments":{"state":"on"}}}`); f.Error !=
		nil || !strings.Contains(string(f.Result), "success") {
		t.Errorf("tools/call: %s %+v", f.Result, f.Error)
	}
	if f = ask(`{"jsonrpc":"2.0","id":"p","method":"ping"}`); string(f.ID) != `"p"` || string(f.Result) != "{}" {
		t.Errorf("ping: %s", f.Result)
	}
	for _, method := range []string{"resources/list", "prompts/list", "logging/setLevel", "server/discover"} {
		if f = ask(`{"jsonrpc":"2.0","id":9,"method":"` + method + `"}`); f.Error == nil || f.Error.Code != -32601 {
			t.Errorf("%s: %s %+v", method, f.Result, f.Error)
		}
	}
	if f = ask(`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"none","arguments":{}}}`); f.Error == nil {
		t.Errorf("unknown tool: %s", f.Result)
	}
	var calls list[callView]
	d.rest("GET", "/calls?tool=led", nil, &calls)
	if len(calls.Items) != 1 || calls.Items[0].Actor.Kind != "model" || calls.Items[0].Actor.Name != "endpoint.pc" {
		t.Errorf("on record: %+v", calls.Items)
	}
	// People only: the tool is no longer there, and a call has no effect.
	d.rest("PATCH", "/endpoints/pc", map[string]any{"audience": "user"}, &v)
	if f, err := c.next(); err != nil || f.Method != "notifications/tools/list_changed" {
		t.Errorf("after the change: %+v %v", f, err)
	}
	d.eventually("no tools for models", func() bool {
		return string(ask(`{"jsonrpc":"2.0","id":5,"method":"tools/list"}`).Result) == `{"tools":[]}`
	})
	if f = ask(`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"led","arguments":{"state":"on"}}}`); f.Error == nil {
		t.Errorf("a model calls a tool for people: %s", f.Result)
	}
	// The token is not one of the API's.
	for _, path := range []string{"/api/v1/devices", "/mcp"} {
		req, _ := http.NewRequest("GET", "http://"+d.http+path, nil)
		req.Header.Set("Authorization", "Bearer "+consumer.Token)
		if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s with the consumer's token: %v %v", path, resp, err)
		}
	}
	if d.do("DELETE", "/endpoints/pc"); !closedWith(c, websocket.ClosePolicyViolation) {
		t.Error("the consumer's connection goes on after the endpoint was deleted")
	}
}

// A board cannot claim the id of an endpoint.
func TestBoardClaimsEndpoint(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	d.newEndpoint("pc", nil)
	req, _ := http.NewRequest("POST", "http://"+d.http+"/xiaozhi/ota/", strings.NewReader(`{"application":{"version":"1"}}`))
	req.Header.Set("Device-Id", "endpoint.pc")
	req.Header.Set("Client-Id", "4b1e2f0a-0000-4000-8000-000000000001")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode == http.StatusOK && strings.Contains(string(body), "mqtt") {
		t.Errorf("a boot poll claims endpoint.pc: %d %s", resp.StatusCode, body)
	}
	if _, err := d.Devices.Device(t.Context(), "endpoint.pc"); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("the poll left a device: %v", err)
	}
}
