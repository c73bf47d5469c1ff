package settings

import (
	"context"
	"errors"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/operator"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// operatorRoutes are the pages of one operator: their own, and for admins those of others.
func (s *Server) operatorRoutes() []pages.Route {
	const get, post = http.MethodGet, http.MethodPost
	const viewer, admin = fleet.RoleViewer, fleet.RoleAdmin
	const own, whole = access.Own, access.Fleet
	account, one := ui.PathAccount, ui.PathOperators+"/{operator}"
	return []pages.Route{
		{Method: get, Pattern: account, Role: viewer, Reach: own, Page: s.showAccount},
		{Method: post, Pattern: ui.PathSettings + "/password", Role: viewer, Reach: own, Page: s.changeOwnPassword},
		{Method: post, Pattern: account + "/sessions/end", Role: viewer, Reach: own, Page: s.endSessions},
		{Method: post, Pattern: account + "/sessions/{session}/end", Role: viewer, Reach: own, Page: s.endSession},

		{Method: post, Pattern: ui.PathOperators, Role: admin, Reach: whole, Page: s.createOperator,
			Confirm: true},
		{Method: get, Pattern: one, Role: admin, Reach: whole, Page: s.showOperator},
		{Method: post, Pattern: one + "/disable", Role: admin, Reach: whole, Page: s.setDisabled(true),
			Confirm: true},
		{Method: post, Pattern: one + "/enable", Role: admin, Reach: whole, Page: s.setDisabled(false),
			Confirm: true},
		{Method: post, Pattern: one + "/password", Role: admin, Reach: whole, Page: s.setOperatorPassword,
			Confirm: true},
		{Method: post, Pattern: one + "/access", Role: admin, Reach: whole, Page: s.setOperatorAccess,
			Confirm: true},
		{Method: post, Pattern: one + "/sessions/end", Role: admin, Reach: whole, Page: s.endSessions},
		{Method: post, Pattern: one + "/sessions/{session}/end", Role: admin, Reach: whole, Page: s.endSession},
	}
}

// operator returns the operator in the address, or else the viewer.
func (s *Server) operator(r *http.Request) (operator.Operator, error) {
	text := chi.URLParam(r, "operator")
	if text == "" {
		return *pages.ViewerOf(r.Context()).Operator, nil
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return operator.Operator{}, pages.ErrNoPage
	}
	return s.Operators.Operator(r.Context(), id)
}

func operatorRow(o operator.Operator, viewer fleet.Principal) ui.OperatorRow {
	return ui.OperatorRow{ID: o.ID.String(), Name: o.Name, Role: o.Role, Created: o.CreatedAt,
		Disabled: o.DisabledAt != nil, Self: o.ID.String() == viewer.ID, Scope: scopeRow(o.Scope),
		SignedIn: o.SignedInAt, SignedInFrom: o.SignedInFrom}
}

func (s *Server) operatorPage(ctx context.Context, o operator.Operator) (ui.OperatorPage, error) {
	v := pages.ViewerOf(ctx)
	page := ui.OperatorPage{Row: operatorRow(o, v.Actor()), Fleet: v.Actor().FleetRole() != ""}
	logins, err := s.Operators.Logins(ctx, v.Actor(), o.ID)
	for _, l := range logins {
		page.Sessions = append(page.Sessions, ui.SessionRow{ID: l.ID.String(), Browser: operator.BrowserName(l.Agent),
			Since: l.CreatedAt, Seen: l.SeenAt, Address: l.Address, Here: l.ID == v.Login.ID,
			Ends: s.Operators.EndOf(l)})
	}
	return page, err
}

func (s *Server) showAccount(r *http.Request) (pages.Answer, error) { return s.showOperator(r) }

func (s *Server) showOperator(r *http.Request) (pages.Answer, error) {
	o, err := s.operator(r)
	if err != nil {
		return pages.Answer{}, err
	}
	if chi.URLParam(r, "operator") != "" && o.ID == pages.ViewerOf(r.Context()).Operator.ID {
		return pages.GoTo(ui.PathAccount)
	}
	page, err := s.operatorPage(r.Context(), o)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// operatorChanged redirects to the operator's page after a change, or shows why the change failed.
func (s *Server) operatorChanged(r *http.Request, o operator.Operator, key string, err error) (pages.Answer, error) {
	ctx := r.Context()
	if err != nil && pages.StatusOf(err) >= http.StatusInternalServerError {
		return pages.Answer{}, err
	}
	page, failed := s.operatorPage(ctx, o)
	if failed != nil {
		return pages.Answer{}, failed
	}
	if err == nil {
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, key, "name", o.Name)})
		return pages.GoTo(page.Path())
	}
	page.Problem = pages.Explain(ctx, err)
	a, _ := pages.ShowAgain(page.Page())
	a.Status = pages.StatusOf(err)
	return a, nil
}

// endSession signs the operator out of one browser.
func (s *Server) endSession(r *http.Request) (pages.Answer, error) {
	o, err := s.operator(r)
	if err != nil {
		return pages.Answer{}, err
	}
	id, err := uuid.Parse(chi.URLParam(r, "session"))
	if err != nil {
		return pages.Answer{}, pages.ErrNoPage
	}
	ctx := r.Context()
	err = s.Operators.EndLogin(ctx, pages.ViewerOf(ctx).Actor(), o.ID, id)
	if errors.Is(err, fleet.ErrNotFound) {
		return pages.Answer{}, err
	}
	s.EndStreams() // the streams of the session must end
	return s.operatorChanged(r, o, "flash.session_ended", err)
}

// endSessions signs the operator out of all other sessions.
func (s *Server) endSessions(r *http.Request) (pages.Answer, error) {
	o, err := s.operator(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	_, err = s.Operators.EndLogins(ctx, pages.ViewerOf(ctx).Actor(), o.ID, pages.ViewerOf(ctx).Login.ID)
	s.EndStreams() // the streams of the sessions must end
	return s.operatorChanged(r, o, "flash.sessions_ended", err)
}

// changeOwnPassword requires the present password, because another person may use a session left
// open.
func (s *Server) changeOwnPassword(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	me := *pages.ViewerOf(ctx).Operator
	err := s.CheckPassword(ctx, me, r.PostFormValue("old"))
	if err == nil {
		err = s.Operators.SetPassword(ctx, me.Principal(), me.ID, r.PostFormValue("new"))
	}
	if err == nil {
		err = s.keepSession(r, me.ID)
	}
	return s.operatorChanged(r, me, "flash.password", err)
}

// keepSession keeps the operator signed in here, and nowhere else, after a change of their
// password.
func (s *Server) keepSession(r *http.Request, id uuid.UUID) error {
	o, err := s.Operators.Operator(r.Context(), id)
	if err != nil {
		return err
	}
	s.EndStreams() // streams opened with the old password must end
	return s.OpenSession(r, o)
}

func (s *Server) createOperator(r *http.Request) (pages.Answer, error) {
	_, err := s.Operators.Create(r.Context(), pages.ViewerOf(r.Context()).Actor(), operator.Request{
		Name: r.PostFormValue("name"), Password: r.PostFormValue("password"), Access: postedAccess(r)})
	return s.changed(r, "flash.operator_created", err)
}

func (s *Server) setOperatorAccess(r *http.Request) (pages.Answer, error) {
	o, err := s.operator(r)
	if err != nil {
		return pages.Answer{}, err
	}
	err = s.Operators.SetAccess(r.Context(), pages.ViewerOf(r.Context()).Actor(), o.ID, postedAccess(r))
	return s.operatorChanged(r, o, "flash.operator_access", err)
}

func (s *Server) setDisabled(disabled bool) pages.Handler {
	key := "flash.operator_enabled"
	if disabled {
		key = "flash.operator_disabled"
	}
	return func(r *http.Request) (pages.Answer, error) {
		o, err := s.operator(r)
		if err != nil {
			return pages.Answer{}, err
		}
		err = s.Operators.SetDisabled(r.Context(), pages.ViewerOf(r.Context()).Actor(), o.ID, disabled)
		s.EndStreams() // the operator's streams must end
		return s.operatorChanged(r, o, key, err)
	}
}

func (s *Server) setOperatorPassword(r *http.Request) (pages.Answer, error) {
	o, err := s.operator(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	me := pages.ViewerOf(ctx).Operator
	err = s.Operators.SetPassword(ctx, me.Principal(), o.ID, r.PostFormValue("password"))
	s.EndStreams() // streams opened with the old password must end
	if err == nil && o.ID == me.ID {
		err = s.keepSession(r, me.ID)
	}
	return s.operatorChanged(r, o, "flash.operator_password", err)
}
