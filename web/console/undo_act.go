package console

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/ui"
)

func (s *Server) undoRoutes() []route {
	return []route{{method: http.MethodPost, pattern: ui.PathUndo + "/{undo}", role: fleet.RoleOperator,
		reach: access.Own, page: s.undoAct}}
}

// undoAct takes an act back and redirects to the page with the button.
func (s *Server) undoAct(r *http.Request) (answer, error) {
	ctx := r.Context()
	err := s.undo(ctx, chi.URLParam(r, "undo"))
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
