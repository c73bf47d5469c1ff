// Package outbound decides which addresses fleetd connects to: those of voice servers and the
// addresses that they return, of webhooks, and of the service that explains pictures. A
// [Guard] opens every connection to an address that can be chosen while fleetd runs. The
// addresses of the database and the mail server are set at start by a person who can start
// any program on this host.
//
// An address is checked after name resolution, for each connection and therefore for each
// redirect. Private networks are allowed, because voice servers and receivers of webhooks are
// there. Never allowed are addresses of this host at a port that no admin configured, and
// reserved addresses (link-local, multicast, metadata of clouds, IPv6 forms of an IPv4
// address) unless an admin configured that exact address.
//
// It does not depend on voice servers or webhooks. There is no lock and no goroutine.
package outbound

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// ErrNotAllowed means that fleetd may not connect to an address.
var ErrNotAllowed = errors.New("fleetd does not connect to this address")

// connectTimeout is the timeout of one connection, in addition to the context's.
const connectTimeout = 10 * time.Second

// Options configures a [Guard]. The zero value is ready to use.
type Options struct {
	// Allow lists further addresses, host:port, that an admin configured: the addresses that
	// a voice server on this host returns may be among them.
	Allow []string
	// Resolver resolves names. Default: the system's resolver.
	Resolver *net.Resolver
	// Own returns the addresses of this host. Default: those of its interfaces.
	Own func() ([]netip.Addr, error)
	// Judged is called with each address before the connection is opened, and can refuse it
	// with an error. Tests use it to open no connections.
	Judged func(netip.AddrPort) error
}

// A Guard opens connections. It is safe for concurrent use. A nil Guard has no options.
type Guard struct{ o Options }

// New returns a guard.
func New(o Options) *Guard {
	return &Guard{o}
}

// A DialFunc opens a connection, as [net.Dialer.DialContext] does.
type DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// DialWritten connects to an address that an admin configured.
func (g *Guard) DialWritten(ctx context.Context, network, addr string) (net.Conn, error) {
	return g.dial(ctx, network, addr, addr)
}

// DialFrom returns a DialFunc for the addresses that the server at the address written
// returns. Only that address itself counts as configured by an admin.
func (g *Guard) DialFrom(written string) DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		return g.dial(ctx, network, addr, written)
	}
}

func (g *Guard) dial(ctx context.Context, network, addr, written string) (net.Conn, error) {
	if g == nil {
		g = &Guard{}
	}
	configured := same(addr, written)
	for _, a := range g.o.Allow {
		configured = configured || same(addr, a)
	}
	d := net.Dialer{Timeout: connectTimeout, Resolver: g.o.Resolver,
		Control: func(_, address string, _ syscall.RawConn) error {
			resolved, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("%w: %s", ErrNotAllowed, address)
			}
			if err := g.judge(resolved, addr, configured); err != nil {
				return err
			}
			if g.o.Judged != nil {
				return g.o.Judged(resolved)
			}
			return nil
		}}
	return d.DialContext(ctx, network, addr)
}

// judge returns nil if the connection to resolved, an address of addr, may be opened.
// configured means that an admin configured addr with this port.
func (g *Guard) judge(resolved netip.AddrPort, addr string, configured bool) error {
	ip := resolved.Addr().WithZone("").Unmap()
	literal, _ := netip.ParseAddr(hostOf(addr))
	if configured && literal.WithZone("").Unmap() == ip {
		return nil
	}
	for _, a := range g.o.Allow {
		if ap, err := netip.ParseAddrPort(a); err == nil && ap.Port() == resolved.Port() && ap.Addr().Unmap() == ip {
			return nil
		}
	}
	own, err := g.isOwn(ip)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s: cannot determine the addresses of this host: %w", ErrNotAllowed, resolved, err)
	case own && !configured:
		return fmt.Errorf("%w: %s is an address of the host of fleetd; start fleetd with --allow-outbound %s if that is meant",
			ErrNotAllowed, resolved, resolved)
	case !own && isReserved(ip):
		return fmt.Errorf("%w: %s is reserved for other purposes", ErrNotAllowed, resolved)
	}
	return nil
}

// isOwn reports whether ip leads to this host.
func (g *Guard) isOwn(ip netip.Addr) (bool, error) {
	if ip.IsLoopback() || ip.IsUnspecified() {
		return true, nil
	}
	addrs := g.o.Own
	if addrs == nil {
		addrs = interfaceAddrs
	}
	all, err := addrs()
	for _, a := range all {
		if a.WithZone("").Unmap() == ip {
			return !ip.IsLinkLocalUnicast(), nil // link-local addresses are reserved in any case
		}
	}
	return false, err
}

// reserved are address ranges that contain no voice server and no receiver of webhooks.
// Loopback and 0.0.0.0 are checked before, as addresses of this host.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),          // "this network"
	netip.MustParsePrefix("169.254.0.0/16"),     // link-local, with the metadata of most clouds
	netip.MustParsePrefix("100.100.100.200/32"), // metadata of Alibaba Cloud
	netip.MustParsePrefix("192.0.0.0/24"),       // IETF assignments, with the metadata of Oracle Cloud
	netip.MustParsePrefix("168.63.129.16/32"),   // metadata of Azure
	netip.MustParsePrefix("224.0.0.0/4"),        // multicast
	netip.MustParsePrefix("240.0.0.0/4"),        // reserved, with broadcast
	netip.MustParsePrefix("::/96"),              // IPv4-compatible
	netip.MustParsePrefix("::ffff:0:0:0/96"),    // IPv4-translated (SIIT)
	netip.MustParsePrefix("64:ff9b::/96"),       // NAT64
	netip.MustParsePrefix("64:ff9b:1::/48"),     // NAT64 of the local network
	netip.MustParsePrefix("2001::/32"),          // Teredo
	netip.MustParsePrefix("2002::/16"),          // 6to4
	netip.MustParsePrefix("fe80::/10"),          // link-local
	netip.MustParsePrefix("fec0::/10"),          // site-local (deprecated)
	netip.MustParsePrefix("ff00::/8"),           // multicast
	netip.MustParsePrefix("fd00:ec2::254/128"),  // metadata of AWS
	netip.MustParsePrefix("fd20:ce::254/128"),   // metadata of Google Cloud
}

func isReserved(ip netip.Addr) bool {
	for _, p := range reserved {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// Client returns a client for addresses that admins configured. It follows no redirect,
// because its requests are meant only for that address. It uses a proxy from the environment,
// whose address the administrator also configured.
func (g *Guard) Client(timeout time.Duration, transport *http.Transport) *http.Client {
	transport.DialContext = g.DialWritten
	return &http.Client{Timeout: timeout, Transport: transport, CheckRedirect: Stay}
}

// Stay is a CheckRedirect that follows no redirect.
func Stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// same reports whether two texts have the same host and port.
func same(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB {
		return false
	}
	ipA, errA := netip.ParseAddr(hostA)
	ipB, errB := netip.ParseAddr(hostB)
	if errA == nil && errB == nil {
		return ipA.Unmap() == ipB.Unmap()
	}
	return strings.EqualFold(strings.TrimSuffix(hostA, "."), strings.TrimSuffix(hostB, "."))
}

// HostPort returns the host and port of a server's URL, "" if the URL is invalid.
func HostPort(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"ws": "80", "http": "80", "wss": "443", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func hostOf(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return host
}

// interfaceAddrs returns the addresses of this host's interfaces.
func interfaceAddrs() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	addrs := make([]netip.Addr, 0, len(all))
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				addrs = append(addrs, ip.Unmap())
			}
		}
	}
	return addrs, nil
}

// CheckAllow returns an error if a text is not a valid entry of Allow in [Options].
func CheckAllow(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if n, perr := net.LookupPort("tcp", port); err != nil || perr != nil || n < 1 || host == "" {
		return fmt.Errorf("invalid address %q; use host:port", addr)
	}
	return nil
}
