package voice

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"fleetd/fleet"
)

// A recorder stores conversations on one goroutine, so no conversation waits for the database. If
// the database is unavailable, records are lost and counted, unless it keeps them: then those are
// lost for which there is no room.
//
// Pages and programs read the store, so the end of a conversation is shown after it is stored. An
// open conversation is stored before: after a kill it is on record as [fleet.EndedByCrash],
// unless it was lost in its first moment.
type recorder struct {
	store   Records
	log     *slog.Logger
	keep    bool // tries again while the store is unavailable
	waiting chan fleet.Conversation
	done    chan struct{} // closed when no more records follow
	lost    atomic.Int64
}

const (
	maxUnrecorded = 4096
	maxRecords    = 256 // stored at a time
	recordTimeout = 5 * time.Second
)

func (r *recorder) init(store Records, keep bool, log *slog.Logger) {
	r.store, r.keep, r.log = store, keep, log
	r.waiting, r.done = make(chan fleet.Conversation, maxUnrecorded), make(chan struct{})
}

func (r *recorder) save(c fleet.Conversation) {
	if r.store == nil {
		return
	}
	select {
	case r.waiting <- c:
	default:
		r.lost.Add(1)
	}
}

// run stores records until close, and then the queued ones.
func (r *recorder) run() {
	for {
		select {
		case c := <-r.waiting:
			r.storeWith(c)
		case <-r.done:
			for len(r.waiting) > 0 {
				r.storeWith(<-r.waiting)
			}
			return
		}
	}
}

func (r *recorder) close() { close(r.done) }

func (r *recorder) stopped() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// storeWith stores a record together with the queued records. Of two records of the same
// conversation the later one is complete.
func (r *recorder) storeWith(first fleet.Conversation) {
	list := []fleet.Conversation{first}
	at := map[[16]byte]int{first.ID: 0}
	for len(list) < maxRecords && len(r.waiting) > 0 {
		c := <-r.waiting
		if i, twice := at[c.ID]; twice {
			list[i] = c
			continue
		}
		at[c.ID] = len(list)
		list = append(list, c)
	}
	var err error
	for tries := 1; ; tries++ {
		ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
		err = r.store.SaveConversations(ctx, list)
		cancel()
		if err == nil {
			return
		}
		if tries >= 3 && (!r.keep || r.stopped() || !errors.Is(err, fleet.ErrUnavailable)) {
			break
		}
		select {
		case <-time.After(time.Second):
		case <-r.done:
		}
	}
	r.lost.Add(int64(len(list)))
	r.log.Error("conversations not recorded", "count", len(list), "err", err)
}
