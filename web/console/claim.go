package console

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-chi/httprate"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/access"
	"fleetd/web/request"
	"fleetd/web/ui"
)

// maxQueue is the maximum number of waiting devices on a page.
const maxQueue = 200

func (s *Server) claimPage(ctx context.Context) (ui.ClaimPage, error) {
	waiting, err := s.waitingDevices(ctx)
	page := ui.ClaimPage{Mode: string(s.EnrolmentMode), CanAct: mayAct(ctx), Setup: s.setup(ctx), Waiting: waiting,
		Admin: mayAdmin(ctx)}
	if viewerOf(ctx).actor().FleetRole() != "" {
		page.Unlisted = s.Enrolments.Unlisted()
	}
	return page, err
}

// waitingDevices returns the devices that request to join, longest first.
func (s *Server) waitingDevices(ctx context.Context) (all []ui.WaitingDevice, err error) {
	me := viewerOf(ctx).actor()
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

func (s *Server) claimRoutes() []route {
	return []route{
		{method: http.MethodGet, pattern: ui.PathClaim, role: fleet.RoleViewer, reach: access.List, page: s.showClaim},
		{method: http.MethodPost, pattern: ui.PathClaim, role: fleet.RoleOperator, reach: access.Record,
			page: s.claimDevice},
	}
}

func (s *Server) showClaim(r *http.Request) (answer, error) {
	page, err := s.claimPage(r.Context())
	if err != nil {
		return answer{}, err
	}
	page.MQTT5.Open = r.URL.Query().Get("add") == "mqtt5"
	return show(page.Page())
}

func newClaims() *httprate.RateLimiter {
	return httprate.NewRateLimiter(20, time.Minute, httprate.WithResponseHeaders(httprate.ResponseHeaders{}))
}

var errTooManyClaims = fleet.Refuse(fleet.ErrTooMany, "too_many_attempts.claims")

// claim admits the device that shows the code. A code has six digits: this function limits guesses
// by address, and enrolment limits them by operator.
func (s *Server) claim(r *http.Request, code string) (fleet.DeviceID, error) {
	if s.claims.OnLimit(discard{}, r, httprate.CanonicalizeIP(request.ClientIP(r))) {
		return "", errTooManyClaims
	}
	return s.Enrolments.Claim(r.Context(), viewerOf(r.Context()).actor(), code)
}

func (s *Server) claimDevice(r *http.Request) (answer, error) {
	ctx, code := r.Context(), r.PostFormValue("code")
	id, err := s.claim(r, code)
	if errors.Is(err, errTooManyClaims) {
		return answer{}, err
	}
	if err != nil && statusOf(err) < http.StatusInternalServerError {
		page, readErr := s.claimPage(ctx)
		if readErr != nil {
			return answer{}, readErr
		}
		page.Code, page.Problem = fleet.CleanText(code, 12), explain(ctx, err)
		a, _ := showAgain(page.Page())
		a.status = statusOf(err)
		return a, nil
	}
	if err != nil {
		return answer{}, err
	}
	s.flash(ctx, ui.Flash{Text: text(ctx, "flash.claimed", "device", fleet.Device{ID: id}.Title())})
	return goTo(ui.NamePath(id))
}

// discard ignores the headers that a limiter would write.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}
