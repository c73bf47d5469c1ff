package outbound_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"fleetd/fleet/outbound"
)

// errOpen prevents each connection from being opened, so no test leaves loopback.
var errOpen = errors.New("would be opened")

// resolver returns a resolver that answers every name with its listed addresses.
func resolver(t *testing.T, names map[string][]string) *net.Resolver {
	t.Helper()
	answer := func(query []byte) []byte {
		var m dnsmessage.Message
		if err := m.Unpack(query); err != nil || len(m.Questions) != 1 {
			return nil
		}
		q := m.Questions[0]
		m.Response, m.Authoritative, m.Additionals = true, true, nil
		name := q.Name.String()
		for _, text := range names[name[:len(name)-1]] {
			head := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
			switch ip := netip.MustParseAddr(text); {
			case ip.Is4() && q.Type == dnsmessage.TypeA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: ip.As4()}})
			case ip.Is6() && q.Type == dnsmessage.TypeAAAA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: ip.As16()}})
			}
		}
		out, _ := m.Pack() // an unpacked message always packs
		return out
	}
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		mine, theirs := net.Pipe()
		go func() { // no net.PacketConn, so each message has a length prefix, as over TCP
			defer theirs.Close()
			for {
				var head [2]byte
				if _, err := theirs.Read(head[:]); err != nil {
					return
				}
				query := make([]byte, int(head[0])<<8|int(head[1]))
				if _, err := theirs.Read(query); err != nil {
					return
				}
				out := answer(query)
				if _, err := theirs.Write(append([]byte{byte(len(out) >> 8), byte(len(out))}, out...)); err != nil {
					return
				}
			}
		}()
		return mine, nil
	}}
}

// guard returns a Guard that connects to nothing and records the addresses it would connect
// to.
func guard(t *testing.T, names map[string][]string, allow ...string) (*outbound.Guard, *[]string) {
	var opened []string
	return outbound.New(outbound.Options{Allow: allow, Resolver: resolver(t, names),
		Own: func() ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.168.7.5"),
				netip.MustParseAddr("2001:db8::5"), netip.MustParseAddr("fe80::5")}, nil
		},
		Judged: func(ap netip.AddrPort) error {
			opened = append(opened, ap.String())
			return errOpen
		}}), &opened
}

// reservedAddresses are refused in every form if they are reached through a name.
var reservedAddresses = []string{"169.254.169.254", "169.254.1.1", "fe80::1", "fd00:ec2::254", "100.100.100.200",
	"192.0.0.192", "168.63.129.16", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1",
	"2002:7f00:1::", "2001:0:1::1", "::169.254.169.254", "::127.0.0.1", "::ffff:169.254.169.254", "::ffff:100.100.100.200",
	"::ffff:0:169.254.169.254", "224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1", "0.1.2.3", "fd20:ce::254"}

// ownAddresses are addresses of this host.
var ownAddresses = []string{"127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1", "192.168.7.5",
	"::ffff:192.168.7.5", "2001:db8::5"}

func TestNamesOfReservedAddressesAreRefused(t *testing.T) {
	for _, ip := range reservedAddresses {
		g, opened := guard(t, map[string][]string{"voice.example": {ip}})
		for by, dial := range map[string]outbound.DialFunc{"an admin": g.DialWritten,
			"a voice server": g.DialFrom("voice.example:80"), "another": g.DialFrom("other.example:80")} {
			if _, err := dial(t.Context(), "tcp", "voice.example:80"); !errors.Is(err, outbound.ErrNotAllowed) || *opened != nil {
				t.Errorf("a name that %s wrote leads to %s: %v, opened %v", by, ip, err, *opened)
			}
		}
		literal := net.JoinHostPort(ip, "80")
		for _, written := range []string{"other.example:80", net.JoinHostPort(ip, "81")} {
			if _, err := g.DialFrom(written)(t.Context(), "tcp", literal); !errors.Is(err, outbound.ErrNotAllowed) {
				t.Errorf("%s, handed out by %s: %v", literal, written, err)
			}
		}
		if _, err := g.DialWritten(t.Context(), "tcp", literal); !errors.Is(err, errOpen) {
			t.Errorf("%s, which an admin wrote: %v", literal, err)
		}
	}
}

func TestThisHostIsReachedAtWrittenPortsAlone(t *testing.T) {
	for _, ip := range ownAddresses {
		g, opened := guard(t, map[string][]string{"me.example": {ip}})
		for _, addr := range []string{"me.example:9464", net.JoinHostPort(ip, "9464")} {
			for _, written := range []string{"me.example:8000", net.JoinHostPort(ip, "8000"), "other.example:9464", ""} {
				if _, err := g.DialFrom(written)(t.Context(), "tcp", addr); !errors.Is(err, outbound.ErrNotAllowed) {
					t.Errorf("%s (%s), handed out by %s: %v, opened %v", addr, ip, written, err, *opened)
				}
			}
			for by, dial := range map[string]outbound.DialFunc{"written": g.DialWritten, "handed out by itself": g.DialFrom(addr)} {
				if _, err := dial(t.Context(), "tcp", addr); !errors.Is(err, errOpen) {
					t.Errorf("%s (%s), %s: %v", addr, ip, by, err)
				}
			}
		}
	}
	g, opened := guard(t, map[string][]string{"me.example": {"127.0.0.1"}}, "127.0.0.1:8000")
	for addr, want := range map[string]error{"me.example:8000": errOpen, "127.0.0.1:8000": errOpen, "[::1]:8000": outbound.ErrNotAllowed,
		"me.example:8001": outbound.ErrNotAllowed} {
		if _, err := g.DialFrom("voice.example:1")(t.Context(), "tcp", addr); !errors.Is(err, want) {
			t.Errorf("%s with 127.0.0.1:8000 allowed: %v, opened %v", addr, err, *opened)
		}
	}
}

func TestOtherAddressesAreReached(t *testing.T) {
	for _, ip := range []string{"192.168.7.6", "10.0.0.1", "172.16.0.1", "100.64.0.1", "203.0.113.1", "2001:db8::6", "fd00::1"} {
		g, opened := guard(t, map[string][]string{"voice.example": {ip}})
		if _, err := g.DialFrom("other.example:80")(t.Context(), "tcp", "voice.example:8000"); !errors.Is(err, errOpen) {
			t.Errorf("%s: %v", ip, err)
		}
		if want := net.JoinHostPort(ip, "8000"); len(*opened) != 1 || (*opened)[0] != want {
			t.Errorf("opened %v, want %s", *opened, want)
		}
	}
}

// A connection to a name with several addresses uses only the allowed ones.
func TestEachResolvedAddressIsJudged(t *testing.T) {
	g, opened := guard(t, map[string][]string{"mixed.example": {"127.0.0.1", "169.254.169.254", "203.0.113.9"}})
	if _, err := g.DialFrom("other.example:80")(t.Context(), "tcp", "mixed.example:9464"); err == nil {
		t.Error("no error")
	}
	if len(*opened) != 1 || (*opened)[0] != "203.0.113.9:9464" {
		t.Errorf("opened %v, want 203.0.113.9:9464 alone", *opened)
	}
}

func TestUnknownInterfacesAreRefused(t *testing.T) {
	g := outbound.New(outbound.Options{Own: func() ([]netip.Addr, error) { return nil, errors.New("no netlink") },
		Judged: func(netip.AddrPort) error { return errOpen }})
	if _, err := g.DialFrom("")(t.Context(), "tcp", "203.0.113.1:80"); !errors.Is(err, outbound.ErrNotAllowed) {
		t.Errorf("cannot determine the addresses of this host: %v", err)
	}
}

// A client reaches the configured address and follows it nowhere else.
func TestClientFollowsNoRedirect(t *testing.T) {
	var reached atomic.Bool
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer inside.Close()
	outside := httptest.NewServer(http.RedirectHandler(inside.URL, http.StatusTemporaryRedirect))
	defer outside.Close()
	g := outbound.New(outbound.Options{})
	c := g.Client(10*time.Second, &http.Transport{DisableKeepAlives: true})
	resp, err := c.Post(outside.URL, "text/plain", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusTemporaryRedirect || reached.Load() {
		t.Errorf("status %d, the address of the redirect was reached: %v", resp.StatusCode, reached.Load())
	}
	// Even a client that follows redirects opens no connection that is not allowed.
	follows := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: g.DialFrom(outside.Listener.Addr().String())}}
	if _, err := follows.Get(outside.URL); !errors.Is(err, outbound.ErrNotAllowed) || reached.Load() {
		t.Errorf("a redirect to another port of this host: %v, reached: %v", err, reached.Load())
	}
}
