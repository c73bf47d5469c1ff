package voice

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of this file return at once, and bypass Go's scheduler. In a process that
// sleeps between frames, notifying the scheduler costs more than the call, because it wakes a
// thread.

const direct = true

// writeNow writes to a socket without waiting.
func writeNow(fd uintptr, p []byte) (int, error) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))),
		uintptr(len(p)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// readNow reads from a socket without waiting. It reports false if there is
// nothing to read yet.
func readNow(fd uintptr, p []byte) (n int, ready bool, err error) {
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))),
			uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			return 0, false, nil
		case errno != 0:
			return 0, true, errno
		case n == 0:
			return 0, true, io.EOF
		}
		return int(n), true, nil
	}
}

// A sender sends datagrams without waiting. A datagram is lost if the system has no room for it.
// A sender is not safe for concurrent use.
type sender struct {
	raw    syscall.RawConn
	inet6  bool
	packet []byte
	name   unix.RawSockaddrInet6 // large enough for both families
	length uintptr
	errno  syscall.Errno
	once   func(fd uintptr)
}

func newSender(conn *net.UDPConn) *sender {
	s := new(sender)
	s.raw, _ = conn.SyscallConn() // fails only for a nil connection
	_ = s.raw.Control(func(fd uintptr) {
		domain, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		s.inet6 = domain == unix.AF_INET6
	})
	s.once = func(fd uintptr) {
		_, _, s.errno = syscall.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(s.packet))),
			uintptr(len(s.packet)), unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(&s.name)), s.length)
	}
	return s
}

func (s *sender) send(packet []byte, to netip.AddrPort) bool {
	s.packet = packet
	port := (*[2]byte)(unsafe.Pointer(&s.name.Port)) // at the same offset in both families
	binary.BigEndian.PutUint16(port[:], to.Port())
	if s.inet6 {
		s.name.Family, s.name.Addr, s.length = unix.AF_INET6, to.Addr().As16(), unix.SizeofSockaddrInet6
	} else {
		if !to.Addr().Is4() {
			return false
		}
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.name))
		four.Family, four.Addr, s.length = unix.AF_INET, to.Addr().As4(), unix.SizeofSockaddrInet4
	}
	return s.raw.Control(s.once) == nil && s.errno == 0
}
