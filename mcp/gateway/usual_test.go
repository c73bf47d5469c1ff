package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/mcp/gateway"
)

// The gateway answers calls that it reads without the SDK exactly as the SDK does: without a
// session, in one, and with the members that clients add in _meta.
func TestUsualCallsAreAnsweredAsTheSDKDoes(t *testing.T) {
	w := newWorld(t)
	token := w.token(t, operator.TokenRequest{Kind: fleet.KindModel})
	session := w.session(t, token)
	asks := w.post(t, token, "/mcp", strings.Replace(initialize, `"capabilities":{}`,
		`"capabilities":{"elicitation":{"form":{}}}`, 1)).Header.Get("Mcp-Session-Id")
	foreign := w.session(t, w.token(t, operator.TokenRequest{Name: "foreign"}))
	varies := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[0-9:.]+Z|"duration_ms":\d+|after \d+ ms`)
	const stateless = `"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`
	ask := func(version, session, accept, tool, args, meta, id string) (int, string) {
		header := []string{"Accept", accept, "Mcp-Protocol-Version", version}
		if version == "2026-07-28" {
			header = append(header, "Mcp-Method", "tools/call", "Mcp-Name", tool)
			meta = strings.TrimSuffix(stateless+","+meta, ",")
		}
		if session != "" {
			header = append(header, "Mcp-Session-Id", session)
		}
		if meta != "" {
			meta = `,"_meta":{` + meta + `}`
		}
		resp := w.post(t, token, "/mcp", `{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call","params":{"name":"`+tool+
			`","arguments":`+args+meta+"}}", header...)
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		resp.Header.Del("Date")
		resp.Header.Del("Content-Length")
		return resp.StatusCode, fmt.Sprint(resp.Header) + varies.ReplaceAllString(strings.TrimSpace(string(data)), "*")
	}
	for _, in := range []struct {
		version, session, meta string
		status                 int
	}{
		{"2025-11-25", "", "", 200},
		{"2025-03-26", "", "", 200},
		{"2026-07-28", "", "", 200},
		{"2025-11-25", session, "", 200},
		{"2025-06-18", session, `"progressToken":7`, 200},
		{"2025-03-26", session, `"progressToken":"7","example.com/turn":{"a":[1]}`, 200},
		{"2025-11-25", asks, `"progressToken":7`, 200},
		{"2025-11-25", session, `"progressToken":null`, 200},
		{"2025-11-25", session, `"io.modelcontextprotocol/related-task":{"taskId":"1"}`, 200},
		{"2025-11-25", session, `"io.modelcontextprotocol/protocolVersion":"2025-11-25"`, 400},
		{"2025-11-25", "", `"progressToken":7`, 200},
		{"2026-07-28", "", `"progressToken":7`, 200},
		{"2026-07-28", "", `"io.modelcontextprotocol/logLevel":"debug"`, 200},
		{"2026-07-28", session, "", 400},
		{"2024-11-05", session, "", 200},
		{"1999-01-01", session, "", 400},
		{"2025-11-25", "FORGED", `"progressToken":7`, 404},
		{"2025-11-25", foreign, `"progressToken":7`, 404},
	} {
		for _, tt := range []struct{ tool, args, id string }{
			{"call_device", `{"device":"a085e3112233","tool":"self.audio_speaker.set_volume","arguments":{"volume":7}}`, "1"},
			{"call_device", ` { "tool" : "self.get_device_status" , "device":"a085e3112233" , "timeout_ms": 60000 } `, `"a"`},
			{"read_device", `{"device":"a085e3112233","tool":"self.get_device_status","purpose":"p"}`, "999999"},
			{"read_device", `{"device":"a085e3112233","tool":"self.audio_speaker.set_volume"}`, "1"},
			{"call_device", `{"device":"a085e3112233","tool":"self.reboot"}`, "1"},
			{"call_device", `{"device":"a085e3110000","tool":"self.get_device_status"}`, "1"},
			{"call_device", `{"device":"a085e3112255","tool":"self.get_device_status"}`, "1"},
			{"call_device", `{"device":"a085e3112233","tool":"self.none"}`, "1"},
			{"call_device", `{"device":"a085e3112233","tool":"self.get_device_status","arguments":[]}`, "1"},
			{"call_device", `{"device":"a085e3112233","tool":"self.get_device_status","device":"x"}`, "1"},
			{"call_device", `{"Device":"a085e3112233","tool":"self.get_device_status"}`, "1"},
			{"call_device", `{}`, "1"},
		} {
			status, got := ask(in.version, in.session, "application/json, text/event-stream", tt.tool, tt.args, in.meta, tt.id)
			wantStatus, want := ask(in.version, in.session, "text/event-stream, application/json", tt.tool, tt.args, in.meta,
				tt.id)
			if status != wantStatus || got != want {
				t.Errorf("%v %s %s:\n%d %s\nand by the SDK\n%d %s", in, tt.tool, tt.args, status, got, wantStatus, want)
			}
			if status != in.status {
				t.Errorf("%v %s: %d %s", in, tt.args, status, got)
			}
		}
	}
}

// session opens a session as a client does, and returns its id.
func (w *world) session(t testing.TB, token string) string {
	t.Helper()
	id := w.post(t, token, "/mcp", initialize).Header.Get("Mcp-Session-Id")
	if id == "" {
		t.Fatal("no session")
	}
	if resp := w.post(t, token, "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Session-Id",
		id); resp.StatusCode != http.StatusAccepted {
		t.Fatal(resp.Status)
	}
	return id
}

// bothWays are the Accept headers of a usual call and of a call that goes to the SDK.
var bothWays = map[string]string{"usual": "application/json, text/event-stream",
	"by the SDK": "text/event-stream, application/json"}

// A message of the session cancels a call that waits for its turn; a call that was sent goes on.
// A call with the id of a call in progress is refused. A DELETE waits for the calls.
func TestUsualCallsOfASession(t *testing.T) {
	for name, accept := range bothWays {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			token := w.token(t, operator.TokenRequest{})
			session := w.session(t, token)
			hold, sent := make(chan struct{}), make(chan struct{}, 9)
			w.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
				sent <- struct{}{}
				<-hold
				return fleettest.Text("done"), nil
			})
			send := func(body string) (int, string) {
				resp := w.post(t, token, "/mcp", body, "Accept", accept, "Mcp-Session-Id", session,
					"Mcp-Protocol-Version", "2025-11-25")
				data, _ := io.ReadAll(resp.Body)
				return resp.StatusCode, string(data)
			}
			answers := map[string]chan string{}
			begin := func(id string) {
				answers[id] = make(chan string, 1)
				go func() {
					_, data := send(strings.Replace(readStatus, `"id":3`, `"id":`+id, 1))
					answers[id] <- data
				}()
			}
			counted := func(state fleet.CallState) int {
				page, err := w.calls.List(t.Context(), call.Filter{Device: unit, States: []fleet.CallState{state}})
				if err != nil {
					t.Fatal(err)
				}
				return len(page.Items)
			}
			begin("1")
			<-sent
			begin("2")
			begin(`"2"`)
			fleettest.Eventually(t, "two calls wait", func() bool { return counted(fleet.CallPending) == 2 })
			if status, data := send(strings.Replace(readStatus, `"id":3`, `"id":1`, 1)); status != 400 ||
				data != `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"duplicate in-flight request ID 1"}}` {
				t.Errorf("an id of a call under way: %d %s", status, data)
			}
			for _, id := range []string{"1", `"2"`, "7"} {
				if status, data := send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id +
					`}}`); status != http.StatusAccepted || data != "" {
					t.Errorf("cancelled: %d %q", status, data)
				}
			}
			if data := <-answers[`"2"`]; !strings.Contains(data, `"canceled"`) {
				t.Errorf("canceled before it was sent: %s", data)
			}
			deleted := make(chan int, 1)
			go func() {
				resp := w.request(t, http.MethodDelete, token, "/mcp", "", "Mcp-Session-Id", session)
				deleted <- resp.StatusCode
			}()
			select {
			case status := <-deleted:
				t.Errorf("DELETE answers %d while calls are under way", status)
			case <-time.After(100 * time.Millisecond):
			}
			close(hold)
			for _, id := range []string{"1", "2"} {
				// When a session is deleted, the SDK may end its streams before their answers.
				if data := <-answers[id]; !strings.Contains(data, `"succeeded"`) && (data != "" || name == "usual") {
					t.Errorf("call %s: %s", id, data)
				}
			}
			if status := <-deleted; status != http.StatusNoContent {
				t.Errorf("DELETE: %d", status)
			}
			if got := [2]int{counted(fleet.CallSucceeded), counted(fleet.CallCanceled)}; got != [2]int{2, 1} {
				t.Errorf("%v calls succeeded and were canceled", got)
			}
		})
	}
}

// A session ends some time after its last message, whether the SDK or the gateway read that. An
// open stream does not keep it alive.
func TestIdleSession(t *testing.T) {
	w := newWorld(t, func(o *gateway.Options) { o.SessionIdle = 2 * time.Second })
	token := w.token(t, operator.TokenRequest{})
	used, left := w.session(t, token), w.session(t, token)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Mcp-Session-Id", left)
	go func() {
		if resp, err := (&http.Client{Transport: bearer{token}}).Do(r); err == nil {
			resp.Body.Close()
		}
	}()
	status := func(session string) int {
		return w.post(t, token, "/mcp", readStatus, "Mcp-Session-Id", session).StatusCode
	}
	fleettest.Eventually(t, "one session is left", func() bool { // each check uses the other session
		if got := status(used); got != http.StatusOK {
			t.Fatalf("a session that is used: %d", got)
		}
		return w.gateway.Sessions() == 1
	})
	if got := status(left); got != http.StatusNotFound {
		t.Errorf("a session without a message: %d", got)
	}
	fleettest.Eventually(t, "no session is left", func() bool { return w.gateway.Sessions() == 0 })
	if got := status(used); got != http.StatusNotFound {
		t.Errorf("the other, later: %d", got)
	}
}

// The gateway reads the requests of SDK clients without the SDK.
func TestClientsMakeUsualCalls(t *testing.T) {
	w := newWorld(t)
	token := w.token(t, operator.TokenRequest{})
	for _, version := range versions[:4] {
		for _, progress := range []any{nil, "token", 7} {
			seen := &recorder{next: bearer{token}}
			c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
			s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: w.URL + "/mcp",
				HTTPClient: &http.Client{Transport: seen}}, &mcp.ClientSessionOptions{ProtocolVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			p := &mcp.CallToolParams{Name: "read_device", Arguments: map[string]any{"device": unit,
				"tool": "self.get_device_status"}}
			if progress != nil {
				p.SetProgressToken(progress)
			}
			if _, err := s.CallTool(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			header, body := seen.of("tools/call")
			if !gateway.ReadUsual(header, body) || (header.Get("Mcp-Session-Id") == "") != (version == versions[0]) {
				t.Errorf("%s with the token %v is left to the SDK: %v %s", version, progress, header, body)
			}
			s.Close()
		}
	}
	// The requests of the TypeScript SDKs 1.32 and 2.4, with a session and without one.
	const params = `{"method":"tools/call","params":{"name":"call_device","arguments":{"device":"a085e3112233",` +
		`"tool":"self.audio_speaker.set_volume","arguments":{"volume":50}}%s},"jsonrpc":"2.0","id":2}`
	const stateless = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":` +
		`{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`
	header := http.Header{"Accept": {"application/json, text/event-stream"}, "Content-Type": {"application/json"},
		"Mcp-Protocol-Version": {"2025-11-25"}, "Mcp-Session-Id": {"s1"}}
	without := http.Header{"Accept": header["Accept"], "Content-Type": header["Content-Type"],
		"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {"call_device"}}
	for meta, header := range map[string]http.Header{"": header, `,"_meta":{"progressToken":2}`: header,
		stateless + "}": without, stateless + `,"progressToken":1}`: without} {
		if body := fmt.Sprintf(params, meta); !gateway.ReadUsual(header, body) {
			t.Errorf("left to the SDK: %v %s", header, body)
		}
	}
}

// recorder records the requests that a client makes.
type recorder struct {
	next http.RoundTripper
	mu   sync.Mutex
	all  []*http.Request
	said []string
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		data, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		req.Body = io.NopCloser(bytes.NewReader(data))
		r.mu.Lock()
		r.all, r.said = append(r.all, req), append(r.said, string(data))
		r.mu.Unlock()
	}
	return r.next.RoundTrip(req)
}

func (r *recorder) of(method string) (http.Header, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, body := range r.said {
		if strings.Contains(body, method) {
			return r.all[i].Header, body
		}
	}
	return nil, ""
}

// FuzzUsualBody checks that a message that the gateway reads without the SDK is valid for the
// SDK too, with the same values.
func FuzzUsualBody(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"call_device","arguments":{"device":"x","tool":"y"}}}`,
		`{"id":"\"","method":"tools/call","params":{"a":[{"b":"}"}]}}`,
		`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"_meta":{"progressToken":-7,"x":{"y":[]}},"name":"read_device","arguments":{"device":"x","tool":"y","arguments":{"a":"}"},"timeout_ms":5,"purpose":"p"}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"call_device","arguments":{"device":"x","Tool":"y","tool":"z"}}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, problem := range gateway.CompareUsual(body) {
			t.Errorf("%q: %s", body, problem)
		}
	})
}
