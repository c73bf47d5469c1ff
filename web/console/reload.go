package console

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"fleetd/web/ui"
)

// A form that was refused is shown again at the address it was sent to, which
// takes a POST alone. Whoever loads that address, or shares it, comes to the
// page with the form instead of an error.

// formPages are the pages of forms that are sent elsewhere than below their page.
var formPages = map[string]string{
	ui.PathDevices + "/{device}/config":     ui.PathDevices + "/{device}/configuration",
	ui.PathDevices + "/{device}/core-dumps": ui.PathDevices + "/{device}/logs",
	ui.PathDevices + "/{device}/quarantine": ui.PathDevices + "/{device}/firmware",
	ui.PathReleases:                         ui.PathReleaseNew,
	ui.PathFilters:                          ui.PathDevices,
	"/core-dumps":                           ui.PathDevices,
}

// formPage is the page on which the form of a POST stands: the nearest one
// above its address.
func formPage(post string, pages map[string]bool) string {
	for at := post; at != ""; at = at[:strings.LastIndexByte(at, '/')] {
		if page, ok := formPages[at]; ok {
			return page
		}
		if pages[at] {
			return at
		}
	}
	return ui.PathHome
}

// leadToForms answers a GET of each address that takes only a POST.
func (s *Server) leadToForms(r chi.Router, table []route) {
	pages := make(map[string]bool)
	for _, t := range table {
		pages[t.pattern] = pages[t.pattern] || t.method == http.MethodGet
	}
	for pattern, isPage := range pages {
		if isPage {
			continue
		}
		page := formPage(pattern, pages)
		r.Get(pattern, s.admit(anyPage, func(w http.ResponseWriter, r *http.Request) {
			to, asked := strings.Split(page, "/"), strings.Split(r.URL.EscapedPath(), "/")
			for i, part := range to {
				if strings.HasPrefix(part, "{") {
					to[i] = asked[i] // the parameters of both stand at the same places
				}
			}
			http.Redirect(w, r, strings.Join(to, "/"), http.StatusSeeOther)
		}))
	}
}
