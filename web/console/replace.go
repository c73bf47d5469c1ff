package console

import (
	"net/http"
	"strings"

	"github.com/go-chi/httprate"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/request"
	"fleetd/web/ui"
)

func (s *Server) replaceRoutes() []route {
	replace := ui.PathDevices + "/{device}/replace"
	return []route{
		{method: http.MethodGet, pattern: replace, role: fleet.RoleOperator, reach: access.Device,
			page: s.showReplace},
		{method: http.MethodPost, pattern: replace, role: fleet.RoleAdmin, reach: access.Device,
			page: s.replaceDevice},
	}
}

// showReplace shows the form for the replacement unit, or the preview.
func (s *Server) showReplace(r *http.Request) (answer, error) {
	d, err := s.board(r)
	if err != nil {
		return answer{}, err
	}
	return s.replacePage(r, d, r.URL.Query().Get("successor"), r.URL.Query().Get("code"))
}

func (s *Server) replacePage(r *http.Request, d fleet.Device, successor, code string) (answer, error) {
	ctx := r.Context()
	page := ui.ReplacePage{Head: s.head(r, d, ""), Successor: fleet.CleanText(successor, 80), Code: fleet.CleanText(code,
		12), CanAct: viewerOf(r.Context()).actor().RoleOn(d).Allows(fleet.RoleAdmin)}
	waiting, err := s.waitingDevices(ctx)
	if err != nil {
		return answer{}, err
	}
	for _, w := range waiting {
		if !w.NewClient {
			page.Waiting = append(page.Waiting, w)
		}
	}
	id, err := s.successor(r, successor, code)
	if err == nil && id != "" {
		var plan fleet.Replacement
		if plan, err = s.Devices.PlanReplacement(ctx, d.ID, id); err == nil {
			page.Plan = &plan
		}
	}
	if err == nil {
		return show(page.Page())
	}
	if statusOf(err) >= http.StatusInternalServerError {
		return answer{}, err
	}
	page.Problem = explain(ctx, err)
	a, _ := showAgain(page.Page())
	a.status = statusOf(err)
	return a, nil
}

// successor returns the unit in a form, by its id or the code that it shows; "" without one.
// Guesses of codes are limited as for a claim.
func (s *Server) successor(r *http.Request, successor, code string) (fleet.DeviceID, error) {
	switch {
	case strings.TrimSpace(successor) != "":
		return fleet.ParseDeviceID(successor)
	case strings.TrimSpace(code) == "":
		return "", nil
	case s.claims.OnLimit(discard{}, r, httprate.CanonicalizeIP(request.ClientIP(r))):
		return "", errTooManyClaims
	}
	return s.Enrolments.ByCode(r.Context(), viewerOf(r.Context()).actor(), code)
}

// replaceDevice requires the typed id of the old device, because its retirement is final.
func (s *Server) replaceDevice(r *http.Request) (answer, error) {
	d, err := s.board(r)
	if err != nil {
		return answer{}, err
	}
	ctx, code := r.Context(), strings.NewReplacer(" ", "", "-", "").Replace(r.PostFormValue("code"))
	successor, err := fleet.ParseDeviceID(r.PostFormValue("successor"))
	if err != nil {
		return answer{}, err
	}
	if typed, err := fleet.ParseDeviceID(r.PostFormValue("confirm")); err != nil || typed != d.ID {
		return answer{}, errNotConfirmed
	}
	_, err = s.Devices.Replace(ctx, viewerOf(ctx).actor(), d.ID, successor, code)
	if err != nil && statusOf(err) < http.StatusInternalServerError {
		page := ui.ReplacePage{Head: s.head(r, d, ""), Successor: string(successor), CanAct: viewerOf(r.Context()).actor().RoleOn(d).Allows(fleet.RoleAdmin),
			Problem: explain(ctx, err)}
		a, _ := showAgain(page.Page())
		a.status = statusOf(err)
		return a, nil
	}
	if err != nil {
		return answer{}, err
	}
	s.flash(ctx, ui.Flash{Text: text(ctx, "flash.replaced", "device", d.Title())})
	return goTo(ui.DevicePath(successor))
}
