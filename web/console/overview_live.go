package console

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
)

// An overviewView follows the first page.
type overviewView struct{ server *Server }

func (v overviewView) pace() time.Duration { return paceCounts }

func (v overviewView) wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventPresence || e.Kind == fleet.EventDevice || e.Kind == fleet.EventFanOut ||
		e.Kind == fleet.EventAlert || ofCampaign(e)
}

func (v overviewView) begin(context.Context) (updates, error) { return updates{}, nil }

func (v overviewView) render(ctx context.Context, events []fleet.Event) (u updates, err error) {
	devices, alerts := false, false
	for _, e := range events {
		if e.Kind == fleet.EventAlert {
			alerts = true
			continue
		}
		if e.Kind != fleet.EventFanOut {
			devices = true // or the pending decisions
			continue
		}
		row, err := v.server.fanOutRow(ctx, e.Subject)
		if err != nil {
			return u, err
		}
		u.patches = append(u.patches, row.Brief())
	}
	if alerts {
		u.patches = append(u.patches, v.server.alertsNow(ctx).View())
	}
	for subject := range subjects(events) {
		if err := v.campaign(ctx, subject, &u); err != nil {
			return u, err
		}
	}
	if devices {
		now, needs, err := v.server.fleetNow(ctx)
		if err != nil {
			return u, err
		}
		u.patches = append(u.patches, now.View(), needs.View())
		u.later = true // presence reaches the store a moment after the event
	}
	return u, nil
}

func (v overviewView) campaign(ctx context.Context, subject string, u *updates) error {
	c, err := v.server.campaignOf(ctx, subject)
	if err != nil {
		return err
	}
	row, err := v.server.campaignRow(ctx, c)
	u.patches = append(u.patches, row.Brief())
	return err
}

func (s *Server) newOverviewView(*http.Request) (view, error) { return overviewView{s}, nil }
