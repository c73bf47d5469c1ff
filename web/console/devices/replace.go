package devices

import (
	"net/http"
	"strings"

	"github.com/go-chi/httprate"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/request"
	"fleetd/web/ui"
)

func (s *Server) replaceRoutes() []pages.Route {
	replace := ui.PathDevices + "/{device}/replace"
	return []pages.Route{
		{Method: http.MethodGet, Pattern: replace, Role: fleet.RoleOperator, Reach: access.Device,
			Page: s.showReplace},
		{Method: http.MethodPost, Pattern: replace, Role: fleet.RoleAdmin, Reach: access.Device,
			Page: s.replaceDevice},
	}
}

// showReplace shows the form for the replacement unit, or the preview.
func (s *Server) showReplace(r *http.Request) (pages.Answer, error) {
	d, err := s.device.Board(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return s.replacePage(r, d, r.URL.Query().Get("successor"), r.URL.Query().Get("code"))
}

func (s *Server) replacePage(r *http.Request, d fleet.Device, successor, code string) (pages.Answer, error) {
	ctx := r.Context()
	page := ui.ReplacePage{Head: s.device.Head(r, d, ""), Successor: fleet.CleanText(successor, 80), Code: fleet.CleanText(code,
		12), CanAct: pages.ViewerOf(r.Context()).Actor().RoleOn(d).Allows(fleet.RoleAdmin)}
	waiting, err := s.WaitingDevices(ctx)
	if err != nil {
		return pages.Answer{}, err
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
		return pages.Show(page.Page())
	}
	if pages.StatusOf(err) >= http.StatusInternalServerError {
		return pages.Answer{}, err
	}
	page.Problem = pages.Explain(ctx, err)
	a, _ := pages.ShowAgain(page.Page())
	a.Status = pages.StatusOf(err)
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
	return s.Enrolments.ByCode(r.Context(), pages.ViewerOf(r.Context()).Actor(), code)
}

// replaceDevice requires the typed id of the old device, because its retirement is final.
func (s *Server) replaceDevice(r *http.Request) (pages.Answer, error) {
	d, err := s.device.Board(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx, code := r.Context(), strings.NewReplacer(" ", "", "-", "").Replace(r.PostFormValue("code"))
	successor, err := fleet.ParseDeviceID(r.PostFormValue("successor"))
	if err != nil {
		return pages.Answer{}, err
	}
	if typed, err := fleet.ParseDeviceID(r.PostFormValue("confirm")); err != nil || typed != d.ID {
		return pages.Answer{}, pages.ErrNotConfirmed
	}
	_, err = s.Devices.Replace(ctx, pages.ViewerOf(ctx).Actor(), d.ID, successor, code)
	if err != nil && pages.StatusOf(err) < http.StatusInternalServerError {
		page := ui.ReplacePage{Head: s.device.Head(r, d, ""), Successor: string(successor),
			CanAct:  pages.ViewerOf(r.Context()).Actor().RoleOn(d).Allows(fleet.RoleAdmin),
			Problem: pages.Explain(ctx, err)}
		a, _ := pages.ShowAgain(page.Page())
		a.Status = pages.StatusOf(err)
		return a, nil
	}
	if err != nil {
		return pages.Answer{}, err
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.replaced", "device", d.Title())})
	return pages.GoTo(ui.DevicePath(successor))
}
