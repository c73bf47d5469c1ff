package postgres

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet/origin"
	"fleetd/fleet/record"
	"fleetd/internal/bounded"
)

// originID returns the id under which address and client are stored, null if both are unknown. The length keeps two
// origins apart whose texts are equal when joined.
func originID(o origin.Origin) pgtype.UUID {
	if o.Unknown() {
		return pgtype.UUID{}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s%s", len(o.Address), o.Address, o.Client))
	return pgtype.UUID{Bytes: [16]byte(sum[:16]), Valid: true}
}

func traceID(o origin.Origin) pgtype.UUID { return pgUUID(uuid.UUID(o.Trace)) }

func recordOrigin(o origin.Origin) record.From {
	return record.From{Address: o.Address, Client: o.Client, Trace: uuid.UUID(o.Trace)}
}

// addOrigins stores origins.
const addOrigins = `
	INSERT INTO origins (id, address, client, last_seen)
	SELECT *, now() FROM unnest($1::uuid[], $2::text[], $3::text[]) ` + touchOrigin

const touchOrigin = `ON CONFLICT (id) DO UPDATE SET last_seen = now() WHERE origins.last_seen < now() - interval '1 day'`

// originOf are the columns of the origin of a row of calls or audit entries, as text that is not null. Where
// many rows are read, a join is faster: [originJoin] with [originJoined].
const (
	originOf = `coalesce((SELECT o.address FROM origins o WHERE o.id = origin_id), '') AS address,
	coalesce((SELECT o.client FROM origins o WHERE o.id = origin_id), '') AS client, trace_id`
	originJoin   = ` LEFT JOIN origins o ON o.id = origin_id`
	originJoined = `coalesce(o.address, ''), coalesce(o.client, ''), trace_id`
)

// An originRow contains the columns of [originOf].
type originRow struct {
	Address, Client string
	TraceID         uuid.NullUUID
}

func (r originRow) origin() origin.Origin {
	return origin.Origin{Address: r.Address, Client: r.Client, Trace: origin.TraceID(r.TraceID.UUID)}
}

// Origins are few, and calls are many: this process stores an origin again after originsKnown only.
const (
	originsKnown = 12 * time.Hour
	maxOrigins   = 10_000
)

// A storedOrigin is the id of an origin, and when this process last stored it.
type storedOrigin struct {
	id pgtype.UUID
	at time.Time
}

// knownOrigins are origins that are certainly stored, without their traces.
type knownOrigins struct {
	stored *bounded.Cache[origin.Origin, storedOrigin]
}

func newKnownOrigins() knownOrigins {
	return knownOrigins{bounded.New[origin.Origin, storedOrigin](maxOrigins)}
}

// id returns the id of an origin that is stored, or false.
func (k knownOrigins) id(o origin.Origin) (pgtype.UUID, bool) {
	o.Trace = origin.TraceID{}
	found, ok := k.stored.Get(o)
	return found.id, ok && time.Since(found.at) < originsKnown
}

// store stores the origins of calls that are to be inserted, and fills in their ids. It does so outside of their
// transaction: an origin that no row has does no harm, while a transaction could wait for another one that adds the
// same.
func (k knownOrigins) store(ctx context.Context, db *pgxpool.Pool, calls []*callWrite) error {
	missing := map[origin.Origin]pgtype.UUID{}
	for _, w := range calls {
		if !w.insert || w.row.origin.Unknown() {
			continue
		}
		id, known := k.id(w.row.origin)
		if !known {
			o := w.row.origin
			o.Trace = origin.TraceID{}
			id = originID(o)
			missing[o] = id
		}
		w.row.originID = id
	}
	if len(missing) == 0 {
		return nil
	}
	var ids []pgtype.UUID
	var addresses, clients []string
	for o, id := range missing {
		ids, addresses, clients = append(ids, id), append(addresses, o.Address), append(clients, o.Client)
	}
	if _, err := db.Exec(ctx, addOrigins, ids, addresses, clients); err != nil {
		return err
	}
	for o, id := range missing {
		k.stored.Add(o, storedOrigin{id, time.Now()})
	}
	return nil
}
