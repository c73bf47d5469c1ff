package pages

import (
	"bytes"
	"net/http"

	"github.com/a-h/templ"

	"fleetd/web/request"
	"fleetd/web/ui"
)

// A Handler reads a request, calls the services, and returns an answer.
type Handler func(r *http.Request) (Answer, error)

// An Answer is a page, or a redirect.
type Answer struct {
	Status   int // default: 200
	Page     templ.Component
	Location string // redirects there with 303 See Other
	Cookie   string // a preference that the browser stores; "" for none
	Value    string
	Whole    bool // the page replaces everything that htmx shows, not only the requested part
}

// Show returns an answer that shows the page.
func Show(c templ.Component) (Answer, error) { return Answer{Page: c}, nil }

// ShowAgain returns the page for a refused form: the form as typed, and its errors.
func ShowAgain(c templ.Component) (Answer, error) {
	return Answer{Status: http.StatusUnprocessableEntity, Page: c, Whole: true}, nil
}

// GoTo returns an answer that redirects to the location.
func GoTo(location string) (Answer, error) { return Answer{Location: location}, nil }

// Serve is the one adapter between handlers and HTTP.
func (s *Responder) Serve(h Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a, err := h(r)
		if err == nil && a.Cookie != "" {
			SetPreference(w, r, a.Cookie, a.Value)
		}
		KeepBrowser(w, r)
		switch {
		case err != nil:
			s.Fail(w, r, err)
		case a.Location != "":
			http.Redirect(w, r, a.Location, http.StatusSeeOther)
		default:
			s.Render(w, r, a)
		}
	}
}

// Render writes a page in one piece: a component that fails half-way must not leave half a page
// with status 200.
func (s *Responder) Render(w http.ResponseWriter, r *http.Request, a Answer) {
	var b bytes.Buffer
	if err := a.Page.Render(ui.WithPage(r.Context(), s.frame(r)), &b); err != nil {
		if r.Context().Err() == nil {
			s.log.Error("page not rendered", "path", request.Redact(r.URL.Path), "request", request.ID(w), "err", err)
		}
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	if a.Whole && FromHTMX(r) {
		// htmx would look for the part that the form requested; show the whole page instead.
		h.Set("HX-Retarget", "#main")
		h.Set("HX-Reselect", "#main")
		h.Set("HX-Reswap", "outerHTML")
	}
	if a.Status != 0 {
		w.WriteHeader(a.Status)
	}
	_, _ = w.Write(b.Bytes()) // an error means that the reader has gone
}

// FromHTMX reports whether htmx sent the request, for a part of a page.
func FromHTMX(r *http.Request) bool { return r.Header.Get("HX-Request") == "true" }

// KeepBrowser sets the cookie that marks a known browser, after a sign-in.
func KeepBrowser(w http.ResponseWriter, r *http.Request) {
	if c := ViewerOf(r.Context()).NewBrowser; c != nil {
		http.SetCookie(w, c)
	}
}
