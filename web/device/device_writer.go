package device

import (
	"context"
	"net"
	"net/http"
	"time"
)

// sendBuffer bounds what the kernel holds of a download: it counts as sent, and
// five hundred devices at the far end of a Wi-Fi shall not fill the memory.
const sendBuffer = 64 << 10

type connKey struct{}

// WithConn makes the connection known to its requests; it is meant for
// ConnContext of [http.Server]. Without it downloads are served all the same,
// with as much of them in the kernel's buffers as it sees fit.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// A socket is what is set of a TCP connection.
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

// A deviceWriter writes to a device for as long as that makes progress, and
// until life ends. What a Write accepted has gone to the kernel.
type deviceWriter struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	socket socket // nil if not known
	life   context.Context
	stall  time.Duration
	stop   func() bool
	ended  chan struct{}
}

// newDeviceWriter returns a writer, which is to be released.
func newDeviceWriter(life context.Context, w http.ResponseWriter, r *http.Request, stall time.Duration) *deviceWriter {
	d := &deviceWriter{w: w, rc: http.NewResponseController(w), socket: socketOf(r.Context()), life: life, stall: stall,
		ended: make(chan struct{})}
	if d.socket != nil {
		d.socket.SetWriteBuffer(sendBuffer) // an error leaves the kernel's own size
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
	if err := d.life.Err(); err != nil { // after the deadline, which its end sets too
		return 0, err
	}
	n, err := d.w.Write(p)
	if err == nil {
		err = d.rc.Flush()
	}
	return n, err
}

// release lets go of the connection, which its handler is about to leave.
func (d *deviceWriter) release() {
	if !d.stop() {
		<-d.ended
	}
}

// discard has the kernel throw away what was not sent yet, once the connection
// is closed.
func (d *deviceWriter) discard() {
	if d.socket != nil {
		d.socket.SetLinger(0)
	}
}
