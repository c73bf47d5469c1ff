package console

import (
	"context"
	"net/http"
	"sync"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/ui"
)

// frame returns the facts about the request that every component may use.
func (s *Server) frame(r *http.Request) ui.Page {
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
