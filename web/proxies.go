package web

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// behindProxies sets RemoteAddr to the client's address, also if proxies forwarded the request.
// Code that logs the address, limits by it or records it needs no knowledge of proxies.
func (s *Server) behindProxies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if forwarded := r.Header.Values("X-Forwarded-For"); len(forwarded) > 0 {
			if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
				from := clientOf(peer.Addr().Unmap(), strings.Join(forwarded, ","), s.trusts)
				r.RemoteAddr = netip.AddrPortFrom(from, peer.Port()).String()
			}
		}
		next.ServeHTTP(w, r)
	})
}

// trusts reports whether the server believes the X-Forwarded-For of a proxy at this address: a
// proxy on this machine, or one of [Options].TrustedProxies.
func (s *Server) trusts(proxy netip.Addr) bool {
	listed := func(p netip.Prefix) bool { return p.Contains(proxy) }
	return proxy.IsLoopback() || slices.ContainsFunc(s.o.TrustedProxies, listed)
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
