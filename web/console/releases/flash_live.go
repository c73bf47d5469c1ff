package releases

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/a-h/templ"

	"fleetd/fleet"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// maxJoining bounds how many devices of each kind the page lists.
const maxJoining = 20

// joining returns the devices that may be the newly installed one: waiting devices, new devices,
// and devices that started with exactly this build.
func (s *Server) joining(ctx context.Context, since time.Time, chosen *ui.FlashTarget) (ui.Joining, error) {
	j := ui.Joining{Since: since, CanAct: pages.MayAct(ctx)}
	elf := ""
	if chosen != nil {
		j.Image, elf = chosen.Image.SHA256, chosen.Image.ELFSHA256
	}
	waiting, err := s.devices.WaitingDevices(ctx)
	if err != nil {
		return j, err
	}
	slices.SortStableFunc(waiting, func(a, b ui.WaitingDevice) int { return polled(b).Compare(polled(a)) })
	j.Waiting = waiting[:min(len(waiting), maxJoining)]
	found, err := s.joined(ctx, since, elf)
	for _, d := range found[:min(len(found), maxJoining)] {
		j.Joined = append(j.Joined, ui.JoinedDevice{ID: d.ID, Title: d.Title(), Board: d.Board, Version: d.Version,
			Presence: d.Presence, At: started(d)})
	}
	return j, err
}

func polled(w ui.WaitingDevice) time.Time {
	if w.LastPoll == nil {
		return time.Time{}
	}
	return *w.LastPoll
}

// joined returns the enrolled devices that are new since then, or started with the build.
func (s *Server) joined(ctx context.Context, since time.Time, elf string) ([]fleet.Device, error) {
	newest, err := s.Devices.Devices(ctx, fleet.DeviceFilter{Sort: fleet.SortCreated, Desc: true, Limit: 2 * maxJoining})
	if err != nil {
		return nil, err
	}
	found := slices.DeleteFunc(newest.Items, func(d fleet.Device) bool { return d.CreatedAt.Before(since) })
	if elf != "" {
		again, err := s.startedWith(ctx, since, elf)
		if err != nil {
			return nil, err
		}
		found = append(found, again...)
	}
	found = slices.DeleteFunc(found, func(d fleet.Device) bool { return d.Enrolment != fleet.EnrolmentEnrolled })
	slices.SortFunc(found, func(a, b fleet.Device) int { return started(b).Compare(started(a)) })
	seen := map[fleet.DeviceID]bool{}
	return slices.DeleteFunc(found, func(d fleet.Device) bool {
		twice := seen[d.ID]
		seen[d.ID] = true
		return twice
	}), nil
}

func (s *Server) startedWith(ctx context.Context, since time.Time, elf string) ([]fleet.Device, error) {
	q, err := fleet.ParseQuery(ui.Term("elf", elf))
	if err != nil {
		return nil, err
	}
	found, err := s.Devices.Devices(ctx, fleet.DeviceFilter{Query: q, Sort: fleet.SortLastSeen, Desc: true,
		Limit: 2 * maxJoining})
	return slices.DeleteFunc(found.Items, func(d fleet.Device) bool {
		return d.LastPoll == nil ||
			d.LastPoll.Before(since)
	}), err
}

func started(d fleet.Device) time.Time {
	if d.LastPoll != nil {
		return *d.LastPoll
	}
	return d.CreatedAt
}

// A flashView follows the devices that join while a board is being installed.
type flashView struct {
	server *Server
	since  time.Time
	image  string
}

func (s *Server) newFlashView(r *http.Request) (pages.View, error) {
	return &flashView{server: s, since: s.since(r), image: r.URL.Query().Get("image")}, nil
}

func (v *flashView) Pace() time.Duration { return pages.PaceCounts }

func (v *flashView) Wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventDevice || e.Kind == fleet.EventPresence
}

// Begin sends nothing to viewers who may not install, because they do not have the page.
func (v *flashView) Begin(ctx context.Context) (pages.Updates, error) {
	if !pages.MayKeepFirmware(ctx) {
		return pages.Updates{}, nil
	}
	var page ui.FlashPage
	if err := v.server.choose(ctx, &page, v.image); err != nil {
		return pages.Updates{}, err
	}
	j, err := v.server.joining(ctx, v.since, page.Chosen)
	return pages.Updates{Patches: []templ.Component{j.View()}}, err
}

func (v *flashView) Render(ctx context.Context, _ []fleet.Event) (pages.Updates, error) {
	u, err := v.Begin(ctx)
	u.Later = true // polls reach the store a moment after the event
	return u, err
}
