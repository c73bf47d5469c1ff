package console

import (
	"context"
	"encoding/json"
	"errors"

	"fleetd/fleet"
	"fleetd/web/ui"
)

const sessionFlash = "flash"

// flash stores the outcome of an act for the next page.
func (s *Server) flash(ctx context.Context, f ui.Flash) {
	b, _ := json.Marshal(f) // of strings and a bool
	s.sessions.Put(ctx, sessionFlash, string(b))
}

func (s *Server) takeFlash(ctx context.Context) *ui.Flash {
	if !s.sessions.Exists(ctx, sessionFlash) {
		return nil
	}
	var f ui.Flash
	if json.Unmarshal([]byte(s.sessions.PopString(ctx, sessionFlash)), &f) != nil {
		return nil
	}
	return &f
}

// done redirects to a page and shows there that the act succeeded, or why it failed.
func (s *Server) done(ctx context.Context, to string, err error, key string, args ...any) (answer, error) {
	switch {
	case errors.Is(err, fleet.ErrConflict), errors.Is(err, fleet.ErrInvalid):
		s.flash(ctx, ui.Flash{Bad: true, Text: explain(ctx, err)})
	case err != nil:
		return answer{}, err
	default:
		s.flash(ctx, ui.Flash{Text: text(ctx, key, args...)})
	}
	return goTo(to)
}
