package device_test

import (
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"fleetd/web/device"
)

// The server ends a connection on which the body of a boot poll does not arrive.
func TestBodiesOfBootPollsArriveSoon(t *testing.T) {
	r := chi.NewMux()
	device.New(device.Options{BodyTimeout: 50 * time.Millisecond}).Routes(r)
	s := httptest.NewServer(r)
	defer s.Close()
	for _, path := range []string{"/xiaozhi/ota/", "/xiaozhi/ota", "/xiaozhi/ota/activate"} {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nDevice-Id: a0:85:e3:11:22:33\r\nClient-Id: c\r\n"+
			"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{", path)
		if _, err := io.ReadAll(c); err != nil { // until the server closes
			t.Errorf("%s: %v", path, err)
		}
	}
}
