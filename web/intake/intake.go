// Package intake bounds the number of open HTTP connections, in total and for each address, so that
// one address cannot use them all. It closes a connection beyond a bound before it reads a byte.
//
// It sees only connections, through [http.Server.ConnState]. A connection that becomes a WebSocket
// is no longer counted here, because the broker counts it. One lock guards the counts.
package intake

import (
	"cmp"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
)

// Options configures a [Bound]. The zero value is ready to use.
type Options struct {
	// Max bounds all connections. Default: a tenth of the process's file descriptors, at least 256.
	Max int
	// MaxPerAddress bounds the connections of one IPv4 address or one /64 of IPv6. Default: a
	// quarter of Max.
	MaxPerAddress int
	// Shared reports whether many clients share an address, as behind a proxy; its connections
	// count only against Max. Loopback is always shared.
	Shared func(netip.Addr) bool
}

// A Bound counts connections.
type Bound struct {
	o Options

	mu      sync.Mutex
	open    map[net.Conn]netip.Addr
	byAddr  map[netip.Addr]int
	refused int64
}

// New returns a bound.
func New(o Options) *Bound {
	o.Max = cmp.Or(o.Max, room())
	o.MaxPerAddress = cmp.Or(o.MaxPerAddress, max(1, o.Max/4))
	return &Bound{o: o, open: make(map[net.Conn]netip.Addr), byAddr: make(map[netip.Addr]int)}
}

func room() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil || limit.Cur > 1<<24 {
		return 1 << 20
	}
	return max(256, int(limit.Cur/10))
}

// ConnState is the ConnState of an [http.Server].
func (b *Bound) ConnState(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if !b.enter(c) {
			_ = c.Close()
		}
	case http.StateHijacked, http.StateClosed:
		b.leave(c)
	}
}

// Refused returns how many connections were closed because of a bound.
func (b *Bound) Refused() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refused
}

func (b *Bound) enter(c net.Conn) bool {
	addr := addressOf(c)
	shared := !addr.IsValid() || addr.IsLoopback() || b.o.Shared != nil && b.o.Shared(addr)
	network := addr
	if addr.Is6() {
		p, _ := addr.WithZone("").Prefix(64)
		network = p.Addr()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.open) >= b.o.Max || !shared && b.byAddr[network] >= b.o.MaxPerAddress {
		b.refused++
		return false
	}
	if shared {
		network = netip.Addr{}
	}
	b.open[c] = network
	b.byAddr[network]++
	return true
}

func (b *Bound) leave(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	network, ok := b.open[c]
	if !ok {
		return
	}
	delete(b.open, c)
	if b.byAddr[network]--; b.byAddr[network] == 0 {
		delete(b.byAddr, network)
	}
}

func addressOf(c net.Conn) netip.Addr {
	ap, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap()
}
