package edge

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/pires/go-proxyproto"
)

// maxProxyHeader bounds the header of a proxy. Addresses take 52 bytes; the rest is for
// additional fields, such as a name.
const maxProxyHeader = 2 << 10

var errNoProxyHeader = errors.New("missing PROXY protocol version 2 header")

// fromProxy reports whether connections from the address begin with a header of the PROXY
// protocol. From other addresses such a header is refused, since it is no CONNECT.
func (e *Edge) fromProxy(from net.Addr) bool {
	tcp, ok := from.(*net.TCPAddr)
	if !ok || len(e.o.ProxyFrom) == 0 {
		return false
	}
	ip := tcp.AddrPort().Addr().Unmap()
	return slices.ContainsFunc(e.o.ProxyFrom, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// readProxyHeader reads a header and not a byte more. It returns the address of the proxy's
// client, or nil if the connection is the proxy's own health check.
func readProxyHeader(r io.Reader) (net.Addr, error) {
	header := make([]byte, 16, 128)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, fmt.Errorf("PROXY header: %w", err)
	}
	if !bytes.HasPrefix(header, proxyproto.SIGV2) {
		return nil, errNoProxyHeader
	}
	length := int(binary.BigEndian.Uint16(header[14:]))
	if length > maxProxyHeader-len(header) {
		return nil, fmt.Errorf("%w: %d bytes are over the limit", errNoProxyHeader, length)
	}
	header = slices.Grow(header, length)[:16+length]
	if _, err := io.ReadFull(r, header[16:]); err != nil {
		return nil, fmt.Errorf("PROXY header: %w", err)
	}
	h, err := proxyproto.Read(bufio.NewReaderSize(bytes.NewReader(header), len(header)))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoProxyHeader, err)
	}
	if h.Command.IsLocal() {
		return nil, nil
	}
	tcp, ok := h.SourceAddr.(*net.TCPAddr)
	if !ok {
		return nil, fmt.Errorf("%w: it is not for TCP", errNoProxyHeader)
	}
	return tcp, nil
}

// refusedHeader counts a connection whose header is missing or bad, and logs it occasionally: it
// comes from a trusted proxy and indicates a wrong setting.
func (e *Edge) refusedHeader(nc *netConn, err error) {
	e.stats.refuse("proxy_header")
	from := hostOf(nc.raw.RemoteAddr().String())
	if ok, skipped := e.refusals.allow(from+"proxy_header", time.Now()); ok {
		e.log.Warn("connection refused", "remote", from, "reason", "proxy_header", "err", err, "not_logged", skipped)
	}
}
