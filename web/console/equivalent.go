package console

import (
	"net/http"

	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// showEquivalent writes what does the same as a form. It reads only the posted fields: whether the
// viewer may do it is decided when it is done.
func (s *Server) showEquivalent(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	equivalent, ok := forms.Equivalents[r.PostForm.Get(forms.EquivalentForm)]
	if !ok {
		return pages.Answer{}, pages.ErrNoPage
	}
	return pages.Show(ui.Equivalent(equivalent(r.PostForm, s.Now().In(pages.ViewerOf(r.Context()).Zone))))
}
