package console

import (
	"context"
	"net/http"
	"sync"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// frame returns the facts about the request that every component may use.
func (s *Server) frame(r *http.Request) ui.Page {
	v := pages.ViewerOf(r.Context())
	p := ui.Page{Lang: v.Lang, Theme: v.Theme, Density: v.Density, Zone: v.Zone, Now: s.Now(), URL: r.URL,
		Open: s.EnrolmentMode == fleet.EnrolOpen}
	if v.Operator == nil {
		p.Open = false // not shown to visitors without a session
		return p
	}
	p.Operator = &ui.Operator{Name: v.Operator.Name, Role: v.Operator.Role}
	p.Admin, p.InCluster = pages.MayAdmin(r.Context()), s.InCluster
	p.Waiting = s.waitingFor(r.Context(), p.Now)
	p.Approvals = s.Approvals.WaitingFor(r.Context(), v.Actor())
	p.Alerts = s.Alerts.Summary(v.Actor())
	p.Flash = s.TakeFlash(r.Context())
	return p
}

// waitingFor counts the devices that wait for the viewer's decision.
func (s *Server) waitingFor(ctx context.Context, now time.Time) int {
	if _, narrow := fleet.ScopeOf(ctx); !narrow {
		return s.waiting.get(s.Enrolments, now)
	}
	all, err := s.Enrolments.WaitingInScope(ctx)
	if err != nil {
		return 0 // the page itself shows the error
	}
	return len(all)
}

// A waitingCount caches for a moment how many devices wait for a decision, because every page shows
// the number.
type waitingCount struct {
	mu sync.Mutex
	at time.Time
	n  int
}

func (c *waitingCount) get(e *enrolment.Service, now time.Time) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if age := now.Sub(c.at); age < 0 || age > time.Second {
		c.at, c.n = now, len(e.Waiting())
	}
	return c.n
}
