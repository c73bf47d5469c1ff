//go:build !linux

package voice

import (
	"net"
	"net/netip"
)

// A reader reads one datagram at a time.
type reader struct {
	conn *net.UDPConn
	data [maxPacket + 1]byte
	n    int
	from netip.AddrPort
}

func newReader(conn *net.UDPConn) *reader { return &reader{conn: conn} }

func (r *reader) read() (n int, err error) {
	if r.n, r.from, err = r.conn.ReadFromUDPAddrPort(r.data[:]); err != nil {
		return 0, err
	}
	return 1, nil
}

func (r *reader) datagram(int) ([]byte, netip.AddrPort) {
	return r.data[:r.n], netip.AddrPortFrom(r.from.Addr().Unmap(), r.from.Port())
}
