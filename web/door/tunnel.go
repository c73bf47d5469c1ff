package door

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
)

// tunnelProtocol is the protocol to which the connection of a tunnel switches.
const tunnelProtocol = "fleetd-tunnel"

// ErrNoTunnel means that the core that leads does not serve tunnels of this name. It has an earlier
// version.
var ErrNoTunnel = errors.New("the core that leads does not serve this tunnel")

// Tunnel opens a connection from this edge to the core that leads, where
// [InternalOptions.Tunnels] serves it. While no core leads it waits, until ctx ends. The tunnel ends
// when another core leads.
func (d *Door) Tunnel(ctx context.Context, name string) (io.ReadWriteCloser, error) {
	p := &passage{door: d, kind: Own}
	p.trace.GotConn = p.gotConn
	p.place.cost, p.place.rank = 512, questions
	defer d.gate.leave(&p.place)
	p.to = d.gate.now()
	for first := true; ; first = false {
		if p.to == nil || !first {
			if err := p.waitAsking(ctx, forever, !first); err != nil {
				return nil, d.unasked(err)
			}
		}
		conn, err := p.tunnel(ctx, name)
		switch {
		case err == nil || errors.Is(err, ErrNoTunnel):
			d.gate.reached(&p.place, p.to)
			d.counts[Own].passed.Add(1)
			return conn, err
		case ctx.Err() != nil:
			return nil, d.unasked(errNoLeader)
		}
		d.gate.missed(&p.place, p.to)
		d.log.Debug("core not reached", "addr", p.to.Addr, "err", err)
	}
}

// tunnel opens it at p.to.
func (p *passage) tunnel(ctx context.Context, name string) (io.ReadWriteCloser, error) {
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, &p.trace), http.MethodGet,
		"https://core"+askPath+name, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", tunnelProtocol)
	r.Header.Set(termHeader, strconv.FormatInt(p.to.Term, 10))
	resp, err := p.to.requests.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	switch {
	case resp.Header.Get(notHandledHeader) != "":
		err = errNotHandled
	case resp.StatusCode != http.StatusSwitchingProtocols || !ok:
		err = ErrNoTunnel
	}
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	t := &tunnel{ReadWriteCloser: conn, closed: make(chan struct{})}
	go func() {
		select {
		case <-p.to.replaced:
			_ = t.Close()
		case <-t.closed:
		}
	}()
	return t, nil
}

// A tunnel is the edge's end.
type tunnel struct {
	io.ReadWriteCloser
	once   sync.Once
	closed chan struct{}
}

func (t *tunnel) Close() error {
	t.once.Do(func() { close(t.closed) })
	return t.ReadWriteCloser.Close()
}

// serveTunnel serves the core's end, until serve returns or the core stops.
func (i *Internal) serveTunnel(w http.ResponseWriter, edge string, serve func(edge string, conn net.Conn)) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	defer context.AfterFunc(i.life, func() { conn.Close() })()
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n",
		tunnelProtocol); err != nil {
		return
	}
	serve(edge, tunneled{conn, buffered.Reader})
}

// tunneled is a connection from which the HTTP server may already have read some bytes.
type tunneled struct {
	net.Conn
	in io.Reader
}

func (t tunneled) Read(p []byte) (int, error) { return t.in.Read(p) }
