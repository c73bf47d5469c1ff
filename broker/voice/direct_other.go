//go:build !linux

package voice

import (
	"errors"
	"net"
	"net/netip"
)

const direct = false

func writeNow(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

func readNow(uintptr, []byte) (int, bool, error) { return 0, true, errors.ErrUnsupported }

// A sender sends datagrams.
type sender struct{ conn *net.UDPConn }

func newSender(conn *net.UDPConn) *sender { return &sender{conn} }

func (s *sender) send(packet []byte, to netip.AddrPort) bool {
	_, err := s.conn.WriteToUDPAddrPort(packet, to)
	return err == nil
}
