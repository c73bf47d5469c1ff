package record

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/redaction"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// redactionRoutes are the page of redaction rules and its acts.
func (s *Server) redactionRoutes() []pages.Route {
	const get, post = http.MethodGet, http.MethodPost
	one := ui.PathRedaction + "/{rule}"
	return []pages.Route{
		{Method: get, Pattern: ui.PathRedaction, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.listRedactions},
		{Method: post, Pattern: ui.PathRedaction, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.createRedaction,
			Confirm: true},
		{Method: post, Pattern: ui.PathRedactionDigest, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.digestValue},
		{Method: post, Pattern: one, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.saveRedaction, Confirm: true},
		{Method: post, Pattern: one + "/delete", Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.deleteRedaction,
			Confirm: true},
	}
}

func (s *Server) redactionPage(r *http.Request) (page ui.RedactionPage, err error) {
	page.Rules, err = s.Redaction.List(pages.ViewerOf(r.Context()).Actor())
	return page, err
}

func (s *Server) listRedactions(r *http.Request) (pages.Answer, error) {
	page, err := s.redactionPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func redactionForm(r *http.Request) ui.RedactionForm {
	revision, _ := strconv.ParseInt(r.PostFormValue("revision"), 10, 64) // 0: any
	return ui.RedactionForm{Tool: r.PostFormValue("tool"), Path: r.PostFormValue("path"), Note: r.PostFormValue("note"),
		Revision: revision}
}

func (s *Server) createRedaction(r *http.Request) (pages.Answer, error) {
	f := redactionForm(r)
	_, err := s.Redaction.Create(r.Context(), pages.ViewerOf(r.Context()).Actor(),
		redaction.Rule{Tool: f.Tool, Path: f.Path, Note: f.Note})
	return s.redactionActed(r, f, "flash.redaction_saved", err)
}

func redactionID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(chi.URLParam(r, "rule"))
	if err != nil {
		return id, pages.ErrNoPage
	}
	return id, nil
}

func (s *Server) saveRedaction(r *http.Request) (pages.Answer, error) {
	id, err := redactionID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	f := redactionForm(r)
	f.ID = id.String()
	_, err = s.Redaction.Update(r.Context(), pages.ViewerOf(r.Context()).Actor(), id, redaction.Change{Tool: &f.Tool,
		Path: &f.Path, Note: &f.Note, Revision: f.Revision})
	return s.redactionActed(r, f, "flash.redaction_saved", err)
}

func (s *Server) deleteRedaction(r *http.Request) (pages.Answer, error) {
	id, err := redactionID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	err = s.Redaction.Delete(r.Context(), pages.ViewerOf(r.Context()).Actor(), id, redactionForm(r).Revision)
	return s.redactionActed(r, ui.RedactionForm{}, "flash.redaction_deleted", err)
}

// redactionActed leads back to the page after an act. After a refusal it shows the form again.
func (s *Server) redactionActed(r *http.Request, f ui.RedactionForm, done string, err error) (pages.Answer, error) {
	ctx := r.Context()
	if err == nil {
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, done)})
		return pages.GoTo(ui.PathRedaction)
	}
	if status := pages.StatusOf(err); status != http.StatusConflict && status != http.StatusUnprocessableEntity {
		return pages.Answer{}, err
	}
	page, failed := s.redactionPage(r)
	if failed != nil {
		return pages.Answer{}, failed
	}
	page.Form, page.Problem = f, pages.Explain(ctx, err)
	a, _ := pages.ShowAgain(page.Page())
	a.Status = pages.StatusOf(err)
	return a, nil
}

// digestValue shows the digest of a value; the page does not contain the value.
func (s *Server) digestValue(r *http.Request) (pages.Answer, error) {
	page, err := s.redactionPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	value := json.RawMessage(r.PostFormValue("value"))
	if r.PostFormValue("json") == "" {
		value, _ = json.Marshal(string(value)) // a string always marshals
	}
	page.Digest, err = s.Redaction.Digest(pages.ViewerOf(r.Context()).Actor(), value)
	if err == nil {
		return pages.Show(page.Page())
	}
	page.DigestProblem = pages.Explain(r.Context(), err)
	a, _ := pages.ShowAgain(page.Page())
	a.Status = pages.StatusOf(err)
	return a, nil
}
