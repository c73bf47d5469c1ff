package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// oldestServer is the oldest PostgreSQL version that this package's SQL supports.
const oldestServer = 150000

// defaultConns is the size of the pool if the URL does not set it: large enough that a slow page
// does not delay calls.
const defaultConns = 16

// Open connects to the database and checks that it is suitable. Its error is one sentence that
// explains what to change.
func Open(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := Config(url)
	if err != nil {
		return nil, err
	}
	db, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	if err := check(ctx, db); err != nil {
		db.Close()
		return nil, explain(config.ConnConfig, err)
	}
	return db, nil
}

// Config parses a database URL. Its connections scan times as UTC.
func Config(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errors.New("the database URL cannot be read; write postgres://user:password@host:5432/name")
	}
	if !strings.Contains(url, "pool_max_conns") {
		config.MaxConns = defaultConns
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	config.AfterConnect = prepareConn
	return config, nil
}

// prepareConn makes times UTC. JIT is off because compiling a statement takes longer than running
// any of fleetd's statements.
func prepareConn(ctx context.Context, conn *pgx.Conn) error {
	conn.TypeMap().RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID,
		Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC}})
	_, err := conn.Exec(ctx, "SET jit = off")
	return err
}

// A misfit is the error of a database that answers but is not suitable.
type misfit string

func (m misfit) Error() string { return string(m) }

func check(ctx context.Context, db *pgxpool.Pool) error {
	var version, encoding, name string
	err := db.QueryRow(ctx, `SELECT current_setting('server_version_num'), current_setting('server_encoding'), current_database()`).
		Scan(&version, &encoding, &name)
	if err != nil {
		return err
	}
	if n, _ := strconv.Atoi(version); n < oldestServer {
		return misfit(fmt.Sprintf("the server runs PostgreSQL %d; fleetd needs 15 or newer: upgrade the server or give another one", n/10000))
	}
	if encoding != "UTF8" {
		return misfit(fmt.Sprintf("database %q has the encoding %s; fleetd needs UTF8: create one with ENCODING 'UTF8' TEMPLATE template0", name, encoding))
	}
	return nil
}

func explain(c *pgx.ConnConfig, err error) error {
	var bad misfit
	var pg *pgconn.PgError
	var network *net.OpError
	server := net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	switch {
	case errors.As(err, &bad):
		return bad
	case errors.As(err, &pg):
		return explainRefusal(c, server, pg)
	case errors.As(err, &network), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no PostgreSQL server answers at %s: start it, or correct the database URL (%s)", server,
			cause(err))
	}
	return fmt.Errorf("no connection to the PostgreSQL server at %s (%s)", server, cause(err))
}

func explainRefusal(c *pgx.ConnConfig, server string, pg *pgconn.PgError) error {
	switch pg.Code {
	case "28P01": // invalid_password
		return fmt.Errorf("the PostgreSQL server at %s refuses the password of user %q: correct it in the database URL",
			server, c.User)
	case "28000": // invalid_authorization_specification
		return fmt.Errorf("the PostgreSQL server at %s does not let user %q in: create the user, or allow it in pg_hba.conf (%s)", server, c.User, pg.Message)
	case "3D000": // invalid_catalog_name
		return fmt.Errorf("the PostgreSQL server at %s has no database %q: create it with createdb, or correct the database URL", server, c.Database)
	case "42501": // insufficient_privilege
		return fmt.Errorf("user %q may not connect to database %q at %s: GRANT CONNECT ON DATABASE, or use its owner (%s)",
			c.User, c.Database, server, pg.Message)
	case "53300": // too_many_connections
		return fmt.Errorf("the PostgreSQL server at %s has no connection left: raise max_connections, or set pool_max_conns in the database URL", server)
	case "57P03": // cannot_connect_now
		return fmt.Errorf("the PostgreSQL server at %s is not ready yet: try again in a moment (%s)", server, pg.Message)
	}
	return fmt.Errorf("the PostgreSQL server at %s refuses the connection (%s, SQLSTATE %s)", server, pg.Message, pg.Code)
}

// cause returns the operating system's error without pgx's additions: the user, and every address
// tried, one per line.
func cause(err error) string {
	var network *net.OpError
	if errors.As(err, &network) {
		err = network.Err
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
