package request

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// The unread rest of a body occupies its connection for seconds only, even if the handler lifted
// the deadline.
func TestRestOfABody(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(HurryRest(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		w.WriteHeader(http.StatusNotFound)
	})))
	defer server.Close()
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\na")
	_ = c.SetReadDeadline(time.Now().Add(6 * restTimeout))
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("the connection stays: %v", err)
	}
}
