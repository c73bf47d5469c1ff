package device

import (
	"io"
	"net/http"
	"time"
)

// Pace is the minimum speed at which a body has to arrive. Real devices send at the pace of their
// modem; a slower sender only occupies a connection and its buffers.
type Pace struct {
	Stall time.Duration // longest time without a byte, also before the first one. Default: 10s
	Rate  int           // minimum bytes per second, after Stall. Default: 2,048
	Whole time.Duration // for the whole body. Default: 90s
}

func (p Pace) withDefaults() Pace {
	if p.Stall == 0 {
		p.Stall = 10 * time.Second
	}
	if p.Rate == 0 {
		p.Rate = 2 << 10
	}
	if p.Whole == 0 {
		p.Whole = 90 * time.Second // devices with weak Wi-Fi
	}
	return p
}

// steady enforces the pace on the body of an upload, including the part that next does not read:
// net/http reads up to 256 KiB of it before it responds.
func (h *Handler) steady(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b := &steadyBody{ReadCloser: r.Body, pace: h.o.UploadPace, began: time.Now(), conn: http.NewResponseController(w)}
		b.extend()
		r.Body = b
		next(w, r)
	}
}

type steadyBody struct {
	io.ReadCloser
	pace  Pace
	began time.Time
	n     int64
	ended bool
	conn  *http.ResponseController
}

func (b *steadyBody) Read(p []byte) (int, error) {
	if !b.ended { // net/http has lifted the deadline, which would end the request's context
		b.extend()
	}
	n, err := b.ReadCloser.Read(p)
	b.n, b.ended = b.n+int64(n), b.ended || err != nil
	return n, err
}

// extend sets the deadline of the next bytes.
func (b *steadyBody) extend() {
	until := time.Now().Add(b.pace.Stall)
	owed := time.Duration(b.n) * time.Second / time.Duration(b.pace.Rate)
	for _, bound := range []time.Time{b.began.Add(b.pace.Stall + owed), b.began.Add(b.pace.Whole)} {
		if bound.Before(until) {
			until = bound
		}
	}
	_ = b.conn.SetReadDeadline(until) // some writers have no connection
}
