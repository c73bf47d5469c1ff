package console

import (
	"bytes"
	"context"
	"net/http"

	"github.com/a-h/templ"

	"fleetd/fleet"
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
		s.keepBrowser(w, r)
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
	if err := a.page.Render(ui.WithPage(r.Context(), s.page(r)), &b); err != nil {
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

// page returns the facts about the request that every component may use.
func (s *Server) page(r *http.Request) ui.Page {
	v := viewerOf(r.Context())
	p := ui.Page{Lang: v.lang, Theme: v.theme, Density: v.density, Zone: v.zone, Now: s.now(), URL: r.URL,
		Open: s.EnrolmentMode == fleet.EnrolOpen}
	if v.operator == nil {
		p.Open = false // not shown to visitors without a session
		return p
	}
	p.Operator = &ui.Operator{Name: v.operator.Name, Role: v.operator.Role}
	p.Admin, p.InCluster = mayAdmin(r.Context()), s.InCluster
	p.Waiting = s.waitingFor(r.Context(), p.Now)
	p.Approvals = s.Approvals.WaitingFor(r.Context(), v.actor())
	p.Alerts = s.Alerts.Summary(v.actor())
	p.Flash = s.takeFlash(r.Context())
	return p
}

// inLanguage lets components and messages be rendered outside of a page.
func inLanguage(ctx context.Context) context.Context {
	v := viewerOf(ctx)
	return ui.WithPage(ctx, ui.Page{Lang: v.lang, Zone: v.zone, Admin: mayAdmin(ctx)})
}

// text returns a message in the language of the request.
func text(ctx context.Context, key string, args ...any) string {
	return ui.T(inLanguage(ctx), key, args...)
}

// mayAct reports whether the viewer may change and call devices, or some of them.
func mayAct(ctx context.Context) bool { return viewerOf(ctx).actor().Role.Allows(fleet.RoleOperator) }

// mayActOn reports whether the viewer may change and call the device.
func mayActOn(ctx context.Context, d fleet.Device) bool {
	return viewerOf(ctx).actor().RoleOn(d).Allows(fleet.RoleOperator)
}

// mayCall is mayActOn for a device's id.
func (s *Server) mayCall(ctx context.Context, id fleet.DeviceID) bool {
	if viewerOf(ctx).actor().Scope == nil {
		return mayAct(ctx)
	}
	d, err := s.Devices.Known(ctx, id)
	return err == nil && mayActOn(ctx, d)
}

// mayKeepFirmware reports whether the viewer may change images and releases.
func mayKeepFirmware(ctx context.Context) bool {
	return viewerOf(ctx).actor().FleetRole().Allows(fleet.RoleOperator)
}

// mayAdmin reports whether the viewer may change the fleet as a whole.
func mayAdmin(ctx context.Context) bool {
	return viewerOf(ctx).actor().FleetRole().Allows(fleet.RoleAdmin)
}
