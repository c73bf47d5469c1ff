package device

import (
	"context"
	"net"
	"net/http"
	"time"
)

// sendBuffer bounds the part of a download in the kernel's buffer: the buffer counts as sent, and
// five hundred devices with weak Wi-Fi must not fill the memory.
const sendBuffer = 64 << 10

type connKey struct{}

// WithConn makes the connection available to its requests; use it as ConnContext of [http.Server].
// Without it downloads still work, but the kernel chooses the size of its buffers.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// A socket is the part of a TCP connection that a deviceWriter configures.
type socket interface {
	SetWriteBuffer(bytes int) error
	SetLinger(seconds int) error
}

func socketOf(ctx context.Context) socket {
	c := ctx.Value(connKey{})
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn()
	}
	s, _ := c.(socket)
	return s
}

// A deviceWriter writes to a device while the transfer makes progress, until life ends. The bytes
// that Write accepts have reached the kernel.
type deviceWriter struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	socket socket // nil if unknown
	life   context.Context
	stall  time.Duration
	stop   func() bool
	ended  chan struct{}
}

// newDeviceWriter returns a writer; the caller must release it.
func newDeviceWriter(life context.Context, w http.ResponseWriter, r *http.Request, stall time.Duration) *deviceWriter {
	d := &deviceWriter{w: w, rc: http.NewResponseController(w), socket: socketOf(r.Context()), life: life, stall: stall,
		ended: make(chan struct{})}
	if d.socket != nil {
		d.socket.SetWriteBuffer(sendBuffer) // on an error the kernel's own size applies
	}
	d.stop = context.AfterFunc(life, func() {
		defer close(d.ended)
		d.rc.SetWriteDeadline(time.Unix(1, 0)) // wakes a Write that waits for the device
	})
	return d
}

func (d *deviceWriter) Write(p []byte) (int, error) {
	if err := d.rc.SetWriteDeadline(time.Now().Add(d.stall)); err != nil {
		return 0, err
	}
	if err := d.life.Err(); err != nil { // checked after the deadline, because the end of life sets the deadline too
		return 0, err
	}
	n, err := d.w.Write(p)
	if err == nil {
		err = d.rc.Flush()
	}
	return n, err
}

// release detaches the writer from the connection before the handler returns.
func (d *deviceWriter) release() {
	if !d.stop() {
		<-d.ended
	}
}

// discard makes the kernel drop unsent bytes when the connection is closed.
func (d *deviceWriter) discard() {
	if d.socket != nil {
		d.socket.SetLinger(0)
	}
}
