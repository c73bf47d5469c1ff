package sim

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/fleet/fleettest"
)

// A mosquitto is an independent broker in a separate process.
type mosquitto struct {
	addr string
	mu   sync.Mutex
	log  []string
}

// startMosquitto tries another port if another program takes the port first.
func startMosquitto(t *testing.T, logTypes string) *mosquitto {
	t.Helper()
	path := "/usr/sbin/mosquitto"
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not installed (Debian package mosquitto)", path)
	}
	for range 5 {
		if m := tryMosquitto(t, path, logTypes); m != nil {
			return m
		}
	}
	t.Fatal("mosquitto does not start")
	return nil
}

func tryMosquitto(t *testing.T, path, logTypes string) *mosquitto {
	// No other program connects from such an address, so a free port stays free.
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), 1+rand.IntN(254), 1+rand.IntN(254))
	ln, err := net.Listen("tcp4", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	m := &mosquitto{addr: ln.Addr().String()}
	port := ln.Addr().(*net.TCPAddr).Port
	ln.Close()
	config := filepath.Join(t.TempDir(), "mosquitto.conf")
	text := fmt.Sprintf("listener %d %s\nallow_anonymous true\nlog_dest stderr\n%s", port, host, logTypes)
	if os.Getuid() == 0 {
		text += "user root\n"
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-c", config)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		m.follow(bufio.NewScanner(stderr))
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-read
		_ = cmd.Wait()
	})
	for {
		if conn, err := net.Dial("tcp4", m.addr); err == nil {
			conn.Close()
			return m
		}
		select {
		case <-read: // it has ended
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (m *mosquitto) follow(lines *bufio.Scanner) {
	for lines.Scan() {
		m.mu.Lock()
		m.log = append(m.log, lines.Text())
		m.mu.Unlock()
	}
}

func (m *mosquitto) count(text string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, line := range m.log {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// otaServer sends every device to one broker.
func otaServer(t *testing.T, broker string, keepalive int) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"mqtt":{"endpoint":"%s","client_id":"%s","publish_topic":"up","keepalive":%d}}`, broker,
			r.Header.Get("Device-Id"), keepalive)
	}))
	t.Cleanup(s.Close)
	return s.URL + "/ota/"
}

func TestMosquitto(t *testing.T) {
	t.Parallel()
	m := startMosquitto(t, "log_type all\n")
	b := &backend{t: t, http: &httptest.Server{}}
	b.http.URL = strings.TrimSuffix(otaServer(t, m.addr, 4), "/ota/")
	t.Run("session", func(t *testing.T) {
		inner := &backend{t: t, http: b.http}
		f := inner.start(Options{Devices: 3, TimeScale: 0.01})
		fleettest.Eventually(t, "3 connected", func() bool { return f.Stats().Connected == 3 })
		f.Device(0).Talk()
		id := f.Device(0).ID()
		fleettest.Eventually(t, "hello", func() bool {
			return m.count("Received PUBLISH from "+id+" (d0, q0, r0, m0, 'up'") == 1
		})
		fleettest.Eventually(t, "PINGREQ for twice the keepalive", func() bool {
			return m.count("Received PINGREQ from "+id) >= 4
		})
		if s := f.Stats(); s.Connected != 3 || s.Connects != 3 {
			t.Errorf("%+v", s)
		}
		if m.count("Received SUBSCRIBE") != 0 || m.count("(p2, c1, k4)") != 3 {
			t.Error("a CONNECT or SUBSCRIBE that the firmware does not send")
		}
	})
	fleettest.Eventually(t, "3 DISCONNECTs", func() bool { return m.count("Received DISCONNECT") == 3 })
}

// TestMemory limits an idle device to 24 KiB of heap and stack; the race detector doubles the
// stacks. The broker is another process, so only the devices count.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("connects 1,000 devices")
	}
	const devices = 1000
	limit := int64(24 << 10)
	if raceDetector {
		limit *= 2
	}
	m := startMosquitto(t, "log_type error\n")
	b := &backend{t: t, http: &httptest.Server{}}
	b.http.URL = strings.TrimSuffix(otaServer(t, m.addr, 120), "/ota/")
	before := inUse()
	goroutines := runtime.NumGoroutine()
	idle := slices.DeleteFunc(BoardNames(), func(name string) bool { return name == "py-desktop" }) // connects to talk
	f := b.start(Options{Devices: devices, ConnectRate: 1000, TimeScale: 0.1, Boards: idle})
	fleettest.Eventually(t, "all connected", func() bool { return f.Stats().Connected == devices })
	fleettest.Eventually(t, "polls closed", func() bool { return runtime.NumGoroutine()-goroutines < devices+50 })
	each := limit + 1
	for range 5 { // the collector is not always done with what the polls left
		each = min(each, (inUse()-before)/devices)
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("%d bytes and %.2f goroutines per idle device", each, float64(runtime.NumGoroutine()-goroutines)/devices)
	if each > limit {
		t.Errorf("%d bytes per idle device, want at most %d", each, limit)
	}
}

// inUse returns the size of heap and stacks after a collection. Each collection halves the stacks
// at most, so inUse runs several.
func inUse() int64 {
	for range 4 {
		runtime.GC()
	}
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapInuse + s.StackInuse)
}
