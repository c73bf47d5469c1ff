package door

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fleetd/web/device"
	"fleetd/web/request"
)

const (
	// writeTimeout is how long a client may take to accept 32 KiB of a response. The core's own
	// limits end a request earlier.
	writeTimeout = 30 * time.Second
	// restTimeout bounds how long the unread rest of a body may take, if the door refuses the request.
	restTimeout = 5 * time.Second
	// shortBody bounds the bodies that the door reads before it sends the request: boot polls and
	// calls. A core that does not handle such a request costs nothing, and gets no slow body.
	shortBody = 16 << 10
)

// The pace at which bodies arrive. The core has further limits for each route.
var (
	anyPace  = request.Pace{Stall: 30 * time.Second, Rate: 1 << 10}
	pollPace = request.Pace{Stall: 10 * time.Second, Rate: 1 << 10, Whole: 10 * time.Second} // a few kilobytes
)

type passageKey struct{}

// A passage is a request on its way to the core.
type passage struct {
	door  *Door
	kind  Kind
	place waiter
	to    *leader
	trace httptrace.ClientTrace
	edge  string // the header's first fields

	body  *body  // nil if the request has none
	short []byte // the body's bytes, once it was read; nil if it is a long one

	conn     *conn // that carries it
	mark     int64 // writes of conn before it
	sends    int   // how often a core may have received it, or a part
	attempts int
	failedS3 bool // the core must send the file
}

// pass sends r to the leader and its response to w.
func (d *Door) pass(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect {
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	p := &passage{door: d, kind: kindOf(r)}
	p.trace.GotConn = p.gotConn
	r = r.WithContext(httptrace.WithClientTrace(context.WithValue(r.Context(), passageKey{}, p), &p.trace))
	if r.ContentLength != 0 {
		p.body = &body{w: w, from: r.Body, pace: anyPace}
		if p.kind == Poll {
			p.body.pace = pollPace
		}
		defer p.body.leave()
		r.Body = p.body
	}
	if d.o.Expires != nil && !time.Now().Before(d.o.Expires()) {
		d.failed(w, r, errExpired)
		return
	}
	if p.to = d.gate.now(); p.to == nil {
		if err := p.wait(r, false); err != nil {
			d.failed(w, r, err)
			return
		}
	}
	defer d.gate.leave(&p.place)
	d.proxy.ServeHTTP(&writer{ResponseWriter: w, conn: http.NewResponseController(w)}, r)
}

// wait waits for the leader.
func (p *passage) wait(r *http.Request, again bool) (err error) {
	d := p.door
	if p.place.cost == 0 {
		p.place.cost, p.place.rank = costOf(r), d.rankOf(r, p.kind)
	}
	if again {
		d.counts[p.kind].retried.Add(1)
	}
	d.counts[p.kind].held.Add(1)
	defer d.counts[p.kind].held.Add(-1)
	p.to, err = d.gate.wait(r.Context(), &p.place, d.o.HoldFor, again)
	return err
}

func (d *Door) rankOf(r *http.Request, k Kind) rank {
	switch {
	case k != Poll || r.Method != http.MethodPost:
		return others
	case d.known.Contains(deviceOf(r)):
		return knownPolls
	}
	return polls
}

// deviceOf returns the Device-Id as it was sent. It is a key only.
func deviceOf(r *http.Request) string {
	id := r.Header.Get("Device-Id")
	return id[:min(len(id), 64)]
}

// costOf returns about how many bytes the headers of a request occupy. Its goroutine and the buffers
// of its connection are the same for all.
func costOf(r *http.Request) int {
	n := 512 + 2*len(r.RequestURI)
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	return n
}

// gotConn is called when net/http uses c for the request. It may do so several times.
func (p *passage) gotConn(c httptrace.GotConnInfo) {
	p.countSend()
	p.conn = c.Conn.(*conn)
	p.mark = p.conn.writes.Load()
}

func (p *passage) countSend() {
	if p.conn != nil && p.conn.writes.Load() != p.mark {
		p.sends++
	}
	p.conn = nil
}

// rewrite makes the request to the core from the client's.
func rewrite(pr *httputil.ProxyRequest) {
	in, out := pr.In, pr.Out
	out.URL.Scheme, out.URL.Host = "https", "core" // a leader's transport knows the address
	out.URL.RawQuery = in.URL.RawQuery
	out.Trailer = in.Trailer // filled in when the body ends
	out.Header.Del("Expect")
	// net/http would repeat a request with these headers, if it has no body.
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if v, ok := out.Header[name]; ok {
			delete(out.Header, name)
			out.Header[strings.ToLower(name)] = v
		}
	}
	passageOf(in).edge = aboutClient(in)
}

func passageOf(r *http.Request) *passage { return r.Context().Value(passageKey{}).(*passage) }

// A carrier is the door as the transport of its proxy.
type carrier Door

// RoundTrip sends the request to the leader, and to the next one if it is certain that the first
// did not handle it.
func (c *carrier) RoundTrip(r *http.Request) (*http.Response, error) {
	d, p := (*Door)(c), passageOf(r)
	if p.body != nil && r.ContentLength > 0 && r.ContentLength <= shortBody {
		p.short = make([]byte, r.ContentLength)
		if _, err := io.ReadFull(p.body, p.short); err != nil {
			return nil, err
		}
	}
	for {
		before := p.sends
		resp, err := p.attempt(r)
		p.countSend()
		if err == nil && resp.Header.Get(notHandledHeader) == "" {
			d.gate.reached(&p.place, p.to)
			if err := d.takeOver(r, resp); err != nil && r.Context().Err() == nil && !p.failedS3 {
				resp.Body.Close()
				d.fallBack(p, err)
				p.sends = before
				continue
			} else if err != nil {
				resp.Body.Close()
				return nil, err
			}
			if p.body != nil {
				p.body.answered()
			}
			d.answered(r, p, resp)
			return resp, nil
		}
		switch {
		case err == nil:
			resp.Body.Close()
			d.gate.missed(&p.place, p.to)
			if !p.rewindable() {
				return nil, errNotHandled
			}
			p.sends = before
		case p.body != nil && p.body.failed() != nil: // which ends the context, too
			return nil, p.body.failed()
		case r.Context().Err() != nil:
			return nil, r.Context().Err()
		case p.sends == before:
			d.gate.missed(&p.place, p.to)
			d.log.Debug("core not reached", "addr", p.to.Addr, "err", err)
			if !p.rewindable() {
				return nil, errNotHandled
			}
		case p.body == nil && p.sends < 2 && (r.Method == http.MethodGet || r.Method == http.MethodHead):
			d.gate.leave(&p.place)
			p.place.since = time.Time{}
		default:
			d.log.Warn("outcome of a request unknown", "method", r.Method, "path", request.Redact(r.URL.Path), "addr", p.to.Addr,
				"err", err)
			return nil, errUnknown
		}
		if err := p.wait(r, true); err != nil {
			return nil, err
		}
	}
}

// attempt sends the request to p.to.
func (p *passage) attempt(r *http.Request) (*http.Response, error) {
	again := *r
	if p.attempts++; p.attempts > 1 { // the transport may still use that of the last attempt
		again.Header = r.Header.Clone()
	}
	again.Header[edgeHeader] = []string{p.edge + " " + strconv.FormatInt(p.to.Term, 10) + p.door.downloads.field(p, r)}
	if p.short != nil {
		again.Body = io.NopCloser(bytes.NewReader(p.short)) // net/http sends it together with the headers
	}
	return p.to.transportFor(device.IsDownload(r.URL.Path)).RoundTrip(&again)
}

// rewindable reports whether another attempt can send the same body.
func (p *passage) rewindable() bool { return p.body == nil || p.short != nil || !p.body.begun.Load() }

// answered is called when the response to r begins.
func (d *Door) answered(r *http.Request, p *passage, resp *http.Response) {
	d.counts[p.kind].passed.Add(1)
	if p.kind == Poll && resp.StatusCode == http.StatusOK {
		d.known.Add(deviceOf(r), struct{}{})
	}
	if media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); media == "text/event-stream" {
		s := &stream{ReadCloser: resp.Body}
		s.stop = context.AfterFunc(d.life, func() {
			s.ended.Store(true)
			s.ReadCloser.Close()
		})
		resp.Body = s
	}
}

// A stream is the body of an event stream. It ends in order when the door closes.
type stream struct {
	io.ReadCloser
	stop  func() bool
	ended atomic.Bool
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if err != nil && s.ended.Load() {
		err = io.EOF
	}
	return n, err
}

func (s *stream) Close() error {
	s.stop()
	return s.ReadCloser.Close()
}

// failed answers a request that no core answered.
func (d *Door) failed(w http.ResponseWriter, r *http.Request, err error) {
	p := passageOf(r)
	k := p.kind
	if p.body != nil {
		p.body.leave()
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restTimeout)) // as net/http reads the rest
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded): // of the body
		w.Header().Set("Connection", "close")
		http.Error(w, http.StatusText(http.StatusRequestTimeout), http.StatusRequestTimeout)
		return
	case r.Context().Err() != nil: // the client has gone
		panic(http.ErrAbortHandler)
	}
	answer, ok := refusalOf(err)
	if !ok { // the client's connection failed
		panic(http.ErrAbortHandler)
	}
	if errors.Is(err, errUnknown) {
		d.counts[k].unknown.Add(1)
	} else {
		d.counts[k].refused.Add(1)
	}
	answer.write(w, r, k)
}

// buffers are the buffers of bodies that pass.
type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

func (b *buffers) Get() []byte {
	if buf, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return buf[:]
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(buf []byte) { b.pool.Put((*[bufferSize]byte)(buf)) }

// A writer bounds the time of each write to the client, and not of the whole response. It flushes
// each part of a body whose length is known; the proxy does so for other bodies.
type writer struct {
	http.ResponseWriter
	conn    *http.ResponseController
	written int64
}

func (w *writer) Write(p []byte) (int, error) {
	_ = w.conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // some writers have no connection
	n, err := w.ResponseWriter.Write(p)
	w.written += int64(n)
	if length := w.Header()["Content-Length"]; err == nil && len(length) == 1 {
		if size, _ := strconv.ParseInt(length[0], 10, 64); w.written < size {
			err = w.conn.Flush()
		}
	}
	return n, err
}

// FlushError is for [http.ResponseController].
func (w *writer) FlushError() error {
	_ = w.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	return w.conn.Flush()
}

// Unwrap is for [http.ResponseController].
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A body is the body of a request.
type body struct {
	w    http.ResponseWriter
	from io.ReadCloser
	pace request.Pace

	begun atomic.Bool // a part was read
	mu    sync.Mutex
	paced *request.PacedBody // from the first read on: the request may have waited
	err   error
	left  bool
}

func (b *body) Read(p []byte) (int, error) {
	b.begun.Store(true)
	paced := b.start()
	if paced == nil {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := paced.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	return n, err
}

func (b *body) start() *request.PacedBody {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left {
		return nil
	}
	if b.paced == nil {
		b.paced = b.pace.Body(b.w, b.from)
	}
	return b.paced
}

// Close leaves the rest to the HTTP server. To close the client's body would wait for a read.
func (b *body) Close() error { return nil }

// failed returns the error of the client's connection, if any.
func (b *body) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == io.EOF {
		return nil
	}
	return b.err
}

// answered is called when the core's response begins. If the client still sends, the response does
// not wait for it.
func (b *body) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		_ = http.NewResponseController(b.w).EnableFullDuplex()
	}
}

// leave ends the use of the connection: the handler returns.
func (b *body) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = true
	if b.paced != nil {
		b.paced.Leave()
	}
}
