package request

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Proxies are the networks whose X-Forwarded-For is believed, as is that of this machine.
type Proxies []netip.Prefix

// Unwrap is middleware that sets RemoteAddr to the client's address, also if proxies forwarded the
// request. Code that logs the address, limits by it or records it needs no knowledge of proxies.
func (p Proxies) Unwrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if forwarded := r.Header.Values("X-Forwarded-For"); len(forwarded) > 0 {
			if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
				from := clientOf(peer.Addr().Unmap(), strings.Join(forwarded, ","), p.trust)
				r.RemoteAddr = netip.AddrPortFrom(from, peer.Port()).String()
			}
		}
		next.ServeHTTP(w, r)
	})
}

// trust reports whether the X-Forwarded-For of a proxy at this address is believed.
func (p Proxies) trust(proxy netip.Addr) bool {
	listed := func(n netip.Prefix) bool { return n.Contains(proxy) }
	return proxy.IsLoopback() || slices.ContainsFunc(p, listed)
}

// clientOf follows the proxies backwards for as long as they are trusted; each of them appended the
// address of its client. Earlier addresses in the header may be forged.
func clientOf(peer netip.Addr, forwarded string, trusts func(netip.Addr) bool) netip.Addr {
	hops := strings.Split(forwarded, ",")
	for _, hop := range slices.Backward(hops) {
		if !trusts(peer) {
			break
		}
		before, ok := parseHop(strings.TrimSpace(hop))
		if !ok {
			break
		}
		peer = before
	}
	return peer
}

// parseHop parses an address with or without a port; some proxies append one.
func parseHop(hop string) (netip.Addr, bool) {
	if withPort, err := netip.ParseAddrPort(hop); err == nil {
		return withPort.Addr().Unmap(), true
	}
	ip, err := netip.ParseAddr(strings.Trim(hop, "[]"))
	return ip.Unmap().WithZone(""), err == nil
}
