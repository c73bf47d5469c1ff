package voice

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batch is the maximum number of datagrams that one system call reads.
const batch = 32

// A reader reads datagrams in batches with recvmmsg. ReadBatch of
// golang.org/x/net does the same, but allocates an address for each datagram.
type reader struct {
	raw      syscall.RawConn
	messages [batch]struct {
		header unix.Msghdr
		length uint32
	}
	vectors [batch]unix.Iovec
	names   [batch]unix.RawSockaddrInet6 // large enough for both families
	data    [batch][maxPacket + 1]byte

	n     int
	errno syscall.Errno
	once  func(fd uintptr) bool // read, created once: a closure for each read would be an allocation
}

func newReader(conn *net.UDPConn) *reader {
	r := new(reader)
	r.raw, _ = conn.SyscallConn() // fails only for a nil connection
	for i := range r.messages {
		r.vectors[i].Base = &r.data[i][0]
		r.vectors[i].SetLen(len(r.data[i]))
		h := &r.messages[i].header
		h.Name = (*byte)(unsafe.Pointer(&r.names[i]))
		h.Iov = &r.vectors[i]
		h.SetIovlen(1)
	}
	r.once = r.receive
	return r
}

// read waits for datagrams and returns their number. They are valid until the next read.
func (r *reader) read() (int, error) {
	if err := r.raw.Read(r.once); err != nil {
		return 0, err
	}
	if r.errno != 0 {
		return 0, os.NewSyscallError("recvmmsg", r.errno)
	}
	return r.n, nil
}

// receive reports false if there is nothing to read yet.
func (r *reader) receive(fd uintptr) bool {
	for i := range r.messages {
		r.messages[i].header.Namelen = unix.SizeofSockaddrInet6
	}
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&r.messages)), batch,
			unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		}
		r.n, r.errno = int(n), errno
		return true
	}
}

// datagram returns one datagram of the batch and its sender.
func (r *reader) datagram(i int) ([]byte, netip.AddrPort) {
	name := &r.names[i]
	port := portOf(*(*[2]byte)(unsafe.Pointer(&name.Port)))
	b := r.data[i][:r.messages[i].length]
	if name.Family == unix.AF_INET {
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		return b, netip.AddrPortFrom(netip.AddrFrom4(four.Addr), port)
	}
	return b, netip.AddrPortFrom(netip.AddrFrom16(name.Addr).Unmap(), port)
}
