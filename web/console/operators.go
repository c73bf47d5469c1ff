package console

import (
	"context"
	"errors"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/operator"
	"fleetd/web/access"
	"fleetd/web/ui"
)

// operatorRoutes are the pages of one operator: their own, and for admins those of others.
func (s *Server) operatorRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	const viewer, admin = fleet.RoleViewer, fleet.RoleAdmin
	const own, whole = access.Own, access.Fleet
	account, one := ui.PathAccount, ui.PathOperators+"/{operator}"
	return []route{
		{method: get, pattern: account, role: viewer, reach: own, page: s.showAccount},
		{method: post, pattern: ui.PathSettings + "/password", role: viewer, reach: own, page: s.changeOwnPassword},
		{method: post, pattern: account + "/sessions/end", role: viewer, reach: own, page: s.endSessions},
		{method: post, pattern: account + "/sessions/{session}/end", role: viewer, reach: own, page: s.endSession},

		{method: post, pattern: ui.PathOperators, role: admin, reach: whole, page: s.createOperator,
			confirm: true},
		{method: get, pattern: one, role: admin, reach: whole, page: s.showOperator},
		{method: post, pattern: one + "/disable", role: admin, reach: whole, page: s.setDisabled(true),
			confirm: true},
		{method: post, pattern: one + "/enable", role: admin, reach: whole, page: s.setDisabled(false),
			confirm: true},
		{method: post, pattern: one + "/password", role: admin, reach: whole, page: s.setOperatorPassword,
			confirm: true},
		{method: post, pattern: one + "/access", role: admin, reach: whole, page: s.setOperatorAccess,
			confirm: true},
		{method: post, pattern: one + "/sessions/end", role: admin, reach: whole, page: s.endSessions},
		{method: post, pattern: one + "/sessions/{session}/end", role: admin, reach: whole, page: s.endSession},
	}
}

// operator returns the operator in the address, or else the viewer.
func (s *Server) operator(r *http.Request) (operator.Operator, error) {
	text := chi.URLParam(r, "operator")
	if text == "" {
		return *viewerOf(r.Context()).operator, nil
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return operator.Operator{}, errNoPage
	}
	return s.Operators.Operator(r.Context(), id)
}

func operatorRow(o operator.Operator, viewer fleet.Principal) ui.OperatorRow {
	return ui.OperatorRow{ID: o.ID.String(), Name: o.Name, Role: o.Role, Created: o.CreatedAt,
		Disabled: o.DisabledAt != nil, Self: o.ID.String() == viewer.ID, Scope: scopeRow(o.Scope),
		SignedIn: o.SignedInAt, SignedInFrom: o.SignedInFrom}
}

func (s *Server) operatorPage(ctx context.Context, o operator.Operator) (ui.OperatorPage, error) {
	v := viewerOf(ctx)
	page := ui.OperatorPage{Row: operatorRow(o, v.actor()), Fleet: v.actor().FleetRole() != ""}
	logins, err := s.Operators.Logins(ctx, v.actor(), o.ID)
	for _, l := range logins {
		page.Sessions = append(page.Sessions, ui.SessionRow{ID: l.ID.String(), Browser: operator.BrowserName(l.Agent),
			Since: l.CreatedAt, Seen: l.SeenAt, Address: l.Address, Here: l.ID == v.login.ID,
			Ends: s.Operators.EndOf(l)})
	}
	return page, err
}

func (s *Server) showAccount(r *http.Request) (answer, error) { return s.showOperator(r) }

func (s *Server) showOperator(r *http.Request) (answer, error) {
	o, err := s.operator(r)
	if err != nil {
		return answer{}, err
	}
	if chi.URLParam(r, "operator") != "" && o.ID == viewerOf(r.Context()).operator.ID {
		return goTo(ui.PathAccount)
	}
	page, err := s.operatorPage(r.Context(), o)
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

// operatorChanged redirects to the operator's page after a change, or shows why the change failed.
func (s *Server) operatorChanged(r *http.Request, o operator.Operator, key string, err error) (answer, error) {
	ctx := r.Context()
	if err != nil && statusOf(err) >= http.StatusInternalServerError {
		return answer{}, err
	}
	page, failed := s.operatorPage(ctx, o)
	if failed != nil {
		return answer{}, failed
	}
	if err == nil {
		s.flash(ctx, ui.Flash{Text: text(ctx, key, "name", o.Name)})
		return goTo(page.Path())
	}
	page.Problem = explain(ctx, err)
	a, _ := showAgain(page.Page())
	a.status = statusOf(err)
	return a, nil
}

// endSession signs the operator out of one browser.
func (s *Server) endSession(r *http.Request) (answer, error) {
	o, err := s.operator(r)
	if err != nil {
		return answer{}, err
	}
	id, err := uuid.Parse(chi.URLParam(r, "session"))
	if err != nil {
		return answer{}, errNoPage
	}
	ctx := r.Context()
	err = s.Operators.EndLogin(ctx, viewerOf(ctx).actor(), o.ID, id)
	if errors.Is(err, fleet.ErrNotFound) {
		return answer{}, err
	}
	s.streams.end(allSessions) // the streams of the session must end
	return s.operatorChanged(r, o, "flash.session_ended", err)
}

// endSessions signs the operator out of all other sessions.
func (s *Server) endSessions(r *http.Request) (answer, error) {
	o, err := s.operator(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	_, err = s.Operators.EndLogins(ctx, viewerOf(ctx).actor(), o.ID, viewerOf(ctx).login.ID)
	s.streams.end(allSessions) // the streams of the sessions must end
	return s.operatorChanged(r, o, "flash.sessions_ended", err)
}

// changeOwnPassword requires the present password, because another person may use a session left
// open.
func (s *Server) changeOwnPassword(r *http.Request) (answer, error) {
	ctx := r.Context()
	me := *viewerOf(ctx).operator
	err := s.checkPassword(ctx, me, r.PostFormValue("old"))
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
	s.streams.end(allSessions) // streams opened with the old password must end
	return s.openSession(r, o)
}

func (s *Server) createOperator(r *http.Request) (answer, error) {
	_, err := s.Operators.Create(r.Context(), viewerOf(r.Context()).actor(), operator.Request{
		Name: r.PostFormValue("name"), Password: r.PostFormValue("password"), Access: postedAccess(r)})
	return s.changed(r, "flash.operator_created", err)
}

func (s *Server) setOperatorAccess(r *http.Request) (answer, error) {
	o, err := s.operator(r)
	if err != nil {
		return answer{}, err
	}
	err = s.Operators.SetAccess(r.Context(), viewerOf(r.Context()).actor(), o.ID, postedAccess(r))
	return s.operatorChanged(r, o, "flash.operator_access", err)
}

func (s *Server) setDisabled(disabled bool) handler {
	key := "flash.operator_enabled"
	if disabled {
		key = "flash.operator_disabled"
	}
	return func(r *http.Request) (answer, error) {
		o, err := s.operator(r)
		if err != nil {
			return answer{}, err
		}
		err = s.Operators.SetDisabled(r.Context(), viewerOf(r.Context()).actor(), o.ID, disabled)
		s.streams.end(allSessions) // the operator's streams must end
		return s.operatorChanged(r, o, key, err)
	}
}

func (s *Server) setOperatorPassword(r *http.Request) (answer, error) {
	o, err := s.operator(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	me := viewerOf(ctx).operator
	err = s.Operators.SetPassword(ctx, me.Principal(), o.ID, r.PostFormValue("password"))
	s.streams.end(allSessions) // streams opened with the old password must end
	if err == nil && o.ID == me.ID {
		err = s.keepSession(r, me.ID)
	}
	return s.operatorChanged(r, o, "flash.operator_password", err)
}
