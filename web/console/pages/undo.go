package pages

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/internal/bounded"
	"fleetd/web/ui"
)

// Limits of the acts that can be undone. A page offers it for ten seconds; without JavaScript the
// message stays.
const (
	undoLasts = 5 * time.Minute
	maxUndos  = 64 // an undo of a bulk act has the ids of up to 50,000 devices
)

// An undo takes back an act that a viewer has just made. It is an act itself: the viewer makes it,
// the services check the viewer's rights at that moment, and it is on record.
type undo struct {
	viewer string // id of the operator
	at     time.Time
	do     TakeBack
}

// A TakeBack takes an act back, on behalf of a principal.
type TakeBack func(ctx context.Context, by fleet.Principal) error

// undos are the latest acts that can be taken back. They are in memory: another core does not know them.
type undos = bounded.Cache[uuid.UUID, undo]

// Undo takes back the viewer's act with the id. It refuses if the act is too old, or another viewer's.
func (s *Responder) Undo(ctx context.Context, id string) error {
	by := ViewerOf(ctx).Actor()
	key, err := uuid.Parse(id)
	u, ok := s.undos.Peek(key)
	if err != nil || !ok || u.viewer != by.ID || !s.undos.Remove(key) || s.Now().Sub(u.at) >= undoLasts {
		return fleet.Refuse(fleet.ErrNotFound, "undo_gone")
	}
	return u.do(ctx, by)
}

// Undoable returns the message of an act that do takes back.
func (s *Responder) Undoable(ctx context.Context, f ui.Flash, do TakeBack) ui.Flash {
	if do == nil {
		return f
	}
	id := uuid.New()
	s.undos.Add(id, undo{viewer: ViewerOf(ctx).Actor().ID, at: s.Now(), do: do})
	f.Undo = ui.UndoPath(id.String())
	return f
}
