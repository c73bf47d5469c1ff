package web

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// behindProxies makes RemoteAddr the address of who asks, also when proxies pass
// the request on. What logs it, limits by it or keeps it in a device's record
// need know nothing of proxies.
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

// trusts reports whether a proxy at this address is believed about who asked it:
// one on this machine, or one of [Options].TrustedProxies.
func (s *Server) trusts(proxy netip.Addr) bool {
	listed := func(p netip.Prefix) bool { return p.Contains(proxy) }
	return proxy.IsLoopback() || slices.ContainsFunc(s.o.TrustedProxies, listed)
}

// clientOf goes back from proxy to proxy, each of which appended who asked it,
// for as long as they are trusted. What stands before is anybody's claim.
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

// parseHop reads an address with or without a port, which some proxies add.
func parseHop(hop string) (netip.Addr, bool) {
	if withPort, err := netip.ParseAddrPort(hop); err == nil {
		return withPort.Addr().Unmap(), true
	}
	ip, err := netip.ParseAddr(strings.Trim(hop, "[]"))
	return ip.Unmap().WithZone(""), err == nil
}
