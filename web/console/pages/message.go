package pages

import (
	"context"
	"encoding/json"
	"errors"

	"fleetd/fleet"
	"fleetd/web/ui"
)

// sessionFlash is the key of the message in a session.
const sessionFlash = "flash"

// Flash stores the outcome of an act for the next page.
func (s *Responder) Flash(ctx context.Context, f ui.Flash) {
	b, _ := json.Marshal(f) // of strings and a bool
	s.sessions.Put(ctx, sessionFlash, string(b))
}

// TakeFlash returns the message for this page and removes it; nil without one.
func (s *Responder) TakeFlash(ctx context.Context) *ui.Flash {
	if !s.sessions.Exists(ctx, sessionFlash) {
		return nil
	}
	var f ui.Flash
	if json.Unmarshal([]byte(s.sessions.PopString(ctx, sessionFlash)), &f) != nil {
		return nil
	}
	return &f
}

// Done redirects to a page and shows there that the act succeeded, or why it failed.
func (s *Responder) Done(ctx context.Context, to string, err error, key string, args ...any) (Answer, error) {
	switch {
	case errors.Is(err, fleet.ErrConflict), errors.Is(err, fleet.ErrInvalid):
		s.Flash(ctx, ui.Flash{Bad: true, Text: Explain(ctx, err)})
	case err != nil:
		return Answer{}, err
	default:
		s.Flash(ctx, ui.Flash{Text: Text(ctx, key, args...)})
	}
	return GoTo(to)
}
