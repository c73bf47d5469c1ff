package devices

import (
	"context"
	"net/http"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// A listView follows a page of the device list: its rows, and the number of new devices that match
// its filter. If a whole fleet reconnects, it renders only its own rows.
type listView struct {
	server *Server
	query  fleet.Query
	shows  ui.Columns
	rows   map[fleet.DeviceID]bool // on the page
	seen   map[fleet.DeviceID]bool // already counted as new
	began  time.Time
	first  []fleet.Device
}

func (s *Server) newListView(r *http.Request) (pages.View, error) {
	f, err := deviceFilter(pages.ListURL(r, ui.PathDevices, "q", "sort", "desc"))
	if err != nil {
		return nil, err
	}
	shows, _ := deviceColumns(r)
	v := &listView{server: s, query: f.Query, shows: shows, rows: map[fleet.DeviceID]bool{},
		seen: map[fleet.DeviceID]bool{}, began: s.Now()}
	found, err := s.Devices.Devices(r.Context(), f)
	if err != nil {
		return nil, err
	}
	for _, d := range found.Items {
		v.rows[d.ID] = true
	}
	v.first = found.Items
	return v, nil
}

func (v *listView) Pace() time.Duration { return pages.PaceCounts }

func (v *listView) Wants(e *fleet.Event) bool {
	return v.rows[e.Device] && (e.Kind == fleet.EventPresence || e.Kind == fleet.EventInventory ||
		e.Kind == fleet.EventConversation) ||
		e.Kind == fleet.EventDevice
}

func (v *listView) Begin(ctx context.Context) (u pages.Updates, err error) {
	var recent []fleet.Device
	for _, d := range v.first {
		if v.began.Sub(d.PresenceSince) < pages.Loading {
			recent = append(recent, d)
		}
	}
	v.first = nil
	return u, v.show(ctx, recent, &u)
}

func (v *listView) Render(ctx context.Context, events []fleet.Event) (u pages.Updates, err error) {
	var ids []fleet.DeviceID
	for _, e := range events {
		if v.rows[e.Device] || !v.seen[e.Device] {
			ids = append(ids, e.Device)
		}
	}
	for chunk := range slices.Chunk(ids, fleet.MaxLimit) {
		devices, err := v.server.Devices.DevicesByID(ctx, chunk)
		if err != nil {
			return u, err
		}
		u.Later = u.Later || len(devices) < len(chunk) // a new device reaches the store a moment after the event
		if err := v.show(ctx, devices, &u); err != nil {
			return u, err
		}
	}
	return u, nil
}

func (v *listView) show(ctx context.Context, devices []fleet.Device, u *pages.Updates) error {
	var shown []fleet.Device
	for _, d := range devices {
		if v.rows[d.ID] {
			shown = append(shown, d)
		} else {
			v.count(d, u)
		}
	}
	rows, err := v.server.deviceRows(ctx, shown, v.shows)
	for _, row := range rows {
		u.Patches = append(u.Patches, row.Row())
	}
	return err
}

// count counts a device that is not on the page but matches its filter now.
func (v *listView) count(d fleet.Device, u *pages.Updates) {
	if v.seen[d.ID] || d.CreatedAt.Before(v.began) || v.query.Asks("tool") {
		return
	}
	if _, fits := v.query.Match(d, nil, v.server.Now()); fits {
		v.seen[d.ID] = true
		u.Fresh++
	}
}
