package calls

import (
	"context"
	"net/http"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// A fanOutsView follows the list of fan-outs.
type fanOutsView struct{ server *Server }

func (v fanOutsView) Pace() time.Duration { return pages.PaceCounts }

func (v fanOutsView) Wants(e *fleet.Event) bool { return e.Kind == fleet.EventFanOut }

func (v fanOutsView) Begin(context.Context) (pages.Updates, error) { return pages.Updates{}, nil }

func (v fanOutsView) Render(ctx context.Context, events []fleet.Event) (u pages.Updates, err error) {
	for _, e := range events {
		row, err := v.server.FanOutRow(ctx, e.Subject)
		if err != nil {
			return u, err
		}
		u.Patches = append(u.Patches, row.Row())
	}
	return u, nil
}

// FanOutRow returns the fan-out that an event is about.
func (s *Server) FanOutRow(ctx context.Context, subject string) (ui.FanOutRow, error) {
	id, err := uuid.Parse(subject)
	if err != nil {
		return ui.FanOutRow{}, err
	}
	f, err := s.FanOuts.Get(ctx, id)
	if err != nil {
		return ui.FanOutRow{}, err
	}
	rows, err := s.FanOutRows(ctx, []call.FanOut{f})
	if err != nil {
		return ui.FanOutRow{}, err
	}
	return rows[0], nil
}

// A fanOutView follows the page of one fan-out.
type fanOutView struct {
	server *Server
	id     uuid.UUID
	by     call.AnswerGrouping
	last   ui.FanOutProgress
}

func (v *fanOutView) Pace() time.Duration { return pages.PaceCounts / 2 }

func (v *fanOutView) Wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventFanOut && e.Subject == v.id.String()
}

func (v *fanOutView) Begin(ctx context.Context) (pages.Updates, error) {
	ctx, cancel := context.WithTimeout(ctx, pages.ReadLimit)
	defer cancel()
	p, err := v.server.fanOutProgress(ctx, v.id, v.by)
	if err != nil {
		return v.withoutDatabase(err)
	}
	v.last = p
	return pages.Updates{Patches: []templ.Component{p.View()}}, nil
}

// withoutDatabase shows the last progress, and that the fan-out waits.
func (v *fanOutView) withoutDatabase(err error) (pages.Updates, error) {
	block := v.server.FanOuts.Blocked(v.id)
	if block == nil && pages.StatusOf(err) == http.StatusServiceUnavailable && v.last.FanOut.State == call.FanOutRunning {
		return pages.Updates{Later: true}, nil // the fan-out notices in a moment
	}
	if block == nil || v.last.FanOut.ID == uuid.Nil {
		return pages.Updates{}, err
	}
	v.last.Counts.Blocked = block
	return pages.Updates{Patches: []templ.Component{v.last.View()}}, nil
}

func (v *fanOutView) Render(ctx context.Context, _ []fleet.Event) (pages.Updates, error) {
	return v.Begin(ctx)
}

func (s *Server) newFanOutsView(*http.Request) (pages.View, error) { return fanOutsView{s}, nil }

func (s *Server) newFanOutView(r *http.Request) (pages.View, error) {
	id, err := pages.SubjectID(r)
	return &fanOutView{server: s, id: id, by: answerGrouping(r.URL.Query())}, err
}
