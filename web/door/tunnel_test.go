package door_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"fleetd/fleet/fleettest"
	"fleetd/web/door"
)

// A tunnel leads to the core that leads, and ends with its term.
func TestTunnel(t *testing.T) {
	a := newAuthority(t)
	e := startEdge(t, a, nil)
	ended := make(chan string, 10)
	repeat := ownHandler{Handler: site(), tunnels: map[string]func(string, net.Conn){"x": func(edge string, conn net.Conn) {
		_, _ = io.WriteString(conn, edge+" ")
		_, _ = io.Copy(conn, conn)
		ended <- edge
	}}}
	says := func(conn io.ReadWriteCloser, want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	ends := func(what string, conn io.Reader) {
		t.Helper()
		if rest, err := io.ReadAll(conn); len(rest) > 0 {
			t.Errorf("%s: %q, %v", what, rest, err)
		}
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the core's end stays", what)
		}
	}
	open := func() io.ReadWriteCloser {
		t.Helper()
		conn, err := e.Tunnel(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		says(conn, "edge-1 ")
		_, _ = io.WriteString(conn, "hello")
		says(conn, "hello")
		return conn
	}

	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := e.Tunnel(short, "x"); code(err) != "no_leader" {
		t.Errorf("without a leader: %v", err)
	}
	first := startCore(t, a, 1, repeat)
	go e.leaders.Announce(first.leader())
	conn := open() // it has waited
	conn.Close()
	ends("the edge closed it", strings.NewReader(""))

	conn = open()
	second := startCore(t, a, 2, repeat)
	e.announce(t, second.leader())
	ends("another core leads", conn)
	conn = open()
	second.die()
	ends("the core died", conn)

	third := startCore(t, a, 3, repeat)
	e.announce(t, third.leader())
	conn = open()
	third.stop()
	ends("the core stopped", conn)

	for term, old := range []http.Handler{site(), ownHandler{Handler: site(), own: http.NotFoundHandler()}} {
		c := startCore(t, a, int64(4+term), old)
		e.announce(t, c.leader())
		if _, err := e.Tunnel(t.Context(), "x"); !errors.Is(err, door.ErrNoTunnel) {
			t.Errorf("a core of an earlier version: %v", err)
		}
	}
}

// A client cannot open a tunnel in the name of its edge.
func TestClientOpensNoTunnel(t *testing.T) {
	a := newAuthority(t)
	e := startEdge(t, a, nil)
	opened := make(chan struct{}, 1)
	c := startCore(t, a, 1, ownHandler{Handler: site(), tunnels: map[string]func(string, net.Conn){
		"x": func(string, net.Conn) { opened <- struct{}{} }}})
	e.announce(t, c.leader())
	if resp, _ := e.do(t, "GET", "/cluster/x", nil, "Connection", "Upgrade", "Upgrade", "fleetd-tunnel", "Fleetd-Term",
		"1"); resp.StatusCode == http.StatusSwitchingProtocols {
		t.Error(resp.Status)
	}
	conn, err := e.Tunnel(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	<-opened // by the edge
	fleettest.Eventually(t, "no other tunnel", func() bool { return len(opened) == 0 })
}
