package device

import (
	"context"
	"net/http"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/picture"
	"fleetd/web/console/calls"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// A deviceView follows the pages of one device.
type deviceView struct {
	server *Server
	id     fleet.DeviceID
	tab    string
	log    shownLog
	line   shownLine
	fresh  calls.Counter
}

func (v *deviceView) Pace() time.Duration { return pages.PaceRows }

// Wants includes releases: a newer release is among the acts.
func (v *deviceView) Wants(e *fleet.Event) bool {
	return e.Device == v.id || e.Kind == fleet.EventRelease && v.tab == ""
}

func (v *deviceView) Begin(ctx context.Context) (u pages.Updates, err error) {
	if u.Patches, err = v.head(ctx); err != nil {
		return u, err
	}
	if v.tab == tabLogs {
		return u, v.watchLog(ctx, &u)
	}
	if err := v.lineNews(ctx, &u); err != nil {
		return u, err
	}
	// Without the configuration: its form may contain typed text.
	if err := v.reported(ctx, fleet.EventVitals, &u); err != nil {
		return u, err
	}
	return u, v.reported(ctx, fleet.EventJob, &u)
}

// head returns all parts of the page that are about the device itself, from one read and in one
// patch: they agree at any moment.
func (v *deviceView) head(ctx context.Context) ([]templ.Component, error) {
	d, err := v.server.Devices.Device(ctx, v.id)
	if err != nil {
		return nil, err
	}
	head := v.server.headOf(ctx, d, v.tab)
	parts, facts := []templ.Component{head.View(), head.Tabs()}, v.server.deviceFacts(d)
	switch v.tab {
	case "":
		acts, err := v.server.deviceActs(ctx, d)
		if err != nil {
			return nil, err
		}
		parts = append(parts, head.Doubts(), acts.View(), acts.Charge(), facts.Brief())
	case "facts":
		if facts.Voice, err = v.server.deviceVoice(ctx, d.ID); err != nil {
			return nil, err
		}
		parts = append(parts, facts.View())
	}
	return []templ.Component{templ.Join(parts...)}, nil
}

func (v *deviceView) Render(ctx context.Context, events []fleet.Event) (u pages.Updates, err error) {
	head := false
	var calls []fleet.Call
	for _, e := range events {
		switch e.Kind {
		case fleet.EventCall:
			calls = append(calls, *e.Call)
			head = head || changesActs(*e.Call)
			err = v.call(ctx, *e.Call, &u)
		case fleet.EventSnapshot:
			err = v.snapshot(ctx, e.Subject, &u)
		case fleet.EventDeployed:
			head = head || v.tab == ""
			err = v.deployed(ctx, &u)
		case fleet.EventLog, fleet.EventCoreDump:
			err = v.logged(ctx, e.Kind, &u)
		case fleet.EventVitals, fleet.EventJob, fleet.EventConfig:
			err = v.reported(ctx, e.Kind, &u)
		default:
			head = true
		}
		if err != nil {
			return u, err
		}
	}
	if v.tab == "" {
		if err := v.lineNews(ctx, &u); err != nil {
			return u, err
		}
	} else {
		u.Fresh = v.fresh.Count(calls)
	}
	if head {
		patches, err := v.head(ctx)
		if err != nil {
			return u, err
		}
		u.Patches = append(u.Patches, patches...)
	}
	return u, nil
}

// changesActs reports whether the call's result contains volume or battery, which the acts show.
func changesActs(c fleet.Call) bool {
	return c.State == fleet.CallSucceeded && (c.Tool == fleet.ToolSetVolume || c.Tool == fleet.ToolDeviceStatus)
}

// deployed shows the progress of a deployment, on the tab with deployments.
func (v *deviceView) deployed(ctx context.Context, u *pages.Updates) error {
	if v.tab != "firmware" {
		return nil
	}
	firmware, err := v.server.deviceUpdates(ctx, v.id)
	u.Patches = append(u.Patches, firmware.View())
	return err
}

// call shows a call in the tables and next to the form that made it. The outcome is repeated once,
// for a form whose response was still on its way.
func (v *deviceView) call(ctx context.Context, c fleet.Call, u *pages.Updates) error {
	view, err := v.server.calls.Details(ctx, c, "")
	if err != nil {
		return err
	}
	view.Compact = true
	row := v.server.calls.Row(ctx, c, "")
	row.NoDevice = true
	u.Patches = append(u.Patches, row.Row())
	shown := view.View()
	if v.tab == "" || v.tab == "screen" {
		shown = view.Brief()
	}
	if c.State.Final() {
		u.Again = append(u.Again, shown)
	} else {
		u.Patches = append(u.Patches, shown)
	}
	return nil
}

// snapshot shows a picture that has just arrived: as the device's latest picture, and with its
// call.
func (v *deviceView) snapshot(ctx context.Context, subject string, u *pages.Updates) error {
	id, err := uuid.Parse(subject)
	if err != nil {
		return err
	}
	shot, err := v.server.Pictures.Snapshot(ctx, id)
	if err != nil {
		return err
	}
	if shot.Kind == picture.SnapshotScreen {
		u.Patches = append(u.Patches, calls.Snapshot(shot).View())
	}
	if shot.Call == uuid.Nil {
		return nil
	}
	c, err := v.server.Calls.Get(ctx, shot.Call)
	if err != nil {
		return err
	}
	return v.call(ctx, c, u)
}

func (s *Server) newDeviceView(r *http.Request) (pages.View, error) {
	q := r.URL.Query()
	id, err := fleet.ParseDeviceID(q.Get("id"))
	if err != nil {
		return nil, pages.ErrNoPage
	}
	return &deviceView{server: s, id: id, tab: q.Get("tab"), log: shownLog{filter: forms.NewLogFilter(q)},
		line: shownLine{list: pages.ListURL(r, ui.DevicePath(id), "show", "day", "entry")}, fresh: calls.Counter{Began: s.Now()}}, nil
}
