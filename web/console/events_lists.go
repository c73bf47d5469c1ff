package console

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/web/ui"
)

// loading is how far back a list looks for changes while its page was on the way to the browser.
const loading = 10 * time.Second

// maxRows bounds the rows of a list that one flush renders.
const maxRows = 100

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

func (s *Server) newListView(r *http.Request) (view, error) {
	f, err := deviceFilter(listURL(r, ui.PathDevices, "q", "sort", "desc"))
	if err != nil {
		return nil, err
	}
	shows, _ := deviceColumns(r)
	v := &listView{server: s, query: f.Query, shows: shows, rows: map[fleet.DeviceID]bool{},
		seen: map[fleet.DeviceID]bool{}, began: s.now()}
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

func (v *listView) pace() time.Duration { return paceCounts }

func (v *listView) wants(e *fleet.Event) bool {
	return v.rows[e.Device] && (e.Kind == fleet.EventPresence || e.Kind == fleet.EventInventory ||
		e.Kind == fleet.EventConversation) ||
		e.Kind == fleet.EventDevice
}

func (v *listView) begin(ctx context.Context) (u updates, err error) {
	var recent []fleet.Device
	for _, d := range v.first {
		if v.began.Sub(d.PresenceSince) < loading {
			recent = append(recent, d)
		}
	}
	v.first = nil
	return u, v.show(ctx, recent, &u)
}

func (v *listView) render(ctx context.Context, events []fleet.Event) (u updates, err error) {
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
		u.later = u.later || len(devices) < len(chunk) // a new device reaches the store a moment after the event
		if err := v.show(ctx, devices, &u); err != nil {
			return u, err
		}
	}
	return u, nil
}

func (v *listView) show(ctx context.Context, devices []fleet.Device, u *updates) error {
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
		u.patches = append(u.patches, row.Row())
	}
	return err
}

// count counts a device that is not on the page but matches its filter now.
func (v *listView) count(d fleet.Device, u *updates) {
	if v.seen[d.ID] || d.CreatedAt.Before(v.began) || v.query.Asks("tool") {
		return
	}
	if _, fits := v.query.Match(d, nil, v.server.now()); fits {
		v.seen[d.ID] = true
		u.fresh++
	}
}

// A callsView follows the list of calls: the outcomes of its rows, and the number of newer calls.
type callsView struct {
	server *Server
	filter call.Filter
	fresh  newCalls
}

func (v *callsView) pace() time.Duration { return paceRows }

// wants applies the whole filter except the outcome, because the outcomes of the rows change.
func (v *callsView) wants(e *fleet.Event) bool {
	if e.Kind != fleet.EventCall {
		return false
	}
	c, f := e.Call, v.filter
	return (f.Device == "" || f.Device == c.Device) && (f.Tool == "" || f.Tool == c.Tool) &&
		(f.Actor == "" || f.Actor == c.Actor.Name) && (f.FanOut == uuid.Nil || f.FanOut == c.FanOut) &&
		(f.Digest == "" || strings.Contains(string(c.Arguments), f.Digest)) &&
		(f.Conversation == uuid.Nil || f.Conversation.String() == c.Actor.ID)
}

func (v *callsView) begin(ctx context.Context) (u updates, err error) {
	found, err := v.server.Calls.List(ctx, v.filter)
	if err != nil {
		return u, err
	}
	var recent []fleet.Call
	for _, c := range found.Items {
		if c.FinishedAt != nil && v.fresh.began.Sub(*c.FinishedAt) < loading {
			recent = append(recent, c)
		}
	}
	return v.show(ctx, recent)
}

func (v *callsView) render(ctx context.Context, events []fleet.Event) (updates, error) {
	calls := make([]fleet.Call, len(events))
	for i, e := range events {
		calls[i] = *e.Call
	}
	// If there are very many calls, only the newest may be on the page.
	slices.SortFunc(calls, func(a, b fleet.Call) int { return slices.Compare(b.ID[:], a.ID[:]) })
	u, err := v.show(ctx, calls[:min(len(calls), maxRows)])
	u.fresh = v.fresh.count(calls)
	return u, err
}

// newCalls counts the calls made after the page.
type newCalls struct {
	began  time.Time
	states []fleet.CallState // only with these outcomes; empty for any
	newest uuid.UUID         // newest counted call
}

// count counts the calls that were not counted before. Ids increase with time.
func (n *newCalls) count(calls []fleet.Call) (fresh int) {
	last := n.newest
	for _, c := range calls {
		fits := len(n.states) == 0 || slices.Contains(n.states, c.State)
		if !fits || c.CreatedAt.Before(n.began) || slices.Compare(c.ID[:], last[:]) <= 0 {
			continue
		}
		if fresh++; slices.Compare(c.ID[:], n.newest[:]) > 0 {
			n.newest = c.ID
		}
	}
	return fresh
}

func (v *callsView) show(ctx context.Context, calls []fleet.Call) (u updates, err error) {
	rows, err := v.server.callRows(ctx, calls)
	for _, row := range rows {
		u.patches = append(u.patches, row.Row())
	}
	return u, err
}
