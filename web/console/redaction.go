package console

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/redaction"
	"fleetd/web/access"
	"fleetd/web/ui"
)

// redactionRoutes are the page of redaction rules and its acts.
func (s *Server) redactionRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	one := ui.PathRedaction + "/{rule}"
	return []route{
		{method: get, pattern: ui.PathRedaction, role: fleet.RoleAdmin, reach: access.Fleet, page: s.listRedactions},
		{method: post, pattern: ui.PathRedaction, role: fleet.RoleAdmin, reach: access.Fleet, page: s.createRedaction,
			confirm: true},
		{method: post, pattern: ui.PathRedactionDigest, role: fleet.RoleAdmin, reach: access.Fleet, page: s.digestValue},
		{method: post, pattern: one, role: fleet.RoleAdmin, reach: access.Fleet, page: s.saveRedaction, confirm: true},
		{method: post, pattern: one + "/delete", role: fleet.RoleAdmin, reach: access.Fleet, page: s.deleteRedaction,
			confirm: true},
	}
}

func (s *Server) redactionPage(r *http.Request) (page ui.RedactionPage, err error) {
	page.Rules, err = s.Redaction.List(viewerOf(r.Context()).actor())
	return page, err
}

func (s *Server) listRedactions(r *http.Request) (answer, error) {
	page, err := s.redactionPage(r)
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

func redactionForm(r *http.Request) ui.RedactionForm {
	revision, _ := strconv.ParseInt(r.PostFormValue("revision"), 10, 64) // 0: any
	return ui.RedactionForm{Tool: r.PostFormValue("tool"), Path: r.PostFormValue("path"), Note: r.PostFormValue("note"),
		Revision: revision}
}

func (s *Server) createRedaction(r *http.Request) (answer, error) {
	f := redactionForm(r)
	_, err := s.Redaction.Create(r.Context(), viewerOf(r.Context()).actor(), redaction.Rule{Tool: f.Tool, Path: f.Path,
		Note: f.Note})
	return s.redactionActed(r, f, "flash.redaction_saved", err)
}

func redactionID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(chi.URLParam(r, "rule"))
	if err != nil {
		return id, errNoPage
	}
	return id, nil
}

func (s *Server) saveRedaction(r *http.Request) (answer, error) {
	id, err := redactionID(r)
	if err != nil {
		return answer{}, err
	}
	f := redactionForm(r)
	f.ID = id.String()
	_, err = s.Redaction.Update(r.Context(), viewerOf(r.Context()).actor(), id, redaction.Change{Tool: &f.Tool,
		Path: &f.Path, Note: &f.Note, Revision: f.Revision})
	return s.redactionActed(r, f, "flash.redaction_saved", err)
}

func (s *Server) deleteRedaction(r *http.Request) (answer, error) {
	id, err := redactionID(r)
	if err != nil {
		return answer{}, err
	}
	err = s.Redaction.Delete(r.Context(), viewerOf(r.Context()).actor(), id, redactionForm(r).Revision)
	return s.redactionActed(r, ui.RedactionForm{}, "flash.redaction_deleted", err)
}

// redactionActed leads back to the page after an act. After a refusal it shows the form again.
func (s *Server) redactionActed(r *http.Request, f ui.RedactionForm, done string, err error) (answer, error) {
	ctx := r.Context()
	if err == nil {
		s.flash(ctx, ui.Flash{Text: text(ctx, done)})
		return goTo(ui.PathRedaction)
	}
	if status := statusOf(err); status != http.StatusConflict && status != http.StatusUnprocessableEntity {
		return answer{}, err
	}
	page, failed := s.redactionPage(r)
	if failed != nil {
		return answer{}, failed
	}
	page.Form, page.Problem = f, explain(ctx, err)
	a, _ := showAgain(page.Page())
	a.status = statusOf(err)
	return a, nil
}

// digestValue shows the digest of a value; the page does not contain the value.
func (s *Server) digestValue(r *http.Request) (answer, error) {
	page, err := s.redactionPage(r)
	if err != nil {
		return answer{}, err
	}
	value := json.RawMessage(r.PostFormValue("value"))
	if r.PostFormValue("json") == "" {
		value, _ = json.Marshal(string(value)) // a string always marshals
	}
	page.Digest, err = s.Redaction.Digest(viewerOf(r.Context()).actor(), value)
	if err == nil {
		return show(page.Page())
	}
	page.DigestProblem = explain(r.Context(), err)
	a, _ := showAgain(page.Page())
	a.status = statusOf(err)
	return a, nil
}
