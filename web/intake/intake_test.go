package intake_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"fleetd/web/intake"
)

// from is a connection with a fake remote address.
type from struct {
	net.Conn
	addr string
}

func (f from) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(f.addr))
}

func TestBoundOfAnAddress(t *testing.T) {
	b := intake.New(intake.Options{Max: 6, MaxPerAddress: 2,
		Shared: func(a netip.Addr) bool { return a == netip.MustParseAddr("10.0.0.1") }})
	closed := func(addr string) bool {
		mine, theirs := net.Pipe()
		c := from{mine, addr}
		b.ConnState(c, http.StateNew)
		go func() { _, _ = theirs.Write([]byte("x")) }()
		_, err := mine.Read(make([]byte, 1))
		return err != nil
	}
	for i, c := range []struct {
		addr string
		want bool
	}{{"203.0.113.1:1", false}, {"203.0.113.1:2", false}, {"203.0.113.1:3", true}, {"[2001:db8::1]:1", false},
		{"[2001:db8::2]:1", false}, {"[2001:db8::3]:1", true}, {"10.0.0.1:1", false}, {"127.0.0.1:1", false}, {"127.0.0.1:2", true}} {
		if got := closed(c.addr); got != c.want {
			t.Errorf("connection %d of %s: closed %v, want %v", i, c.addr, got, c.want)
		}
	}
	if b.Refused() != 3 {
		t.Errorf("%d refused", b.Refused())
	}
}

// A server over its bound closes further connections. It accepts connections again after others
// have ended or have become WebSockets.
func TestBoundOfAServer(t *testing.T) {
	left := make(chan struct{}, 1)
	b := intake.New(intake.Options{Max: 1})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ws" {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
			t.Cleanup(func() { c.Close() })
		}
	}))
	s.Config.ConnState = func(c net.Conn, state http.ConnState) {
		b.ConnState(c, state)
		if state == http.StateClosed {
			left <- struct{}{}
		}
	}
	s.Start()
	defer s.Close()
	ask := func(path string) (net.Conn, string) {
		t.Helper()
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		line, _ := bufio.NewReader(c).ReadString('\n') // "" if it was closed
		return c, line
	}
	first, line := ask("/")
	if line == "" {
		t.Fatal("the first connection was closed")
	}
	if _, line := ask("/"); line != "" {
		t.Errorf("a connection beyond the bound: %q", line)
	}
	<-left // the refused one
	first.Close()
	<-left
	if _, line := ask("/ws"); line == "" {
		t.Error("closed, although the first has ended")
	}
	if _, line := ask("/"); line == "" {
		t.Error("a WebSocket counts as a connection of HTTP")
	}
}
