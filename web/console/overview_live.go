package console

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/web/console/pages"
	"fleetd/web/console/releases"
)

// An overviewView follows the first page.
type overviewView struct{ server *Server }

func (v overviewView) Pace() time.Duration { return pages.PaceCounts }

func (v overviewView) Wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventPresence || e.Kind == fleet.EventDevice || e.Kind == fleet.EventFanOut ||
		e.Kind == fleet.EventAlert || releases.OfCampaign(e)
}

func (v overviewView) Begin(context.Context) (pages.Updates, error) { return pages.Updates{}, nil }

func (v overviewView) Render(ctx context.Context, events []fleet.Event) (u pages.Updates, err error) {
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
		row, err := v.server.calls.FanOutRow(ctx, e.Subject)
		if err != nil {
			return u, err
		}
		u.Patches = append(u.Patches, row.Brief())
	}
	if alerts {
		u.Patches = append(u.Patches, v.server.record.AlertsNow(ctx).View())
	}
	for subject := range releases.Subjects(events) {
		if err := v.campaign(ctx, subject, &u); err != nil {
			return u, err
		}
	}
	if devices {
		now, needs, err := v.server.fleetNow(ctx)
		if err != nil {
			return u, err
		}
		u.Patches = append(u.Patches, now.View(), needs.View())
		u.Later = true // presence reaches the store a moment after the event
	}
	return u, nil
}

func (v overviewView) campaign(ctx context.Context, subject string, u *pages.Updates) error {
	c, err := v.server.releases.CampaignOf(ctx, subject)
	if err != nil {
		return err
	}
	row, err := v.server.releases.CampaignRow(ctx, c)
	u.Patches = append(u.Patches, row.Brief())
	return err
}

func (s *Server) newOverviewView(*http.Request) (pages.View, error) { return overviewView{s}, nil }
