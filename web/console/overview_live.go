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

// Begin shows what changed while the page was on its way.
func (v overviewView) Begin(ctx context.Context) (pages.Updates, error) {
	return v.show(ctx, true, true, true)
}

func (v overviewView) Render(ctx context.Context, events []fleet.Event) (u pages.Updates, err error) {
	devices, alerts, underWay := false, false, false
	for _, e := range events {
		alerts = alerts || e.Kind == fleet.EventAlert
		underWay = underWay || e.Kind == fleet.EventFanOut || releases.OfCampaign(&e)
		devices = devices || e.Kind != fleet.EventFanOut && e.Kind != fleet.EventAlert // or the pending decisions
	}
	u, err = v.show(ctx, devices, alerts, underWay)
	u.Later = devices || underWay // the store has it a moment after the event
	return u, err
}

// show returns the parts of the page that changed.
func (v overviewView) show(ctx context.Context, devices, alerts, underWay bool) (u pages.Updates, err error) {
	if alerts {
		u.Patches = append(u.Patches, v.server.record.AlertsNow(ctx).View())
	}
	if underWay {
		now, err := v.server.underWay(ctx)
		if err != nil {
			return u, err
		}
		u.Patches = append(u.Patches, now.View())
	}
	if devices {
		now, needs, err := v.server.fleetNow(ctx)
		if err != nil {
			return u, err
		}
		u.Patches = append(u.Patches, now.View(), needs.View())
	}
	return u, nil
}

func (s *Server) newOverviewView(*http.Request) (pages.View, error) { return overviewView{s}, nil }
