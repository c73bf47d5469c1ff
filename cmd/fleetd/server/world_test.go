package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"testing"
	"time"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/fleet/postgres/pgtest"
)

var testOperator = fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "ana", Role: fleet.RoleAdmin}

// A testServer is a complete server in the test's process, on free ports of the
// loopback interface and a new database.
type testServer struct {
	*Server
	t                 *testing.T
	http, mqtt, admin string // addresses
	token             string // of an administrator
	cfg               Config
}

// startTestServer starts a server on which every device joins at once, unless
// change sets otherwise.
func startTestServer(t *testing.T, change func(*Config)) *testServer {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a whole server")
	}
	d := &testServer{t: t}
	// Unlike port 0, these stay free while a test restarts the server.
	cfg := Config{HTTPAddr: freeAddr(t), MQTTAddr: freeAddr(t), AdminAddr: freeAddr(t), Enrolment: "open",
		NodeName: "test", Log: slog.New(slog.DiscardHandler)}
	cfg.DataDir, cfg.DatabaseURL = t.TempDir(), pgtest.URL(t)
	if os.Getenv("FLEETD_TEST_LOG") != "" {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if change != nil {
		change(&cfg)
	}
	verifyRecordAtEnd(t, cfg.DatabaseURL)
	d.start(cfg)
	t.Cleanup(func() { d.Close() })
	d.http, d.mqtt, d.admin = d.HTTPAddr().String(), d.MQTTAddr().String(), d.AdminAddr().String()
	var err error
	if _, d.token, err = d.Operators.NewToken(t.Context(), testOperator, operator.TokenRequest{Name: "e2e",
		Role: fleet.RoleAdmin}); err != nil {
		t.Fatal(err)
	}
	return d
}

func freeAddr(t *testing.T) string {
	t.Helper()
	addr, err := fleettest.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func (d *testServer) start(cfg Config) {
	d.t.Helper()
	var err error
	if d.Server, err = Start(d.t.Context(), cfg); err != nil {
		d.t.Fatal(err)
	}
	d.cfg = cfg
}

// restart stops the server, and starts another with the same records and
// addresses.
func (d *testServer) restart() {
	d.t.Helper()
	d.Close()
	fleettest.AwaitForks()
	d.start(d.cfg)
}

type list[T any] struct {
	Items      []T
	NextCursor string `json:"next_cursor"`
}

// A deviceView has the fields of a device that tests read.
type deviceView struct {
	ID, Version, Presence string
	ToolsCount            int `json:"tools_count"`
}

// rest sends a request and decodes the answer, whatever its status.
func (d *testServer) rest(method, path string, body, answer any) int {
	d.t.Helper()
	var r io.Reader
	if body != nil {
		data, _ := json.Marshal(body)
		r = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, "http://"+d.http+"/api/v1"+path, r)
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+d.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	if err := json.Unmarshal(data, answer); err != nil {
		d.t.Fatalf("%s %s: %s: %v: %s", method, path, resp.Status, err, data)
	}
	return resp.StatusCode
}

func (d *testServer) eventually(what string, ok func() bool) {
	d.t.Helper()
	fleettest.EventuallyWithin(d.t, 3*time.Minute, what, ok)
}

// simulate runs devices against the server until the test ends.
func (d *testServer) simulate(o sim.Options) *sim.Fleet {
	d.t.Helper()
	f, _ := d.simulateFor(o)
	return f
}

// simulateFor also returns a function that ends the devices before the test
// ends.
func (d *testServer) simulateFor(o sim.Options) (*sim.Fleet, func()) {
	d.t.Helper()
	o.OTAURL = d.URL() + "/xiaozhi/ota/"
	f, err := sim.New(o)
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	end := func() { cancel(); <-done }
	d.t.Cleanup(end)
	return f, end
}

// listed waits until n devices are online with their tools listed.
func (d *testServer) listed(n int) []deviceView {
	d.t.Helper()
	var devices list[deviceView]
	ready := 0
	d.eventually(fmt.Sprintf("%d devices online with their tools", n), func() bool {
		d.rest("GET", "/devices?q=presence:online&limit=500", nil, &devices)
		ready = 0
		for _, v := range devices.Items {
			if v.ToolsCount > 0 {
				ready++
			}
		}
		return ready >= n
	})
	return devices.Items
}
