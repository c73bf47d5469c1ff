package edge

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"fleetd/broker/link"
)

// closed admits no device.
type closed struct{}

func (closed) Open(link.Connect, link.Carrier) (link.Connection, error) {
	return nil, link.RefusedLater
}

func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, err = New(Options{Addr: taken.Addr().String(), Core: closed{}})
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("error %v", err)
	}
}

// After a partial write the stream is garbage. It must end, even if the writer, such as mochi's
// own loop, continues.
func TestFailedWriteClosesTheSocket(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	nc := &netConn{Conn: ours, raw: ours, writeTimeout: 10 * time.Millisecond}
	if _, err := nc.Write([]byte("never read")); err == nil {
		t.Fatal("a write that nobody reads succeeded")
	}
	if _, err := nc.Write([]byte("more")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a later write: %v", err)
	}
}
