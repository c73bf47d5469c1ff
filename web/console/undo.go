package console

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

func (s *Server) undoRoutes() []pages.Route {
	return []pages.Route{{Method: http.MethodPost, Pattern: ui.PathUndo + "/{undo}", Role: fleet.RoleOperator,
		Reach: access.Own, Page: s.undoAct}}
}

// undoAct takes an act back and redirects to the page with the button.
func (s *Server) undoAct(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	err := s.Undo(ctx, chi.URLParam(r, "undo"))
	switch {
	case err == nil:
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.undone")})
	case pages.StatusOf(err) >= http.StatusInternalServerError:
		return pages.Answer{}, err
	default:
		s.Flash(ctx, ui.Flash{Bad: true, Text: pages.Explain(ctx, err)})
	}
	return pages.GoTo(pages.LocalPath(r.PostFormValue("next")))
}
