package request

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// Pace is the minimum speed at which a body has to arrive. A slower sender only occupies a
// connection and its buffers.
type Pace struct {
	Stall time.Duration // longest time without a byte, also before the first one
	Rate  int           // minimum bytes per second, after Stall
	Whole time.Duration // for the whole body; 0: no limit
}

// A PacedBody is a body whose reads have the deadlines of a [Pace].
type PacedBody struct {
	io.ReadCloser
	pace  Pace
	began time.Time
	n     int64
	conn  *http.ResponseController

	mu    sync.Mutex // guards ended: a transport may read while the handler returns
	ended bool
}

// Body returns the body of a request that w responds to, and sets the first deadline.
func (p Pace) Body(w http.ResponseWriter, body io.ReadCloser) *PacedBody {
	b := &PacedBody{ReadCloser: body, pace: p, began: time.Now(), conn: http.NewResponseController(w)}
	b.extend()
	return b
}

func (b *PacedBody) Read(p []byte) (int, error) {
	b.extend()
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	if err != nil {
		b.Leave()
	}
	return n, err
}

// Leave ends the use of the connection's deadline; it belongs to the next request.
func (b *PacedBody) Leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
}

// extend sets the deadline of the next bytes.
func (b *PacedBody) extend() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended { // net/http has lifted the deadline, which would end the request's context
		return
	}
	until := time.Now().Add(b.pace.Stall)
	owed := time.Duration(b.n) * time.Second / time.Duration(b.pace.Rate)
	if bound := b.began.Add(b.pace.Stall + owed); bound.Before(until) {
		until = bound
	}
	if bound := b.began.Add(b.pace.Whole); b.pace.Whole > 0 && bound.Before(until) {
		until = bound
	}
	_ = b.conn.SetReadDeadline(until) // some writers have no connection
}
