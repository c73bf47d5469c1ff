package console

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// A refused form is shown again at the address of its POST. A GET of that address, after a reload
// or from a shared link, redirects to the page with the form instead of failing.

// formPages are the pages of forms that are sent to an address not below their page.
var formPages = map[string]string{
	ui.PathDevices + "/{device}/config":     ui.PathDevices + "/{device}/configuration",
	ui.PathDevices + "/{device}/core-dumps": ui.PathDevices + "/{device}/logs",
	ui.PathDevices + "/{device}/quarantine": ui.PathDevices + "/{device}/firmware",
	ui.PathReleases:                         ui.PathReleaseNew,
	ui.PathFilters:                          ui.PathDevices,
	"/core-dumps":                           ui.PathDevices,
}

// formPage returns the page that contains the form of a POST: the nearest page above its address.
func formPage(post string, shown map[string]bool) string {
	for at := post; at != ""; at = at[:strings.LastIndexByte(at, '/')] {
		if page, ok := formPages[at]; ok {
			return page
		}
		if shown[at] {
			return at
		}
	}
	return ui.PathHome
}

// leadToForms handles a GET of each address that accepts only a POST.
func (s *Server) leadToForms(r chi.Router, table []pages.Route) {
	shown := make(map[string]bool)
	for _, t := range table {
		shown[t.Pattern] = shown[t.Pattern] || t.Method == http.MethodGet
	}
	for pattern, isPage := range shown {
		if isPage {
			continue
		}
		page := formPage(pattern, shown)
		r.Get(pattern, s.admit(anyPage, func(w http.ResponseWriter, r *http.Request) {
			to, asked := strings.Split(page, "/"), strings.Split(r.URL.EscapedPath(), "/")
			for i, part := range to {
				if strings.HasPrefix(part, "{") {
					to[i] = asked[i] // the parameters of both are at the same positions
				}
			}
			http.Redirect(w, r, strings.Join(to, "/"), http.StatusSeeOther)
		}))
	}
}
