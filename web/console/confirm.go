package console

import (
	"errors"
	"maps"
	"net/http"
	"slices"

	"fleetd/web/console/pages"
	"fleetd/web/request"
	"fleetd/web/ui"
)

// confirming requires the password for acts that are too dangerous for a session left open, unless
// it was entered a short while ago. The page with the password field contains the submitted form,
// and sends it again to the same address with the password.
func (s *Server) confirming(t pages.Route, next http.HandlerFunc) http.HandlerFunc {
	if !t.Confirm {
		return next
	}
	return func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		v := pages.ViewerOf(ctx)
		if s.Operators.Confirmed(v.Login) {
			next(w, r)
			return
		}
		if err := r.ParseForm(); err != nil {
			s.Fail(w, r, pages.FormError(err))
			return
		}
		page := ui.ConfirmPage{Path: r.URL.RequestURI(), Name: v.Operator.Name, Fields: fieldsOf(r)}
		status := http.StatusForbidden
		if r.PostForm.Has(ui.ConfirmField) {
			err := s.confirm(r, r.PostFormValue(ui.ConfirmField))
			if err == nil {
				r.PostForm.Del(ui.ConfirmField)
				r.Form.Del(ui.ConfirmField)
				next(w, r)
				return
			}
			if status = pages.StatusOf(err); status >= http.StatusInternalServerError {
				s.Fail(w, r, err)
				return
			}
			page.Problem = pages.Explain(ctx, err)
		}
		s.Render(w, r, pages.Answer{Status: status, Page: page.Page(), Whole: true})
	}
}

// confirm checks the viewer's password, and records its time in the session.
func (s *Server) confirm(r *http.Request, password string) error {
	v := pages.ViewerOf(r.Context())
	err := s.checkPassword(r.Context(), *v.Operator, password)
	if errors.Is(err, errOldPassword) {
		s.Log.Warn("password not confirmed", "operator", v.Operator.Name, "from", request.ClientIP(r))
	}
	if err != nil {
		return err
	}
	return s.Operators.ConfirmLogin(r.Context(), v.Login.ID)
}

// fieldsOf returns the fields of the submitted form in a fixed order, without the password of
// [Server.confirming].
func fieldsOf(r *http.Request) (fields []ui.ConfirmedField) {
	for _, name := range slices.Sorted(maps.Keys(r.PostForm)) {
		for _, value := range r.PostForm[name] {
			if name != ui.ConfirmField {
				fields = append(fields, ui.ConfirmedField{Name: name, Value: value})
			}
		}
	}
	return fields
}
