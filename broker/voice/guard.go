package voice

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// An upstream is chosen by an admin; the addresses that it hands out are not. They
// are connected to unless they lead to this machine or to what only machines of
// its network may ask, such as a cloud's metadata. Private networks are allowed:
// voice servers stand there. The check is of the address that a name resolved to,
// at the time of the connection.

// metadata is the address of some clouds' metadata that no range below has.
var metadata = netip.MustParseAddr("fd00:ec2::254")

// reserved reports whether an address is one that an upstream may not lead to.
func reserved(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() || a.IsMulticast() || a == metadata
}

// guardedDial connects to what an upstream handed out. The upstream's own host is
// allowed wherever it is: the admin chose it.
func guardedDial(own string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		d := net.Dialer{Timeout: 10 * time.Second}
		if host, _, err := net.SplitHostPort(addr); err != nil || !strings.EqualFold(host, own) {
			d.Control = func(_, address string, _ syscall.RawConn) error {
				ap, err := netip.ParseAddrPort(address)
				if err != nil || reserved(ap.Addr()) {
					return fmt.Errorf("the voice server hands out the address %s, which it may not lead to", address)
				}
				return nil
			}
		}
		return d.DialContext(ctx, network, addr)
	}
}
