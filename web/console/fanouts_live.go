package console

import (
	"context"
	"net/http"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/web/ui"
)

// A fanOutsView follows the list of fan-outs.
type fanOutsView struct{ server *Server }

func (v fanOutsView) pace() time.Duration { return paceCounts }

func (v fanOutsView) wants(e *fleet.Event) bool { return e.Kind == fleet.EventFanOut }

func (v fanOutsView) begin(context.Context) (updates, error) { return updates{}, nil }

func (v fanOutsView) render(ctx context.Context, events []fleet.Event) (u updates, err error) {
	for _, e := range events {
		row, err := v.server.fanOutRow(ctx, e.Subject)
		if err != nil {
			return u, err
		}
		u.patches = append(u.patches, row.Row())
	}
	return u, nil
}

// fanOutRow returns the fan-out that an event is about.
func (s *Server) fanOutRow(ctx context.Context, subject string) (ui.FanOutRow, error) {
	id, err := uuid.Parse(subject)
	if err != nil {
		return ui.FanOutRow{}, err
	}
	f, err := s.FanOuts.Get(ctx, id)
	if err != nil {
		return ui.FanOutRow{}, err
	}
	rows, err := s.fanOutRows(ctx, []call.FanOut{f})
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

func (v *fanOutView) pace() time.Duration { return paceCounts / 2 }

func (v *fanOutView) wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventFanOut && e.Subject == v.id.String()
}

func (v *fanOutView) begin(ctx context.Context) (updates, error) {
	ctx, cancel := context.WithTimeout(ctx, pageRead)
	defer cancel()
	p, err := v.server.fanOutProgress(ctx, v.id, v.by)
	if err != nil {
		return v.withoutDatabase(err)
	}
	v.last = p
	return updates{patches: []templ.Component{p.View()}}, nil
}

// withoutDatabase shows the last progress, and that the fan-out waits.
func (v *fanOutView) withoutDatabase(err error) (updates, error) {
	block := v.server.FanOuts.Blocked(v.id)
	if block == nil && statusOf(err) == http.StatusServiceUnavailable && v.last.FanOut.State == call.FanOutRunning {
		return updates{later: true}, nil // the fan-out notices in a moment
	}
	if block == nil || v.last.FanOut.ID == uuid.Nil {
		return updates{}, err
	}
	v.last.Counts.Blocked = block
	return updates{patches: []templ.Component{v.last.View()}}, nil
}

func (v *fanOutView) render(ctx context.Context, _ []fleet.Event) (updates, error) {
	return v.begin(ctx)
}

func (s *Server) newFanOutsView(*http.Request) (view, error) { return fanOutsView{s}, nil }

func (s *Server) newFanOutView(r *http.Request) (view, error) {
	id, err := subjectID(r)
	return &fanOutView{server: s, id: id, by: answerGrouping(r.URL.Query())}, err
}
