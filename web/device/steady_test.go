package device_test

import (
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"fleetd/fleet/picture"
	"fleetd/web/device"
	"fleetd/web/request"
)

// A picture or core dump that arrives slower than any real device sends is not stored and occupies
// no connection, whether its link is valid or not. An upload at a modem's pace is stored.
func TestUploadsArriveSteadily(t *testing.T) {
	s := newDumpSite(t)
	router := chi.NewRouter()
	device.New(device.Options{Snapshots: s.snapshots, CoreDumps: s.dumps,
		VisionTokens: picture.NewVisionTokens(picture.VisionTokensOptions{Secret: make([]byte, 32), PublicURL: s.URL}),
		UploadPace:   request.Pace{Stall: 200 * time.Millisecond, Rate: 20_000, Whole: 5 * time.Second}}).Routes(router)
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	const form = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n"
	send := func(path string, size, perTenth int) time.Duration {
		t.Helper()
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		const end = "\r\n--x--\r\n"
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nDevice-Id: %s\r\n"+
			"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: %d\r\n\r\n%s",
			path, unit, len(form)+size+len(end), form)
		began := time.Now()
		go func() {
			for data := noise(size); len(data) > 0; data = data[min(perTenth, len(data)):] {
				if _, err := c.Write(data[:min(perTenth, len(data))]); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
			_, _ = io.WriteString(c, end)
		}()
		_, _ = io.ReadAll(c) // until the server closes
		return time.Since(began)
	}
	path := func() string { return s.url(t, time.Minute)[len(s.URL):] }
	for _, p := range []string{path(), "/u/nobody", picture.VisionPath} {
		if took := send(p, 50_000, 100); took > 4*time.Second {
			t.Errorf("%s: held for %s", p, took)
		}
	}
	if kept := s.kept(t); len(kept) != 0 {
		t.Errorf("kept %v", kept)
	}
	send(path(), 40_000, 5_000)
	if kept := s.kept(t); len(kept) != 1 || kept[0].Size != 40_000 {
		t.Errorf("kept %v", kept)
	}
}
