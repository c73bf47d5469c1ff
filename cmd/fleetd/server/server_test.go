package server

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/broker/sim"
	"fleetd/fleet/fleettest"
)

// Two servers in one process share nothing: neither devices nor metrics, nor
// their end.
func TestTwoServersInOneProcess(t *testing.T) {
	t.Parallel()
	one, two := startTestServer(t, nil), startTestServer(t, nil)
	one.simulate(sim.Options{Devices: 1, Seed: 1, TimeScale: 0.1, BootDelay: 10 * time.Millisecond})
	two.simulate(sim.Options{Devices: 2, Seed: 2, TimeScale: 0.1, BootDelay: 10 * time.Millisecond,
		FirstMAC: "02:f1:ee:00:00:01"})
	devices := map[*testServer][]deviceView{one: one.listed(1), two: two.listed(2)}
	for d, n := range map[*testServer]string{one: "1", two: "2"} {
		if metrics := d.metricsText(); !strings.Contains(metrics, "\nfleetd_mqtt_connections "+n+"\n") {
			t.Errorf("the server with %s devices does not count %s connections", n, n)
		}
	}
	for _, d := range devices[two] {
		if d.ID == devices[one][0].ID {
			t.Errorf("%s is a device of both", d.ID)
		}
	}

	one.Close()
	for _, addr := range []string{one.http, one.mqtt, one.admin} {
		if conn, err := net.Dial("tcp", addr); err == nil {
			conn.Close()
			t.Errorf("%s is open after Close", addr)
		}
	}
	var call struct{ State string }
	two.rest("POST", "/devices/"+devices[two][0].ID+"/calls", map[string]any{"tool": "self.get_device_status"}, &call)
	if call.State != "succeeded" {
		t.Errorf("when the other server stopped, a call ended %q", call.State)
	}
	one.Close() // a second time does nothing
}

// After an error Start leaves nothing: its addresses are free again.
func TestStartLeavesNothingAfterAnError(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := fleettest.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	_, err = Start(t.Context(), Config{Database: Database{DataDir: t.TempDir()}, HTTPAddr: free,
		AdminAddr: "127.0.0.1:0", MQTTAddr: taken.Addr().String(), Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "--mqtt-addr") {
		t.Fatalf("started on an address in use: %v", err)
	}
	ln, err := net.Listen("tcp", free)
	if err != nil {
		t.Fatalf("the HTTP address is still in use: %v", err)
	}
	ln.Close()
}

// Parts stop one after another, the latest first.
func TestStopOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStages(slog.New(slog.DiscardHandler))
		var stopped []string
		for _, name := range []string{"a", "b", "c"} {
			s.run(name, func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(time.Second)
				stopped = append(stopped, name)
				return nil
			})
		}
		s.stop()
		if want := []string{"c", "b", "a"}; !slices.Equal(stopped, want) {
			t.Errorf("stopped %v, want %v", stopped, want)
		}
	})
}

// Parts that hang delay Close no longer than it promises, and the others stop.
func TestStopInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStages(slog.New(slog.DiscardHandler))
		ended, release := make(chan struct{}), make(chan struct{})
		s.run("good", func(ctx context.Context) error {
			<-ctx.Done()
			close(ended)
			return nil
		})
		for range 5 {
			s.onStop("hangs", func() { <-release })
		}
		begin := time.Now()
		s.stop()
		if took := time.Since(begin); took > closeTimeout {
			t.Errorf("took %v, want %v at most", took, closeTimeout)
		}
		<-ended
		close(release)
	})
}

// metricsText returns the metrics of the admin listener.
func (d *testServer) metricsText() string {
	d.t.Helper()
	resp, err := http.Get("http://" + d.admin + "/metrics")
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return string(text)
}
