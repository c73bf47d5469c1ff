package console

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/internal/bounded"
	"fleetd/web/access"
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
	do     takeBack
}

// A takeBack takes an act back, on behalf of a principal.
type takeBack func(ctx context.Context, by fleet.Principal) error

// undos are the latest acts that can be taken back. They are in memory: another core does not know them.
type undos = bounded.Cache[uuid.UUID, undo]

func (s *Server) undoRoutes() []route {
	return []route{{method: http.MethodPost, pattern: ui.PathUndo + "/{undo}", role: fleet.RoleOperator,
		reach: access.Own, page: s.undoAct}}
}

// undoable returns the message of an act that do takes back.
func (s *Server) undoable(ctx context.Context, f ui.Flash, do takeBack) ui.Flash {
	if do == nil {
		return f
	}
	id := uuid.New()
	s.undos.Add(id, undo{viewer: viewerOf(ctx).actor().ID, at: s.now(), do: do})
	f.Undo = ui.UndoPath(id.String())
	return f
}

// undoAct takes an act back and redirects to the page with the button.
func (s *Server) undoAct(r *http.Request) (answer, error) {
	ctx := r.Context()
	err := error(fleet.Refuse(fleet.ErrNotFound, "undo_gone"))
	id, parsed := uuid.Parse(chi.URLParam(r, "undo"))
	by := viewerOf(ctx).actor()
	u, ok := s.undos.Peek(id)
	if ok && parsed == nil && u.viewer == by.ID && s.undos.Remove(id) && s.now().Sub(u.at) < undoLasts {
		err = u.do(ctx, by)
	}
	switch {
	case err == nil:
		s.flash(ctx, ui.Flash{Text: text(ctx, "flash.undone")})
	case statusOf(err) >= http.StatusInternalServerError:
		return answer{}, err
	default:
		s.flash(ctx, ui.Flash{Bad: true, Text: explain(ctx, err)})
	}
	return goTo(localPath(r.PostFormValue("next")))
}

// undoChange takes back a change of a device's details. It refuses if they have changed again.
func (s *Server) undoChange(before, after fleet.Device, p fleet.DevicePatch) takeBack {
	back := fleet.DevicePatch{}
	if p.Name != nil && before.Name != after.Name {
		back.Name = &before.Name
	}
	if p.Tags != nil && !slices.Equal(before.Tags, after.Tags) {
		back.Tags = &before.Tags
	}
	if p.Notes != nil && before.Notes != after.Notes {
		back.Notes = &before.Notes
	}
	if back == (fleet.DevicePatch{}) {
		return nil
	}
	return func(ctx context.Context, by fleet.Principal) error {
		now, err := s.Devices.Device(ctx, after.ID)
		if err != nil {
			return err
		}
		if now.Name != after.Name || now.Notes != after.Notes || !slices.Equal(now.Tags, after.Tags) {
			return fleet.Refuse(fleet.ErrConflict, "undo_changed", "device", now.Title())
		}
		_, err = s.Devices.Update(ctx, by, after.ID, back)
		return err
	}
}

// undoHold ends a hold that has just begun, or begins one again that has just ended.
func (s *Server) undoHold(before, after fleet.Device) takeBack {
	return func(ctx context.Context, by fleet.Principal) error {
		now, err := s.Devices.Device(ctx, after.ID)
		if err != nil {
			return err
		}
		if at := s.now(); now.Hold.Active(at) != after.Hold.Active(at) ||
			now.Hold != nil && after.Hold != nil && !now.Hold.Since.Equal(after.Hold.Since) {
			return fleet.Refuse(fleet.ErrConflict, "undo_changed", "device", now.Title())
		}
		if !before.Hold.Active(s.now()) {
			_, err = s.Devices.Release(ctx, by, after.ID)
			return err
		}
		_, err = s.Devices.Hold(ctx, by, after.ID, before.Hold.Reason, before.Hold.Until)
		return err
	}
}

// undoBulk takes back a bulk act on the devices that it changed.
func (s *Server) undoBulk(done fleet.BulkResult) takeBack {
	if len(done.Undo) == 0 {
		return nil
	}
	return func(ctx context.Context, by fleet.Principal) error {
		for _, request := range done.Undo {
			request.Actor = by
			if _, err := s.Devices.Bulk(ctx, request); err != nil {
				return err
			}
		}
		return nil
	}
}
