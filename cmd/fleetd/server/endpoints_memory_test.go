package server

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"fleetd/fleet/endpoint"
)

// Measures the resident memory of a server per connected provider:
//
//	FLEETD_TEST_ENDPOINTS=1000 go test -count=1 -v -run '^TestEndpointMemory$' ./cmd/fleetd/server
//
// The providers are in another process.
func TestEndpointMemory(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("FLEETD_TEST_ENDPOINTS"))
	if n == 0 {
		t.Skip("FLEETD_TEST_ENDPOINTS is not set")
	}
	d := startTestServer(t, nil)
	var addresses strings.Builder
	for i := range n {
		_, secret, err := d.Endpoints.Create(t.Context(), testOperator, fmt.Sprintf("e%d", i), endpoint.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&addresses, "ws://%s/mcp_endpoint/mcp/?token=%s\n", d.http, secret)
	}
	resident := func() int {
		debug.FreeOSMemory()
		time.Sleep(2 * time.Second)
		debug.FreeOSMemory()
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Skip(err)
		}
		_, rest, _ := strings.Cut(string(status), "VmRSS:")
		var kB int
		_, _ = fmt.Sscan(rest, &kB)
		return kB
	}
	before := resident()
	providers := exec.Command(os.Args[0], "-test.run=^TestEndpointProviders$", "-test.timeout=10m")
	providers.Env = append(os.Environ(), "FLEETD_TEST_PROVIDERS=1")
	providers.Stdin = strings.NewReader(addresses.String())
	if err := providers.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = providers.Wait() }()
	defer func() { _ = providers.Process.Kill() }()
	connected := func() (count int) {
		for i := range n {
			if d.host.Introduced(endpoint.DeviceOf(fmt.Sprintf("e%d", i))) {
				count++
			}
		}
		return count
	}
	d.eventually("all providers connected", func() bool { return connected() == n })
	time.Sleep(20 * time.Second) // pings of both kinds
	after := resident()
	if got := connected(); got != n {
		t.Errorf("%d of %d are still connected", got, n)
	}
	t.Logf("%d providers: %d kB before, %d kB after: %.1f kB each", n, before, after, float64(after-before)/float64(n))
}

// TestEndpointProviders is the process of the providers of TestEndpointMemory.
func TestEndpointProviders(t *testing.T) {
	if os.Getenv("FLEETD_TEST_PROVIDERS") == "" {
		t.Skip("started by TestEndpointMemory")
	}
	var all sync.WaitGroup
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		ws, _, err := websocket.DefaultDialer.Dial(lines.Text(), nil)
		if err != nil {
			t.Fatal(err)
		}
		s := &rawSocket{t: t, Conn: ws}
		all.Go(func() { _ = s.serve(nil) })
	}
	all.Wait()
}
