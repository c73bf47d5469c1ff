package server

import (
	"bufio"
	"bytes"
	"image"
	"image/png"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

func rowSessions(w *rowsWorld, n int) func(*testing.T) {
	d := w.rowDevice(w.edges[0], n)
	initialized, listed := len(d.received("initialize")), len(d.received("tools/list"))
	return func(t *testing.T) {
		var c rowCall
		w.rest(w.edges[1], w.token, "POST", callsPath(d.id), act(time.Minute), &c)
		if c.State != fleet.CallSucceeded {
			t.Errorf("a call: %+v", c)
		}
		if i, l := len(d.received("initialize")), len(d.received("tools/list")); i != initialized || l != listed {
			t.Errorf("initialize %d times, had %d; tools/list %d times, had %d", i, initialized, l, listed)
		}
		if tools := w.count(`SELECT tools_count FROM devices WHERE id = $1`, d.id); tools != 1 {
			t.Errorf("%d tools are on record", tools)
		}
	}
}

func rowAgent(w *rowsWorld, n int) func(*testing.T) {
	var token struct{ ID, Token string }
	w.rest(w.edges[0], w.token, "POST", "/tokens", map[string]any{"name": "agent", "role": "operator"}, &token)
	d := w.rowDevice(w.edges[1], n)
	server := string(d.id) + "/esp32"
	a := agentAt(w.t, w.edges[1].mqtt, "agent-1", token.Token, 0).online()
	works := func(t *testing.T, calls int) {
		t.Helper()
		a.subscribe("$mcp-server/presence/+/#", "$mcp-rpc/agent-1/#")
		fleettest.EventuallyWithin(t, time.Minute, "the presence of the fleet", func() bool {
			_, whole := a.sees("fleetd/fleetd")
			return whole
		})
		a.open(server)
		r := a.request(server, "tools/call", `{"name":"self.act","arguments":{}}`)
		if !strings.Contains(string(r.Result), "answer to") || d.calls() != calls {
			t.Errorf("call: %s %+v; the device has %d calls, want %d", r.Result, r.Error, d.calls(), calls)
		}
	}
	works(w.t, 1)
	return func(t *testing.T) {
		ends := func(want byte) {
			t.Helper()
			select {
			case code := <-a.ended:
				if code != want {
					t.Errorf("the connection ended with %#x, want %#x", code, want)
				}
			case <-time.After(time.Minute):
				t.Errorf("the connection did not end with %#x", want)
			}
		}
		ends(0x8B)
		a.mu.Lock()
		clear(a.presence)
		a.mu.Unlock()
		select {
		case <-a.up:
		case <-time.After(time.Minute):
			t.Fatal("the agent is not back")
		}
		works(t, 2)
		w.rest(w.edges[0], w.token, "DELETE", "/tokens/"+token.ID, nil, nil)
		ends(0x87)
	}
}

func rowGuesses(w *rowsWorld, _ int) func(*testing.T) {
	claim := func(edge *leaseProcess) int {
		status, _ := w.ask(edge, w.other, "POST", "/devices/claim", map[string]any{"code": "000000"}, nil)
		return status
	}
	signIn := func(edge *leaseProcess) int {
		resp, err := http.PostForm("http://"+edge.http+"/sign-in", url.Values{"name": {"guessed"}, "password": {"a wrong one"}})
		if err != nil {
			return 0
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	// passes returns how many of 15 guesses are answered with the status of a wrong one.
	passes := func(guess func(*leaseProcess) int, wrong int) (n int) {
		for i := range 15 {
			switch status := guess(w.edges[i%2]); status {
			case wrong:
				n++
			case http.StatusTooManyRequests:
			default:
				w.t.Errorf("a guess was answered %d", status)
			}
		}
		return n
	}
	since := time.Now()
	codes, passwords := passes(claim, http.StatusNotFound), passes(signIn, http.StatusUnprocessableEntity)
	if codes < 10 || passwords < 10 {
		w.t.Errorf("%d codes and %d passwords were checked, want 10", codes, passwords)
	}
	return func(t *testing.T) {
		codes += passes(claim, http.StatusNotFound)
		if may := 11 + int(time.Since(since)/(6*time.Second)); codes > may {
			t.Errorf("%d codes were checked, want at most %d", codes, may)
		}
		passwords += passes(signIn, http.StatusUnprocessableEntity)
		if may := 11 + int(time.Since(since)/time.Minute); passwords > may {
			t.Errorf("%d passwords were checked, want at most %d", passwords, may)
		}
	}
}

// at returns the address with another edge as its host.
func at(edge *leaseProcess, address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	u.Host = edge.http
	return u.String()
}

func rowPicture(w *rowsWorld, n int) func(*testing.T) {
	d := w.newRowDevice(n)
	d.tools = rowTool(fleet.ToolSnapshot, "", "url")
	d.silent.Store(true)
	d.begin(w.edges[1])
	asked := w.begin(w.edges[0], w.token, "POST", callsPath(d.id), map[string]any{"tool": fleet.ToolSnapshot,
		"timeout_ms": 60_000}, nil)
	var link struct{ URL string }
	d.arguments(&link)
	return func(t *testing.T) {
		asked.await(t)
		upload := func() int {
			var form bytes.Buffer
			m := multipart.NewWriter(&form)
			part, err := m.CreateFormFile("file", "screenshot.png")
			if err == nil {
				err = png.Encode(part, image.NewGray(image.Rect(0, 0, 8, 6)))
			}
			if err != nil {
				t.Fatal(err)
			}
			m.Close()
			resp, err := http.Post(at(w.edges[0], link.URL), m.FormDataContentType(), &form)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			return resp.StatusCode
		}
		if first, again := upload(), upload(); first != http.StatusOK || again == http.StatusOK {
			t.Errorf("the picture was answered %d, and the same again %d", first, again)
		}
		var stored list[struct{ Width int }]
		w.rest(w.edges[1], w.token, "GET", "/snapshots?device="+string(d.id), nil, &stored)
		if len(stored.Items) != 1 || stored.Items[0].Width != 8 {
			t.Errorf("stored are %+v", stored.Items)
		}
	}
}

func rowBrowser(w *rowsWorld, _ int) func(*testing.T) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	resp, err := browser.PostForm("http://"+w.edges[0].http+"/sign-in", url.Values{"name": {"admin"},
		"password": {rowPassword}})
	if err != nil {
		w.t.Fatal(err)
	}
	resp.Body.Close()
	w.rest(w.edges[0], w.token, "POST", "/filters", map[string]any{"name": "own-ones", "q": "board:own"}, nil)
	// first returns the id and the kind of the first event of a stream.
	first := func(id string) (string, string) {
		req, err := http.NewRequest("GET", "http://"+w.edges[1].http+"/api/v1/events", nil)
		if err != nil {
			w.t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+w.token)
		req.Header.Set("Last-Event-ID", id)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			w.t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if now, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				id = now
			}
			if kind, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				return id, kind
			}
		}
		w.t.Errorf("a stream of events ended: %v", lines.Err())
		return "", ""
	}
	latest, kind := first("")
	if _, again := first(latest); kind == "reset" || again == "reset" {
		w.t.Errorf("the first event is %s, and after it %s", kind, again)
	}
	return func(t *testing.T) {
		for _, edge := range w.edges {
			resp, err := browser.Get("http://" + edge.http + "/devices")
			if err != nil {
				t.Fatal(err)
			}
			page, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(page), "own-ones") {
				t.Errorf("the page of devices: %s, %v", resp.Status, err)
			}
		}
		if _, kind := first(latest); kind != "reset" {
			t.Errorf("the first event of the new term is %s", kind)
		}
	}
}

func rowMCP(w *rowsWorld, n int) func(*testing.T) {
	d := w.rowDevice(w.edges[0], n)
	post := func(edge *leaseProcess, body string, headers ...string) (int, http.Header, string) {
		req, err := http.NewRequest("POST", "http://"+edge.http+"/mcp", strings.NewReader(body))
		if err != nil {
			w.t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+w.other)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			w.t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			w.t.Fatal(err)
		}
		return resp.StatusCode, resp.Header, string(text)
	}
	const listTools = `{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}`
	open := func(edge *leaseProcess) string {
		_, header, text := post(edge, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",`+
			`"capabilities":{},"clientInfo":{"name":"row","version":"1"}}}`)
		id := header.Get("Mcp-Session-Id")
		if id == "" {
			w.t.Errorf("initialize opened no session: %s", text)
		}
		post(edge, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Session-Id", id)
		return id
	}
	in := func(edge *leaseProcess, session string) int {
		status, _, _ := post(edge, listTools, "Mcp-Session-Id", session)
		return status
	}
	without := func(edge *leaseProcess) (int, string) {
		status, _, text := post(edge, `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"call_device","arguments":`+
			`{"device":"`+string(d.id)+`","tool":"self.act"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
			`"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"row","version":"1"}}}}`,
			"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "call_device")
		return status, text
	}
	session := open(w.edges[0])
	if status := in(w.edges[1], session); status != http.StatusOK {
		w.t.Errorf("a request in a session was answered %d", status)
	}
	return func(t *testing.T) {
		if status := in(w.edges[1], session); status != http.StatusNotFound {
			t.Errorf("a request in a session of the earlier term was answered %d", status)
		}
		if status := in(w.edges[1], open(w.edges[0])); status != http.StatusOK {
			t.Errorf("a request in a new session was answered %d", status)
		}
		if status, text := without(w.edges[1]); status != http.StatusOK || !strings.Contains(text, "succeeded") {
			t.Errorf("a request without a session was answered %d: %s", status, text)
		}
	}
}

func rowAlerts(w *rowsWorld, _ int) func(*testing.T) {
	changes := func() int { // not of nodes: no core stands by any more, and a certificate ends soon
		return w.count(`SELECT count(*) FROM alerts WHERE kind NOT IN ('no_standby', 'certificate_expiring')`)
	}
	before := changes()
	return func(t *testing.T) {
		if n := changes(); n != before {
			t.Errorf("%d alerts are on record, were %d", n, before)
		}
	}
}
