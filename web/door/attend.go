package door

import (
	"context"
	"io"
	"net/http"
	"time"
)

// attendPath is that of a request which an edge keeps open at the leader. When the edge's process
// dies, its kernel ends the connection, and the core knows at once; a network that fails is silent.
const attendPath = "/cluster/attend"

// attendPause is the time between two attempts.
const attendPause = time.Second

// attend keeps the request open for as long as the core leads.
func attend(l *leader) {
	for !l.isClosed() {
		l.attend()
		select {
		case <-l.replaced:
			return
		case <-time.After(attendPause):
		}
	}
}

// attend makes the request, and returns when it has ended.
func (l *leader) attend() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	body, end := io.Pipe()
	defer end.Close()
	go func() {
		select {
		case <-l.replaced:
			cancel()
			_ = end.CloseWithError(context.Canceled) // RoundTrip waits for its reader of the body
		case <-ctx.Done():
		}
	}()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+l.Addr+attendPath, body)
	if err != nil {
		return // the address of a leader is one
	}
	if resp, err := l.requests.RoundTrip(r); err == nil {
		resp.Body.Close()
	}
}

// Attending returns how many edges keep a connection open.
func (i *Internal) Attending() int64 { return i.attending.Load() }

// attend waits for the end of an edge's request.
func (i *Internal) attend(w http.ResponseWriter, r *http.Request, edge string) {
	i.attending.Add(1)
	defer i.attending.Add(-1)
	c := http.NewResponseController(w)
	_, _ = c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{})
	stop := context.AfterFunc(i.life, func() { _ = c.SetReadDeadline(time.Now()) })
	defer stop()
	_, _ = io.Copy(io.Discard, r.Body)
	if i.life.Err() == nil && i.o.Left != nil {
		i.o.Left(edge)
	}
}
