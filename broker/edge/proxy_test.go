package edge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/pires/go-proxyproto"
)

// proxyHeader returns a proxy's header for a connection from the address.
func proxyHeader(t testing.TB, from string) []byte {
	t.Helper()
	h := proxyproto.HeaderProxyFromAddrs(2, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from)),
		net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from)))
	b, err := h.Format()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// withTLVs lengthens a header by the fields that proxies may add.
func withTLVs(header []byte, n int) []byte {
	tlv := append(binary.BigEndian.AppendUint16([]byte{0xe0}, uint16(n-3)), make([]byte, n-3)...)
	header = append(slices.Clone(header), tlv...)
	binary.BigEndian.PutUint16(header[14:], uint16(len(header)-16))
	return header
}

// No input makes the reader of the header panic, consume the bytes after the header, or exceed
// its limit.
func FuzzProxyHeader(f *testing.F) {
	f.Add(proxyHeader(f, "192.0.2.7:4711"), byte(1))
	f.Add(proxyHeader(f, "[2001:db8::7]:4711"), byte(7))
	f.Add(withTLVs(proxyHeader(f, "192.0.2.7:4711"), 40), byte(100))
	f.Add([]byte("PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\n"), byte(3))
	f.Fuzz(func(t *testing.T, header []byte, piece byte) {
		const rest = "what follows"
		stream := &pieces{Reader: bytes.NewReader(append(slices.Clone(header), rest...)), most: int(piece) + 1}
		addr, err := readProxyHeader(stream)
		if stream.read > maxProxyHeader {
			t.Fatalf("%d bytes were read", stream.read)
		}
		if err != nil {
			if addr != nil {
				t.Error("an address in spite of an error")
			}
			return
		}
		if want := 16 + int(binary.BigEndian.Uint16(header[14:16])); stream.read != want {
			t.Errorf("%d bytes were read of a header of %d", stream.read, want)
		}
		if addr != nil && hostOf(addr.String()) == "" {
			t.Errorf("address %v", addr)
		}
	})
}

// pieces returns a stream in small pieces, and counts the bytes.
type pieces struct {
	*bytes.Reader
	most, read int
}

func (p *pieces) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b[:min(len(b), p.most)])
	p.read += n
	return n, err
}

func TestProxyHeaderErrorsAreKnown(t *testing.T) {
	if _, err := readProxyHeader(strings.NewReader("PROXY UNKNOWN\r\nxxxxxxxx")); !errors.Is(err, errNoProxyHeader) {
		t.Errorf("version 1: %v", err)
	}
	if _, err := readProxyHeader(strings.NewReader("")); !errors.Is(err, io.EOF) {
		t.Errorf("nothing: %v", err)
	}
}
