package console

import (
	"bytes"
	"net/http"
	"time"

	"github.com/a-h/templ"

	"fleetd/web/request"
	"fleetd/web/ui"
)

// A handler reads a request, calls the services, and returns an answer.
type handler func(r *http.Request) (answer, error)

// An answer is a page, or a redirect.
type answer struct {
	status   int // default: 200
	page     templ.Component
	location string // redirects there with 303 See Other
	cookie   string // a preference that the browser stores; "" for none
	value    string
	whole    bool // the page replaces everything that htmx shows, not only the requested part
}

func show(c templ.Component) (answer, error) { return answer{page: c}, nil }

// showAgain returns the page for a refused form: the form as typed, and its errors.
func showAgain(c templ.Component) (answer, error) {
	return answer{status: http.StatusUnprocessableEntity, page: c, whole: true}, nil
}

func goTo(location string) (answer, error) { return answer{location: location}, nil }

// serve is the one adapter between handlers and HTTP.
func (s *Server) serve(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a, err := h(r)
		if err == nil && a.cookie != "" {
			setPreference(w, r, a.cookie, a.value)
		}
		keepBrowser(w, r)
		switch {
		case err != nil:
			s.fail(w, r, err)
		case a.location != "":
			http.Redirect(w, r, a.location, http.StatusSeeOther)
		default:
			s.render(w, r, a)
		}
	}
}

// render writes a page in one piece: a component that fails half-way must not leave half a page
// with status 200.
func (s *Server) render(w http.ResponseWriter, r *http.Request, a answer) {
	var b bytes.Buffer
	if err := a.page.Render(ui.WithPage(r.Context(), s.frame(r)), &b); err != nil {
		if r.Context().Err() == nil {
			s.Log.Error("page not rendered", "path", request.Redact(r.URL.Path), "request", request.ID(w), "err", err)
		}
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	if a.whole && fromHTMX(r) {
		// htmx would look for the part that the form requested; show the whole page instead.
		h.Set("HX-Retarget", "#main")
		h.Set("HX-Reselect", "#main")
		h.Set("HX-Reswap", "outerHTML")
	}
	if a.status != 0 {
		w.WriteHeader(a.status)
	}
	_, _ = w.Write(b.Bytes()) // an error means that the reader has gone
}

func fromHTMX(r *http.Request) bool { return r.Header.Get("HX-Request") == "true" }

// keepBrowser sets the cookie that marks a known browser, after a sign-in.
func keepBrowser(w http.ResponseWriter, r *http.Request) {
	if c := viewerOf(r.Context()).newBrowser; c != nil {
		http.SetCookie(w, c)
	}
}

func (s *Server) now() time.Time { return s.Now().UTC() }
