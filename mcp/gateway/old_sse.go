package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
)

// oldStreams are the sessions of clients of 2024-11-05: a GET that stays open is
// the session, and POSTs to the address that its first event names are its
// messages. The zero value is ready.
type oldStreams struct {
	mu sync.Mutex
	by map[string]*oldStream
}

type oldStream struct {
	transport *oldTransport
	caller    *caller
	path      string
}

// An oldTransport stores its connection, to which the gateway writes as the SDK does: the
// answer to a POST is an event of the stream.
type oldTransport struct {
	*mcp.SSEServerTransport
	connected chan struct{} // closed when conn is set
	conn      mcp.Connection
}

func (t *oldTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	defer close(t.connected)
	var err error
	t.conn, err = t.SSEServerTransport.Connect(ctx)
	return t.conn, err
}

// refuse answers a message with an unknown method.
func (t *oldTransport) refuse(w http.ResponseWriter, r *http.Request, unknown *jsonrpc.Request) {
	<-t.connected // the client gets the address slightly earlier
	if unknown.IsCall() && t.conn != nil {
		_ = t.conn.Write(r.Context(), methodNotFound(unknown)) // the client may be gone
	}
	w.WriteHeader(http.StatusAccepted)
}

// serveOld serves /mcp/sse, and the same path below devices and groups.
func (g *Gateway) serveOld(w http.ResponseWriter, r *http.Request, c *caller) {
	switch r.Method {
	case http.MethodGet:
		g.serveStream(w, r, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.openOld(w, r, c) }))
	case http.MethodPost:
		id := r.URL.Query().Get("sessionid")
		g.oldStreams.mu.Lock()
		s := g.oldStreams.by[id]
		g.oldStreams.mu.Unlock()
		if s == nil || s.caller.token != c.token || s.path != r.URL.Path {
			g.refuse(w, http.StatusNotFound, fleet.Refuse(fleet.ErrNotFound, "mcp_unknown_session"))
			return
		}
		body, status, e := readBody(w, r)
		if e == nil {
			status, e = http.StatusBadRequest, oneValue(body)
		}
		if e != nil {
			g.refuse(w, status, e)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		s.caller.sends(c)
		if unknown := unknownMethod(body); unknown != nil {
			s.transport.refuse(w, r, unknown)
			return
		}
		s.transport.ServeHTTP(w, r)
	default:
		w.Header().Set("Allow", "GET, POST")
		g.refuse(w, http.StatusMethodNotAllowed, fleet.Refuse(fleet.ErrInvalid, "method_not_allowed", "method",
			r.Method))
	}
}

func (g *Gateway) openOld(w http.ResponseWriter, r *http.Request, c *caller) {
	id := rand.Text()
	s := &oldStream{caller: c, path: r.URL.Path, transport: &oldTransport{connected: make(chan struct{}),
		SSEServerTransport: &mcp.SSEServerTransport{Endpoint: r.URL.Path + "?sessionid=" + id, Response: w,
			MaxRequestBodyBytes: maxBody}}}
	g.oldStreams.mu.Lock()
	if g.oldStreams.by == nil {
		g.oldStreams.by = map[string]*oldStream{}
	}
	g.oldStreams.by[id] = s
	g.oldStreams.mu.Unlock()
	defer func() {
		g.oldStreams.mu.Lock()
		defer g.oldStreams.mu.Unlock()
		delete(g.oldStreams.by, id)
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	session, err := c.server.Connect(context.WithValue(r.Context(), callerKey{}, c), s.transport, nil)
	if err != nil { // the client is gone: the first event could not be written
		return
	}
	ended := make(chan struct{})
	go func() {
		_ = session.Wait()
		close(ended)
	}()
	select {
	case <-r.Context().Done():
	case <-ended:
	}
	_ = session.Close()
}
