package calls

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// A callsView follows the list of calls: the outcomes of its rows, and the number of newer calls.
type callsView struct {
	server *Server
	filter call.Filter
	fresh  Counter
}

func (v *callsView) Pace() time.Duration { return pages.PaceRows }

// Wants applies the whole filter except the outcome, because the outcomes of the rows change.
func (v *callsView) Wants(e *fleet.Event) bool {
	if e.Kind != fleet.EventCall {
		return false
	}
	c, f := e.Call, v.filter
	return (f.Device == "" || f.Device == c.Device) && (f.Tool == "" || f.Tool == c.Tool) &&
		(f.Actor == "" || f.Actor == c.Actor.Name) && (f.FanOut == uuid.Nil || f.FanOut == c.FanOut) &&
		(f.Digest == "" || strings.Contains(string(c.Arguments), f.Digest)) &&
		(f.Conversation == uuid.Nil || f.Conversation.String() == c.Actor.ID)
}

func (v *callsView) Begin(ctx context.Context) (u pages.Updates, err error) {
	found, err := v.server.Calls.List(ctx, v.filter)
	if err != nil {
		return u, err
	}
	var recent []fleet.Call
	for _, c := range found.Items {
		if c.FinishedAt != nil && v.fresh.Began.Sub(*c.FinishedAt) < pages.Loading {
			recent = append(recent, c)
		}
	}
	return v.show(ctx, recent)
}

func (v *callsView) Render(ctx context.Context, events []fleet.Event) (pages.Updates, error) {
	calls := make([]fleet.Call, len(events))
	for i, e := range events {
		calls[i] = *e.Call
	}
	// If there are very many calls, only the newest may be on the page.
	slices.SortFunc(calls, func(a, b fleet.Call) int { return slices.Compare(b.ID[:], a.ID[:]) })
	u, err := v.show(ctx, calls[:min(len(calls), pages.MaxRows)])
	u.Fresh = v.fresh.Count(calls)
	return u, err
}

func (v *callsView) show(ctx context.Context, calls []fleet.Call) (u pages.Updates, err error) {
	rows, err := v.server.callRows(ctx, calls)
	for _, row := range rows {
		u.Patches = append(u.Patches, row.Row())
	}
	return u, err
}

// A Counter counts the calls made after the page.
type Counter struct {
	Began  time.Time
	states []fleet.CallState // only with these outcomes; empty for any
	newest uuid.UUID         // newest counted call
}

// Count counts the calls that were not counted before. Ids increase with time.
func (n *Counter) Count(calls []fleet.Call) (fresh int) {
	last := n.newest
	for _, c := range calls {
		fits := len(n.states) == 0 || slices.Contains(n.states, c.State)
		if !fits || c.CreatedAt.Before(n.Began) || slices.Compare(c.ID[:], last[:]) <= 0 {
			continue
		}
		if fresh++; slices.Compare(c.ID[:], n.newest[:]) > 0 {
			n.newest = c.ID
		}
	}
	return fresh
}

// A callPageView follows the page of one call.
type callPageView struct {
	server *Server
	id     uuid.UUID
}

func (v callPageView) Pace() time.Duration { return pages.PaceRows }

func (v callPageView) Wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventSnapshot || (e.Kind == fleet.EventCall && e.Call.ID == v.id)
}

func (v callPageView) Begin(ctx context.Context) (pages.Updates, error) {
	c, err := v.server.Calls.Get(ctx, v.id)
	if err != nil {
		return pages.Updates{}, err
	}
	return v.show(ctx, c)
}

func (v callPageView) Render(ctx context.Context, events []fleet.Event) (pages.Updates, error) {
	for _, e := range events {
		if e.Call != nil {
			return v.show(ctx, *e.Call)
		}
	}
	for _, e := range events {
		id, err := uuid.Parse(e.Subject)
		if err != nil {
			return pages.Updates{}, err
		}
		if shot, err := v.server.Pictures.Snapshot(ctx, id); err == nil && shot.Call == v.id {
			return v.Begin(ctx)
		}
	}
	return pages.Updates{}, nil
}

func (v callPageView) show(ctx context.Context, c fleet.Call) (pages.Updates, error) {
	names, err := v.server.names(ctx, []fleet.Call{c})
	if err != nil {
		return pages.Updates{}, err
	}
	page, err := v.server.Details(ctx, c, names[c.Device])
	return pages.Updates{Patches: []templ.Component{page.View()}}, err
}

func (s *Server) newCallsView(r *http.Request) (pages.View, error) {
	f, err := callFilter(pages.ListURL(r, ui.PathCalls, "device", "tool", "actor", "state", "since", "until", "fanout",
		"conversation", "digest"), pages.ViewerOf(r.Context()).Zone)
	return &callsView{server: s, filter: f, fresh: Counter{Began: s.Now(), states: f.States}}, err
}

func (s *Server) newCallView(r *http.Request) (pages.View, error) {
	id, err := pages.SubjectID(r)
	return callPageView{s, id}, err
}
