package devices

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-chi/httprate"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/request"
	"fleetd/web/ui"
)

// maxQueue is the maximum number of waiting devices on a page.
const maxQueue = 200

func (s *Server) claimPage(ctx context.Context) (ui.ClaimPage, error) {
	waiting, err := s.WaitingDevices(ctx)
	page := ui.ClaimPage{Mode: string(s.EnrolmentMode), CanAct: pages.MayAct(ctx), Setup: s.Setup(ctx), Waiting: waiting,
		Admin: pages.MayAdmin(ctx)}
	if pages.ViewerOf(ctx).Actor().FleetRole() != "" {
		page.Unlisted = s.Enrolments.Unlisted()
	}
	return page, err
}

// WaitingDevices returns the devices that request to join, longest first.
func (s *Server) WaitingDevices(ctx context.Context) (all []ui.WaitingDevice, err error) {
	me := pages.ViewerOf(ctx).Actor()
	waiting, err := s.Enrolments.WaitingInScope(ctx)
	if err != nil {
		return nil, err
	}
	waiting = waiting[:min(len(waiting), maxQueue)]
	decides := make(map[fleet.DeviceID]enrolment.RuleMatch)
	if s.EnrolmentMode != fleet.EnrolOpen && me.FleetRole() != "" {
		for _, m := range s.Rules.Preview(waiting) {
			decides[m.Device] = m
		}
	}
	for _, w := range waiting {
		d := ui.WaitingDevice{ID: w.Device, Board: w.Board, Version: w.Version, RemoteAddr: w.RemoteAddr, Since: w.Since,
			NewClient: w.Again, Why: w.Why,
			Serial: w.Serial, Proved: w.Proved, Conflict: w.Conflict}
		if s.EnrolmentMode == fleet.EnrolByApproval || w.Why != "" {
			d.Code = w.Code // not shown, and an approval of this code does not apply to a later request
		}
		if !w.LastPoll.IsZero() {
			d.LastPoll = &w.LastPoll
		}
		if m, ok := decides[w.Device]; ok && m.Enabled {
			d.Rule, d.RuleAction = m.Name, string(m.Action)
		}
		all = append(all, d)
	}
	return all, nil
}

func (s *Server) claimRoutes() []pages.Route {
	return []pages.Route{
		{Method: http.MethodGet, Pattern: ui.PathClaim, Role: fleet.RoleViewer, Reach: access.List, Page: s.showClaim},
		{Method: http.MethodPost, Pattern: ui.PathClaim, Role: fleet.RoleOperator, Reach: access.Record,
			Page: s.claimDevice},
	}
}

func (s *Server) showClaim(r *http.Request) (pages.Answer, error) {
	page, err := s.claimPage(r.Context())
	if err != nil {
		return pages.Answer{}, err
	}
	page.MQTT5.Open = r.URL.Query().Get("add") == "mqtt5"
	return pages.Show(page.Page())
}

func newClaims() *httprate.RateLimiter {
	return httprate.NewRateLimiter(20, time.Minute, httprate.WithResponseHeaders(httprate.ResponseHeaders{}))
}

var errTooManyClaims = fleet.Refuse(fleet.ErrTooMany, "too_many_attempts.claims")

// Claim admits the device that shows the code. A code has six digits: this function limits guesses
// by address, and enrolment limits them by operator.
func (s *Server) Claim(r *http.Request, code string) (fleet.DeviceID, error) {
	if s.claims.OnLimit(discard{}, r, httprate.CanonicalizeIP(request.ClientIP(r))) {
		return "", errTooManyClaims
	}
	return s.Enrolments.Claim(r.Context(), pages.ViewerOf(r.Context()).Actor(), code)
}

func (s *Server) claimDevice(r *http.Request) (pages.Answer, error) {
	ctx, code := r.Context(), r.PostFormValue("code")
	id, err := s.Claim(r, code)
	if errors.Is(err, errTooManyClaims) {
		return pages.Answer{}, err
	}
	if err != nil && pages.StatusOf(err) < http.StatusInternalServerError {
		page, readErr := s.claimPage(ctx)
		if readErr != nil {
			return pages.Answer{}, readErr
		}
		page.Code, page.Problem = fleet.CleanText(code, 12), pages.Explain(ctx, err)
		a, _ := pages.ShowAgain(page.Page())
		a.Status = pages.StatusOf(err)
		return a, nil
	}
	if err != nil {
		return pages.Answer{}, err
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.claimed", "device", fleet.Device{ID: id}.Title())})
	return pages.GoTo(ui.NamePath(id))
}

// discard ignores the headers that a limiter would write.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}
