package console

import (
	"net/http"

	"fleetd/web/forms"
	"fleetd/web/ui"
)

// showEquivalent writes what does the same as a form. It reads only the posted fields: whether the
// viewer may do it is decided when it is done.
func (s *Server) showEquivalent(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	equivalent, ok := forms.Equivalents[r.PostForm.Get(forms.EquivalentForm)]
	if !ok {
		return answer{}, errNoPage
	}
	return show(ui.Equivalent(equivalent(r.PostForm, s.now())))
}
