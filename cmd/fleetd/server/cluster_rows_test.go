package server

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"
)

// The tests of these files kill the core that leads, and check for each row of a table what the next one
// rebuilds. The rows of one table are prepared in one cluster, and one kill serves them all.

// rest sends a request through a process with a token, and decodes the answer. It fails the test
// unless the status is one of 2xx.
func (w *leaseWorld) rest(p *leaseProcess, token, method, path string, body, answer any) {
	w.t.Helper()
	status, text := w.ask(p, token, method, path, body, nil)
	if status/100 != 2 {
		w.t.Fatalf("%s %s: %d: %s", method, path, status, text)
	}
	if answer == nil {
		return
	}
	if err := json.Unmarshal(text, answer); err != nil {
		w.t.Fatalf("%s %s: %v: %s", method, path, err, text)
	}
}

// ask sends a request through a process, and returns status and body. Status 0 is a failed connection.
func (w *leaseWorld) ask(p *leaseProcess, token, method, path string, body any, header http.Header) (int, []byte) {
	var content io.Reader
	if body != nil {
		data, _ := json.Marshal(body)
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, "http://"+p.http+"/api/v1"+path, content)
	if err != nil {
		return 0, []byte(err.Error())
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return resp.StatusCode, text
}

// A request is one that another goroutine has sent.
type pendingRequest struct {
	status int
	text   []byte
	done   chan struct{}
}

func (w *leaseWorld) begin(p *leaseProcess, token, method, path string, body any, header http.Header) *pendingRequest {
	r := &pendingRequest{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.status, r.text = w.ask(p, token, method, path, body, header)
	}()
	return r
}

func (r *pendingRequest) await(t *testing.T) (int, []byte) {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(time.Minute):
		t.Fatal("a request is not answered")
	}
	return r.status, r.text
}

// A row is one row of the table: prepare brings the leader into the worst moment, and returns what to
// check once the next core leads.
type row struct {
	name    string
	prepare func(w *rowsWorld, n int) (check func(t *testing.T))
}

// rowPassword is the password of the operator admin.
const rowPassword = "correct horse battery"

// A rowsWorld is a cluster with tokens of programs, and rules for them.
type rowsWorld struct {
	*clusterWorld
	other  string // another program than that of token
	asker  string // its calls need an approval
	denied string // its calls are denied
	thrice string // it may make three calls a day

	frozen time.Duration // how long the first edge was frozen in the term of the new core
}

func newRowsWorld(t *testing.T) *rowsWorld {
	t.Helper()
	w := &rowsWorld{clusterWorld: newClusterWorld(t, "--admin-password", rowPassword, "--download-rate", "65536")}
	w.asker = w.edges[0].newToken("asker", "operator") // not by REST: its creator may not approve its calls
	for name, token := range map[string]*string{"other": &w.other, "denied": &w.denied, "thrice": &w.thrice} {
		var made struct{ Token string }
		w.rest(w.edges[0], w.token, "POST", "/tokens", map[string]any{"name": name, "role": "operator"}, &made)
		*token = made.Token
	}
	for name, rule := range map[string]map[string]any{"asker": {"decision": "require_approval"},
		"denied": {"decision": "deny"}, "thrice": {"decision": "allow", "daily_budget": 3}} {
		rule["name"], rule["names"], rule["tools"] = name, []string{name}, []string{"self.*"}
		w.rest(w.edges[0], w.token, "POST", "/policies", rule, nil)
	}
	return w
}

// replaceCore prepares the rows, kills the leader, and checks them, the last one first. n is the first of
// eight numbers of devices, which belong to the row. An edge attaches to the next leader late, because
// it is frozen meanwhile.
func (w *rowsWorld) replaceCore(rows ...row) {
	w.t.Helper()
	checks := make([]func(*testing.T), len(rows))
	for i, r := range rows {
		checks[i] = r.prepare(w, 8*(i+1))
	}
	w.edges[0].signal(syscall.SIGSTOP)
	w.cores[0].signal(syscall.SIGKILL)
	w.cores[0].awaitEnd(time.Minute)
	w.cores[1].awaitReady()
	time.Sleep(500 * time.Millisecond)
	w.edges[0].signal(syscall.SIGCONT)
	w.frozen = time.Since(w.cores[1].loggedAt("serves the database"))
	for i, r := range slices.Backward(rows) {
		w.t.Run(r.name, checks[i])
	}
}

// What a new core rebuilds of calls, rules and people, row by row of the table in docs/cluster.md.
func TestNewCoreRebuilds(t *testing.T) {
	t.Parallel()
	w := newRowsWorld(t)
	w.replaceCore(
		row{"calls in flight end as unknown, and late answers are recorded", rowCallInFlight},
		row{"no call reaches another's answer, and no device is introduced again", rowSessions},
		row{"a fan-out goes on", rowFanOut},
		row{"a request with an Idempotency-Key is not repeated", rowIdempotency},
		row{"calls in line and approved calls are canceled", rowCallsInLine},
		row{"approvals are still asked for", rowApprovals},
		row{"a hold holds at every moment", rowHold},
		row{"rules and budgets hold", rowPolicy},
		row{"a call that waits for its device is made once", rowOfflineWait},
		row{"wrong codes and passwords still count", rowGuesses},
		row{"a pin holds at every moment", rowPin},
		row{"a one-time link takes a picture once", rowPicture},
		row{"operators stay signed in, and streams of events begin again", rowBrowser},
		row{"MCP sessions end, and clients without one go on", rowMCP},
		row{"no alert opens or ends", rowAlerts},
		row{"connected devices are not offline for the first requests", rowFirstCalls},
		row{"an MCP client over MQTT connects again, and its rights hold", rowAgent},
		row{"orders are answered late, and a download continues", rowOrders},
	)
}
