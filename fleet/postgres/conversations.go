package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
)

var _ fleet.ConversationStore = (*Store)(nil)

// SaveConversations inserts or updates conversations. A conversation that has ended is not
// changed, unless that was only assumed because its process seemed to be dead.
func (s *Store) SaveConversations(ctx context.Context, list []fleet.Conversation) error {
	var b pgx.Batch
	for _, c := range list {
		a := c.Audio
		b.Queue(`
			INSERT INTO conversations (id, device_id, upstream, created_at, end_at, ended, calls, hello_us, received, lost,
				refused, dropped, sent, moves, jitter_us)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
			ON CONFLICT (id) DO UPDATE SET end_at = excluded.end_at, ended = excluded.ended, calls = excluded.calls,
				hello_us = excluded.hello_us, received = excluded.received, lost = excluded.lost,
				refused = excluded.refused, dropped = excluded.dropped, sent = excluded.sent, moves = excluded.moves,
				jitter_us = excluded.jitter_us
			WHERE conversations.end_at IS NULL OR conversations.ended = $16`,
			c.ID, c.Device, cleanText(c.Upstream), c.Begin, c.End, c.Ended, c.Calls, c.HelloIn.Microseconds(), a.Received,
			a.Lost, a.Refused, a.Dropped, a.Sent, a.Moves, a.Jitter.Microseconds(),
			fleet.EndedByCrash)
	}
	if err := s.db.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("%d conversations: %w", len(list), domainError(err))
	}
	return nil
}

type conversationRow struct {
	ID        uuid.UUID
	DeviceID  fleet.DeviceID
	Upstream  string
	CreatedAt time.Time
	EndAt     *time.Time
	Ended     fleet.ConversationEnd
	Calls     int64
	HelloUs   int64
	Received  int64
	Lost      int64
	Refused   int64
	Dropped   int64
	Sent      int64
	Moves     int64
	JitterUs  int64
}

func (r conversationRow) conversation() fleet.Conversation {
	return fleet.Conversation{ID: r.ID, Device: r.DeviceID, Upstream: r.Upstream, Begin: r.CreatedAt, End: r.EndAt,
		Ended: r.Ended, Calls: r.Calls, HelloIn: time.Duration(r.HelloUs) * time.Microsecond,
		Audio: fleet.AudioCounts{Received: r.Received, Lost: r.Lost, Refused: r.Refused, Dropped: r.Dropped, Sent: r.Sent,
			Moves: r.Moves, Jitter: time.Duration(r.JitterUs) * time.Microsecond}}
}

const conversationColumns = `id, device_id, upstream, created_at, end_at, ended, calls, hello_us, received, lost, refused,
	dropped, sent, moves, jitter_us`

// Conversation returns one conversation, or [fleet.ErrNotFound].
func (s *Store) Conversation(ctx context.Context, id uuid.UUID) (fleet.Conversation, error) {
	var w where
	w.and("id = ?", id)
	w.scopeOf(ctx, "device_id")
	rows, _ := s.db.Query(ctx, `SELECT `+conversationColumns+` FROM conversations`+w.String(), w.args...)
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[conversationRow])
	if err != nil {
		return fleet.Conversation{}, fmt.Errorf("conversation %s: %w", id, domainError(err))
	}
	return r.conversation(), nil
}

// whereConversations narrows the list. Ids are created at the start of a conversation, so their
// order bounds the rows that are read.
func whereConversations(f fleet.ConversationFilter) *where {
	var w where
	w.andText("device_id = ?", string(f.Device))
	w.andText("upstream = ?", f.Upstream)
	switch {
	case len(f.Ends) == 1 && f.Ends[0] == "":
		w.and("end_at IS NULL")
	case len(f.Ends) > 0:
		w.and("ended = ANY (?)", f.Ends)
	}
	if !f.Since.IsZero() {
		w.and("created_at >= ?", f.Since)
		w.and("id >= ?", idFloor(f.Since.Add(-idSlack)))
	}
	if !f.Until.IsZero() {
		w.and("created_at < ?", f.Until)
		w.and("id < ?", idFloor(f.Until.Add(idSlack)))
	}
	return &w
}

// Conversations lists conversations, newest first.
func (s *Store) Conversations(ctx context.Context, f fleet.ConversationFilter) (fleet.Page[fleet.Conversation], error) {
	none := fleet.Page[fleet.Conversation]{}
	at, err := parseCursor(f.Cursor, "conversations")
	if err != nil {
		return none, err
	}
	w := whereConversations(f)
	w.scopeOf(ctx, "device_id")
	order, err := w.idsDown(at)
	if err != nil {
		return none, err
	}
	limit := fleet.ClampLimit(f.Limit)
	rows, _ := s.db.Query(ctx, `SELECT `+conversationColumns+` FROM conversations`+w.String()+order+` LIMIT `+w.arg(limit+1), w.args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[conversationRow])
	if err != nil {
		return none, fmt.Errorf("conversations: %w", domainError(err))
	}
	page := makePage(list, limit, at,
		func(r conversationRow) cursor { return cursor{List: "conversations", ID: r.ID.String()} })
	return mapPage(page, conversationRow.conversation), nil
}

// RecoverConversations ends the conversations that began before a time and that a crashed process left
// open. relayed are those that are open.
func (s *Store) RecoverConversations(ctx context.Context, at, before time.Time, relayed []uuid.UUID) (int64, error) {
	if relayed == nil {
		relayed = []uuid.UUID{}
	}
	tag, err := s.db.Exec(ctx, `UPDATE conversations SET end_at = greatest($1, created_at), ended = $2
		WHERE end_at IS NULL AND created_at < $3 AND id <> ALL ($4)`, at, fleet.EndedByCrash, before, relayed)
	if err != nil {
		return 0, fmt.Errorf("open conversations: %w", domainError(err))
	}
	return tag.RowsAffected(), nil
}
