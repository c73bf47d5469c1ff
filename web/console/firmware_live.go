package console

import (
	"context"
	"net/http"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/web/ui"
)

// A firmwareView follows the lists of releases and images.
type firmwareView struct {
	server *Server
	began  time.Time
	seen   map[string]bool // new ones that are counted already
}

func (v *firmwareView) pace() time.Duration { return paceCounts / 2 }

func (v *firmwareView) wants(e *fleet.Event) bool { return e.Kind == fleet.EventRelease }

func (v *firmwareView) begin(context.Context) (updates, error) { return updates{}, nil }

func (v *firmwareView) render(ctx context.Context, events []fleet.Event) (u updates, err error) {
	for _, e := range events {
		row, created, err := v.row(ctx, e.Subject)
		if statusOf(err) == 404 { // deleted meanwhile
			continue
		}
		if err != nil {
			return u, err
		}
		u.patches = append(u.patches, row)
		if created.After(v.began) && !v.seen[e.Subject] {
			v.seen[e.Subject] = true
			u.fresh++
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
		return nil, time.Time{}, errNoPage
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

func (v releaseView) pace() time.Duration { return paceCounts / 2 }

func (v releaseView) wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventRelease && e.Subject == v.id.String()
}

func (v releaseView) begin(ctx context.Context) (updates, error) {
	release, err := v.server.Firmware.Release(ctx, v.id)
	page := ui.FirmwareReleasePage{Release: release, CanAct: mayKeepFirmware(ctx)}
	return updates{patches: []templ.Component{page.Head()}}, err
}

func (v releaseView) render(ctx context.Context, _ []fleet.Event) (updates, error) {
	return v.begin(ctx)
}

func (s *Server) newFirmwareView(*http.Request) (view, error) {
	return &firmwareView{server: s, began: s.now(), seen: make(map[string]bool)}, nil
}

func (s *Server) newReleaseView(r *http.Request) (view, error) {
	id, err := subjectID(r)
	return releaseView{s, id}, err
}
