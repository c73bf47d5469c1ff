package releases

import (
	"context"
	"net/http"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// A firmwareView follows the lists of releases and images.
type firmwareView struct {
	server *Server
	began  time.Time
	seen   map[string]bool // new ones that are counted already
}

func (v *firmwareView) Pace() time.Duration { return pages.PaceCounts / 2 }

func (v *firmwareView) Wants(e *fleet.Event) bool { return e.Kind == fleet.EventRelease }

func (v *firmwareView) Begin(context.Context) (pages.Updates, error) { return pages.Updates{}, nil }

func (v *firmwareView) Render(ctx context.Context, events []fleet.Event) (u pages.Updates, err error) {
	for _, e := range events {
		row, created, err := v.row(ctx, e.Subject)
		if pages.StatusOf(err) == 404 { // deleted meanwhile
			continue
		}
		if err != nil {
			return u, err
		}
		u.Patches = append(u.Patches, row)
		if created.After(v.began) && !v.seen[e.Subject] {
			v.seen[e.Subject] = true
			u.Fresh++
		}
	}
	return u, nil
}

// row returns the list's row for the subject of an event: an image's SHA-256, or a release's id.
func (v *firmwareView) row(ctx context.Context, subject string) (templ.Component, time.Time, error) {
	if isSHA256(subject) {
		image, err := v.server.Firmware.Image(ctx, subject)
		if err != nil {
			return nil, time.Time{}, err
		}
		rows, err := v.server.imageRows(ctx, []firmware.Image{image})
		if err != nil {
			return nil, time.Time{}, err
		}
		return rows[0].Row(), image.CreatedAt, nil
	}
	id, err := uuid.Parse(subject)
	if err != nil {
		return nil, time.Time{}, pages.ErrNoPage
	}
	release, err := v.server.Firmware.Release(ctx, id)
	if err != nil {
		return nil, time.Time{}, err
	}
	rows, err := v.server.releaseRows(ctx, []firmware.Release{release})
	if err != nil {
		return nil, time.Time{}, err
	}
	return rows[0].Row(), release.CreatedAt, nil
}

// A releaseView follows the page of one release.
type releaseView struct {
	server *Server
	id     uuid.UUID
}

func (v releaseView) Pace() time.Duration { return pages.PaceCounts / 2 }

func (v releaseView) Wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventRelease && e.Subject == v.id.String()
}

func (v releaseView) Begin(ctx context.Context) (pages.Updates, error) {
	release, err := v.server.Firmware.Release(ctx, v.id)
	page := ui.FirmwareReleasePage{Release: release, CanAct: pages.MayKeepFirmware(ctx)}
	return pages.Updates{Patches: []templ.Component{page.Head()}}, err
}

func (v releaseView) Render(ctx context.Context, _ []fleet.Event) (pages.Updates, error) {
	return v.Begin(ctx)
}

func (s *Server) newFirmwareView(*http.Request) (pages.View, error) {
	return &firmwareView{server: s, began: s.Now(), seen: make(map[string]bool)}, nil
}

func (s *Server) newReleaseView(r *http.Request) (pages.View, error) {
	id, err := pages.SubjectID(r)
	return releaseView{s, id}, err
}
