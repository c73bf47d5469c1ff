package postgres

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"fleetd/fleet"
)

// errSilent is returned while no connection may be opened.
var errSilent = fmt.Errorf("%w: the database does not answer", fleet.ErrUnavailable)

// A dialer opens the connections of a server's pools. While the database is silent, frozen or
// behind a network that drops everything, the dialer closes all connections and opens none.
// Callers then get an error at once, as from a database that stopped, instead of waiting for as
// long as the silence lasts. Statements already sent may be executed later, as after any broken
// connection.
type dialer struct {
	dial pgconn.DialFunc

	mu     sync.Mutex
	open   map[*dialed]struct{}
	silent bool
}

type dialed struct {
	net.Conn
	dialer *dialer
}

func (c *dialed) Close() error {
	c.dialer.mu.Lock()
	delete(c.dialer.open, c)
	c.dialer.mu.Unlock()
	return c.Conn.Close()
}

func (d *dialer) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	if d.isSilent() {
		return nil, errSilent
	}
	conn, err := d.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.silent {
		_ = conn.Close()
		return nil, errSilent
	}
	c := &dialed{conn, d}
	d.open[c] = struct{}{}
	return c, nil
}

func (d *dialer) isSilent() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.silent
}

// setSilent records whether the database is silent.
func (d *dialer) setSilent(silent bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.silent = silent
	if silent {
		for c := range d.open {
			_ = c.Conn.Close() // pgx closes c when it notices
		}
	}
}
