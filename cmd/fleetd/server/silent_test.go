package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/broker/sim"
	"fleetd/fleet/postgres"
)

// throughProxy puts a proxy between a server and its database.
func throughProxy(t *testing.T, cfg *Config) *chaosProxy {
	t.Helper()
	config, err := postgres.Config(cfg.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	c := config.ConnConfig
	target := fmt.Sprintf("%s:%d", c.Host, c.Port)
	if filepath.IsAbs(c.Host) {
		target = filepath.Join(c.Host, fmt.Sprintf(".s.PGSQL.%d", c.Port))
	}
	proxy, err := newChaosProxy(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.close)
	through := url.URL{Scheme: "postgres", User: url.UserPassword(c.User, c.Password), Host: proxy.addr(),
		Path: "/" + c.Database, RawQuery: "sslmode=disable"}
	cfg.DatabaseURL = through.String()
	return proxy
}

// An asked is a request of TestSilentDatabase, and its answer.
type asked struct {
	what, method, url, body string
	client                  *http.Client
	header                  http.Header

	status     int
	retryAfter string
	text       string
	took       time.Duration
}

func (a *asked) do(ctx context.Context) {
	req, err := http.NewRequestWithContext(ctx, a.method, a.url, strings.NewReader(a.body))
	if err != nil {
		panic(err)
	}
	req.Header = a.header
	began := time.Now()
	resp, err := a.client.Do(req)
	a.took = time.Since(began)
	if err != nil {
		a.text = err.Error()
		return
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	a.status, a.retryAfter, a.text = resp.StatusCode, resp.Header.Get("Retry-After"), string(text)
}

// While the database does not answer, REST and pages answer 503 with Retry-After, and
// tools of /mcp the error unavailable or not_recorded: reads within 5 s, calls within 10
// s. fleetd sends no call. If a caller disconnects meanwhile, its call is on record if it
// was stored.
func TestSilentDatabase(t *testing.T) {
	t.Parallel()
	const answer, call, late = 5 * time.Second, 10 * time.Second, 4 * time.Second // late on a busy machine
	var proxy *chaosProxy
	var direct string
	d := startTestServer(t, func(c *Config) {
		c.AdminPassword = "correct horse battery"
		direct = c.DatabaseURL
		proxy = throughProxy(t, c)
	})
	devices := d.simulate(sim.Options{Devices: 8, Seed: 1, TimeScale: 0.1, BootDelay: 10 * time.Millisecond,
		RecordCalls: 1 << 16})
	d.listed(8)
	base := "http://" + d.http
	bearer := http.Header{"Authorization": {"Bearer " + d.token}, "Content-Type": {"application/json"},
		"Accept": {"application/json, text/event-stream"}}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	resp, err := browser.PostForm(base+"/sign-in", url.Values{"name": {"admin"}, "password": {"correct horse battery"}})
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	resp.Body.Close()

	// Every list and figure of REST, too; the answer may come from memory.
	var document struct{ Paths map[string]map[string]any }
	d.rest("GET", "/openapi.json", nil, &document)
	var others []*asked
	for path, methods := range document.Paths {
		if methods["get"] != nil && !strings.Contains(path, "{") && path != "/events" {
			others = append(others, &asked{what: path, method: "GET", url: base + "/api/v1" + path,
				client: http.DefaultClient, header: bearer.Clone()})
		}
	}
	if len(others) < 20 {
		t.Fatalf("%d paths in the document", len(others))
	}

	// Calls are in progress when the silence begins.
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	var mu sync.Mutex
	slowest, refused := time.Duration(0), 0
	for i := range 32 {
		callers.Go(func() {
			for ctx.Err() == nil {
				a := asked{method: "POST", url: base + "/api/v1/devices/" + devices.Device(i%8).ID() + "/calls",
					body: `{"tool":"self.get_device_status"}`, client: http.DefaultClient, header: bearer.Clone()}
				a.do(context.Background())
				mu.Lock()
				slowest = max(slowest, a.took)
				if a.status != http.StatusOK {
					refused++
					if a.status != http.StatusServiceUnavailable || a.retryAfter == "" {
						t.Errorf("a call was answered %d, Retry-After %q: %s", a.status, a.retryAfter, a.text)
					}
				}
				mu.Unlock()
				if a.status != http.StatusOK {
					time.Sleep(100 * time.Millisecond)
				}
			}
		})
	}
	d.eventually("calls under way", func() bool { return len(devices.Device(0).Calls()) > 20 })
	proxy.set(proxyRule{share: 1, stallUp: true, stallDown: true})

	get := func(what, path string, client *http.Client, header http.Header) *asked {
		return &asked{what: what, method: "GET", url: base + path, client: client, header: header}
	}
	page := http.Header{"Accept": {"text/html"}}
	tool := func(name, arguments string) *asked {
		return &asked{what: "/mcp " + name, method: "POST", url: base + "/mcp", client: http.DefaultClient,
			header: bearer.Clone(), body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + name +
				`","arguments":` + arguments + `}}`}
	}
	list := []*asked{get("REST devices", "/api/v1/devices", http.DefaultClient, bearer.Clone()),
		get("REST calls", "/api/v1/calls", http.DefaultClient, bearer.Clone()),
		get("REST audit", "/api/v1/audit", http.DefaultClient, bearer.Clone()),
		get("page of devices", "/devices", browser, page), get("page of calls", "/calls", browser, page.Clone()),
		get("first page", "/", browser, page.Clone()), tool("find_devices", `{}`), tool("list_calls", `{}`),
		tool("read_device", `{"device":"`+devices.Device(0).ID()+`","tool":"self.get_device_status"}`),
		get("readyz", "", http.DefaultClient, http.Header{})}
	list[len(list)-1].url = "http://" + d.admin + "/readyz"
	leave, leaves := context.WithTimeout(t.Context(), time.Second)
	defer leaves()
	left := asked{method: "POST", url: base + "/api/v1/devices/" + devices.Device(0).ID() + "/calls",
		body: `{"tool":"self.audio_speaker.set_volume","arguments":{"volume":7}}`, client: http.DefaultClient,
		header: bearer.Clone()}
	var askers sync.WaitGroup
	askers.Go(func() { left.do(leave) })
	for _, a := range slices.Concat(list, others) {
		askers.Go(func() { a.do(context.Background()) })
	}
	askers.Wait()
	for _, a := range others {
		if a.status == 0 || a.took > answer+late ||
			a.status >= 500 && (a.status != http.StatusServiceUnavailable || a.retryAfter == "") {
			t.Errorf("%s: answered %d after %v, Retry-After %q: %.200s", a.what, a.status, a.took, a.retryAfter, a.text)
		}
	}
	for _, a := range list {
		refused := a.status == http.StatusServiceUnavailable && a.retryAfter != ""
		if strings.HasPrefix(a.what, "/mcp") { // a failed tool returns a result
			refused = refused || strings.Contains(a.text, `"fleetd/error":{"code":"unavailable"}`) ||
				strings.Contains(a.text, `"fleetd/error":{"code":"not_recorded"}`)
		}
		if !refused || a.took > answer+late {
			t.Errorf("%s: answered %d after %v, Retry-After %q: %.200s", a.what, a.status, a.took, a.retryAfter, a.text)
		}
	}
	if left.status != 0 {
		t.Errorf("the caller that left was answered %d", left.status)
	}
	executed := func() (n int) {
		for i := range 8 {
			for _, c := range devices.Device(i).Calls() {
				if strings.HasPrefix(c.Tool, "self.get_") || strings.HasPrefix(c.Tool, "self.audio") {
					n++
				}
			}
		}
		return n
	}
	d.eventually("the calls in progress are refused", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return refused > 0
	})
	before := executed()
	time.Sleep(3 * time.Second) // all calls of this time are refused
	if n := executed() - before; n != 0 {
		t.Errorf("%d calls were made while the database was silent", n)
	}
	proxy.set(proxyRule{})
	d.eventually("calls are made again", func() bool { return executed() > before+20 })
	stop()
	callers.Wait()
	if slowest > call+late {
		t.Errorf("the slowest answer to a call took %v, %d were refused", slowest, refused)
	}

	// Every call that ran is on record, and every call with a record of running ran.
	db, err := pgx.Connect(t.Context(), direct)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.Background())
	count := func(sql string) (n int) {
		if err := db.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	d.eventually("every call has an outcome", func() bool {
		return count(`SELECT count(*) FROM calls WHERE finished_at IS NULL`) == 0
	})
	if made := count(`SELECT count(*) FROM calls WHERE sent_at IS NOT NULL`); made != executed() {
		t.Errorf("%d calls are on record as sent, the devices executed %d", made, executed())
	}
	if n := count(`SELECT count(*) FROM calls WHERE tool = 'self.audio_speaker.set_volume' AND state <> 'canceled'`); n != 0 {
		t.Error("the call of the caller that left is on record as more than canceled")
	}
	if n := count(`SELECT count(*) FROM devices WHERE presence = 'online'`); n != 8 {
		t.Errorf("%d of 8 devices are online", n)
	}
}

// A failure of the blob store returns the system's error, and no path of the server.
func TestBlobStoreFailureNamesNoPath(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	blobs := filepath.Join(d.cfg.DataDir, "blobs")
	if err := os.RemoveAll(blobs); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(blobs, nil, 0o600); err != nil { // even root cannot write below a file
		t.Fatal(err)
	}
	data, err := sim.AppImage(sim.DefaultBoards[0], "1.0.0", 40_000)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest("POST", "http://"+d.http+"/api/v1/images?board="+sim.DefaultBoards[0], bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+d.token)
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	var problem struct{ Code, Detail string }
	if err := json.Unmarshal(text, &problem); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusServiceUnavailable || problem.Code != "blob_store" ||
		resp.Header.Get("Retry-After") == "" || !strings.Contains(problem.Detail, "not a directory") {
		t.Errorf("answered %s, Retry-After %q: %s", resp.Status, resp.Header.Get("Retry-After"), text)
	}
	if strings.Contains(string(text), d.cfg.DataDir) || strings.Contains(string(text), "/blobs") {
		t.Errorf("the answer names a path of the server: %s", text)
	}
}
