package broker

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// proxyHeader returns a proxy's header for a connection from the address.
func proxyHeader(t testing.TB, from string) []byte {
	t.Helper()
	h := proxyproto.HeaderProxyFromAddrs(2, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from)),
		net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from)))
	b, err := h.Format()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// withTLVs lengthens a header by the fields that proxies may add.
func withTLVs(header []byte, n int) []byte {
	tlv := append(binary.BigEndian.AppendUint16([]byte{0xe0}, uint16(n-3)), make([]byte, n-3)...)
	header = append(slices.Clone(header), tlv...)
	binary.BigEndian.PutUint16(header[14:], uint16(len(header)-16))
	return header
}

func behindProxy(o *options) { o.ProxyFrom = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }

// remotes records the addresses of connections.
type remotes struct {
	*domain
	from chan string
}

func (r remotes) Connected(c fleet.Connection) { r.from <- c.RemoteAddr }

func TestProxyHeader(t *testing.T) {
	from := make(chan string, 10)
	b, _, pool := startTLS(t, func(o *options) {
		behindProxy(o)
		o.Devices = remotes{o.Devices.(*domain), from}
	})
	local := append(slices.Clone(proxyproto.SIGV2), 0x20, 0, 0, 0)
	tests := []struct {
		name   string
		header []byte
		want   string
	}{
		{"IPv4", proxyHeader(t, "192.0.2.7:4711"), "192.0.2.7"},
		{"IPv6", proxyHeader(t, "[2001:db8::7]:4711"), "2001:db8::7"},
		{"with more", withTLVs(proxyHeader(t, "192.0.2.8:4711"), maxProxyHeader-28), "192.0.2.8"},
		{"the proxy itself", local, "127.0.0.1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := dialRaw(t, b.Addr())
			d.write(append(tt.header, connectPacket{clientID: testClientID(1), keepalive: 60}.bytes()...)) // in one piece
			if kind, _, err := d.read(); kind != 0x20 || err != nil {
				t.Fatalf("packet %#x, %v, want CONNACK", kind, err)
			}
			if got := <-from; got != tt.want {
				t.Errorf("connection from %s, want %s", got, tt.want)
			}
			s := dialRaw(t, b.TLSAddr())
			for _, c := range tt.header { // byte by byte
				s.write([]byte{c})
			}
			conn := tls.Client(s.conn, &tls.Config{RootCAs: pool, ServerName: "fleet.test"})
			s.conn, s.r = conn, bufio.NewReader(conn)
			if code := s.connect(connectPacket{clientID: testClientID(2)}); code != 0 {
				t.Fatalf("CONNACK %d", code)
			}
			if got := <-from; got != tt.want {
				t.Errorf("connection over TLS from %s, want %s", got, tt.want)
			}
		})
	}
}

// From a proxy's address anything but a header is refused, however it arrives.
func TestBadProxyHeader(t *testing.T) {
	good := proxyHeader(t, "192.0.2.7:4711")
	change := func(at int, to byte) []byte { h := slices.Clone(good); h[at] = to; return h }
	tests := map[string]struct {
		said    []byte
		reason  string
		silence bool // the broker waits for more
	}{
		"no header":         {connectPacket{clientID: testClientID(1)}.bytes(), "proxy_header", false},
		"version 1":         {[]byte("PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\n"), "proxy_header", false},
		"version 3":         {change(12, 0x31), "proxy_header", false},
		"unknown command":   {change(12, 0x22), "proxy_header", false},
		"unknown family":    {change(13, 0x41), "proxy_header", false},
		"UDP":               {change(13, 0x12), "proxy_header", false},
		"about no address":  {append(slices.Clone(proxyproto.SIGV2), 0x21, 0, 0, 0), "proxy_header", false},
		"short address":     {append(slices.Clone(proxyproto.SIGV2), 0x21, 0x11, 0, 4, 1, 2, 3, 4), "proxy_header", false},
		"too long":          {withTLVs(good, maxProxyHeader-27), "proxy_header", false},
		"longest announced": {append(slices.Clone(proxyproto.SIGV2), 0x21, 0x11, 0xff, 0xff), "proxy_header", false},
		"half a header":     {good[:20], "proxy_header", true},
		"two headers":       {append(slices.Clone(good), good...), "malformed_connect", false},
		"silence":           {nil, "proxy_header", true},
		"silence after it":  {good, "silent", true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _, _ := startTLS(t, func(o *options) {
				behindProxy(o)
				if o.ConnectTimeout = deadline; tt.silence {
					o.ConnectTimeout = time.Second
				}
			})
			d := dialRaw(t, b.Addr())
			d.write(tt.said)
			if err := d.ended(deadline); err != nil {
				t.Error(err)
			}
			fleettest.Eventually(t, "counting", func() bool { return b.Stats().Refused[tt.reason] == 1 })
			s := dialRaw(t, b.TLSAddr())
			s.write(tt.said)
			if err := s.ended(deadline); err != nil {
				t.Errorf("over TLS: %v", err)
			}
			fleettest.Eventually(t, "both are closed", func() bool {
				s := b.Stats()
				return s.Sockets == 0 && s.Handshakes == 0
			})
		})
	}
}

// From other addresses a header is refused, since it is no CONNECT.
func TestProxyHeaderFromElsewhere(t *testing.T) {
	b, _, _ := startTLS(t, func(o *options) { o.ProxyFrom = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} })
	for _, addr := range []net.Addr{b.Addr(), b.TLSAddr()} {
		d := dialRaw(t, addr)
		d.write(append(proxyHeader(t, "192.0.2.7:4711"), connectPacket{clientID: testClientID(1)}.bytes()...))
		if err := d.ended(deadline); err != nil {
			t.Error(err)
		}
	}
	fleettest.Eventually(t, "counting", func() bool {
		s := b.Stats()
		return s.Refused["malformed_connect"] == 1 && s.HandshakesFailed == 1
	})
	connectRaw(t, b, connectPacket{clientID: testClientID(1)})
}

// The address in the header is logged, and the throttle of the log uses it.
func TestProxiedAddressIsLogged(t *testing.T) {
	log := new(lockedWriter)
	b, _ := start(t, func(o *options) { behindProxy(o); o.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	d := dialRaw(t, b.Addr())
	wrong := connectPacket{clientID: testClientID(1), password: "wrong"}
	d.write(append(proxyHeader(t, "192.0.2.7:4711"), wrong.bytes()...))
	if err := d.ended(deadline); err != nil {
		t.Error(err)
	}
	if text := log.String(); !strings.Contains(text, "remote=192.0.2.7 ") || strings.Contains(text, "remote=127.0.0.1") {
		t.Errorf("log:\n%s", text)
	}
}
