package console

import (
	"net/http"

	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// setPreferences stores the language, the theme and the density of lists from the forms in the frame of every page, and
// redirects to that page.
func (s *Server) setPreferences(w http.ResponseWriter, r *http.Request) {
	if lang := r.PostFormValue("lang"); known(lang) {
		pages.SetPreference(w, r, cookieLang, lang)
		if o := pages.ViewerOf(r.Context()).Operator; o != nil {
			if err := s.Operators.SetLocale(r.Context(), o.Principal(), o.ID, lang); err != nil {
				s.Fail(w, r, err)
				return
			}
		}
	}
	switch theme := r.PostFormValue("theme"); theme {
	case "auto", "light", "dark":
		pages.SetPreference(w, r, cookieTheme, theme)
	}
	switch density := r.PostFormValue("density"); density {
	case ui.DensityNormal, ui.DensityCompact:
		pages.SetPreference(w, r, cookieDensity, density)
	}
	http.Redirect(w, r, localNext(r.PostFormValue("next")), http.StatusSeeOther)
}

// localNext is [pages.LocalPath] for pages that the reader sees now, including the sign-in page.
func localNext(path string) string {
	if path == ui.PathSignIn {
		return path
	}
	return pages.LocalPath(path)
}

// showStyleguide shows developers all components of the console.
func (s *Server) showStyleguide(*http.Request) (pages.Answer, error) {
	if !s.Styleguide {
		return pages.Answer{}, pages.ErrNoPage
	}
	return pages.Show(ui.StyleguidePage{}.Page())
}

func (s *Server) showHelp(*http.Request) (pages.Answer, error) {
	return pages.Show(ui.HelpPage{}.Page())
}
