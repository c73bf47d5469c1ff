package console

import (
	"context"
	"net/http"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/picture"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// Intervals of live pages: counting a large fleet or fan-out takes some milliseconds of the
// database each time.
const (
	paceRows   = 200 * time.Millisecond
	paceCounts = time.Second
)

// newView returns the view of the page in the address.
func (s *Server) newView(r *http.Request) (view, error) {
	q := r.URL.Query()
	switch q.Get("view") {
	case ui.ViewOverview:
		return overviewView{s}, nil
	case ui.ViewFanOuts:
		return fanOutsView{s}, nil
	case ui.ViewDevices:
		return s.newListView(r)
	case ui.ViewDevice:
		id, err := fleet.ParseDeviceID(q.Get("id"))
		if err != nil {
			return nil, errNoPage
		}
		return &deviceView{server: s, id: id, tab: q.Get("tab"), log: shownLog{filter: forms.NewLogFilter(q)},
			line: shownLine{list: listURL(r, ui.DevicePath(id), "show", "day", "entry")}, fresh: newCalls{began: s.now()}}, nil
	case ui.ViewCalls:
		f, err := callFilter(listURL(r, ui.PathCalls, "device", "tool", "actor", "state", "since", "until", "fanout",
			"conversation", "digest"),
			viewerOf(r.Context()).zone)
		return &callsView{server: s, filter: f, fresh: newCalls{began: s.now(), states: f.States}}, err
	case ui.ViewCall:
		id, err := uuid.Parse(q.Get("id"))
		if err != nil {
			return nil, errNoPage
		}
		return callPageView{s, id}, nil
	case ui.ViewConversations:
		f, err := conversationFilter(conversationList(r), viewerOf(r.Context()).zone)
		return &conversationsView{server: s, filter: f, began: s.now(), seen: make(map[string]bool)}, err
	case ui.ViewConversation:
		id, err := uuid.Parse(q.Get("id"))
		if err != nil {
			return nil, errNoPage
		}
		return conversationPageView{s, id}, nil
	case ui.ViewFanOut:
		id, err := uuid.Parse(q.Get("id"))
		if err != nil {
			return nil, errNoPage
		}
		return &fanOutView{server: s, id: id, by: answerGrouping(q)}, nil
	case ui.ViewCampaigns, ui.ViewCampaign, ui.ViewDeployments, ui.ViewDeployment:
		return s.newCampaignView(r)
	case ui.ViewApprovals:
		v := &approvalsView{server: s, began: s.now(), seen: map[uuid.UUID]bool{}}
		if id := q.Get("id"); id != "" {
			var err error
			if v.only, err = uuid.Parse(id); err != nil {
				return nil, errNoPage
			}
		}
		return v, nil
	case ui.ViewAlerts:
		return s.newAlertsView(r)
	case ui.ViewAudit:
		return s.newAuditView(r)
	case ui.ViewPlugins:
		return s.newPluginsView(r)
	case ui.ViewPlugin:
		return s.newPluginView(r)
	case ui.ViewEndpoints:
		return s.newEndpointsView(r)
	case ui.ViewEndpoint:
		return s.newEndpointView(r)
	case ui.ViewCluster:
		return s.newClusterView(r)
	case ui.ViewFlash:
		return s.newFlashView(r), nil
	case ui.ViewFirmware:
		return &firmwareView{server: s, began: s.now(), seen: make(map[string]bool)}, nil
	case ui.ViewRelease:
		id, err := uuid.Parse(q.Get("id"))
		if err != nil {
			return nil, errNoPage
		}
		return releaseView{s, id}, nil
	}
	return nil, errNoPage
}

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

// A deviceView follows the pages of one device.
type deviceView struct {
	server *Server
	id     fleet.DeviceID
	tab    string
	log    shownLog
	line   shownLine
	fresh  newCalls
}

func (v *deviceView) pace() time.Duration { return paceRows }

// wants includes releases: a newer release is among the acts.
func (v *deviceView) wants(e *fleet.Event) bool {
	return e.Device == v.id || e.Kind == fleet.EventRelease && v.tab == ""
}

func (v *deviceView) begin(ctx context.Context) (u updates, err error) {
	if u.patches, err = v.head(ctx); err != nil {
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

func (v *deviceView) render(ctx context.Context, events []fleet.Event) (u updates, err error) {
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
		u.fresh = v.fresh.count(calls)
	}
	if head {
		patches, err := v.head(ctx)
		if err != nil {
			return u, err
		}
		u.patches = append(u.patches, patches...)
	}
	return u, nil
}

// changesActs reports whether the call's result contains volume or battery, which the acts show.
func changesActs(c fleet.Call) bool {
	return c.State == fleet.CallSucceeded && (c.Tool == fleet.ToolSetVolume || c.Tool == fleet.ToolDeviceStatus)
}

// deployed shows the progress of a deployment, on the tab with deployments.
func (v *deviceView) deployed(ctx context.Context, u *updates) error {
	if v.tab != "firmware" {
		return nil
	}
	firmware, err := v.server.deviceUpdates(ctx, v.id)
	u.patches = append(u.patches, firmware.View())
	return err
}

// call shows a call in the tables and next to the form that made it. The outcome is repeated once,
// for a form whose response was still on its way.
func (v *deviceView) call(ctx context.Context, c fleet.Call, u *updates) error {
	view, err := v.server.callView(ctx, c, "")
	if err != nil {
		return err
	}
	view.Compact = true
	row := v.server.callRow(ctx, c, "")
	row.NoDevice = true
	u.patches = append(u.patches, row.Row())
	shown := view.View()
	if v.tab == "" || v.tab == "screen" {
		shown = view.Brief()
	}
	if c.State.Final() {
		u.again = append(u.again, shown)
	} else {
		u.patches = append(u.patches, shown)
	}
	return nil
}

// snapshot shows a picture that has just arrived: as the device's latest picture, and with its
// call.
func (v *deviceView) snapshot(ctx context.Context, subject string, u *updates) error {
	id, err := uuid.Parse(subject)
	if err != nil {
		return err
	}
	shot, err := v.server.Pictures.Snapshot(ctx, id)
	if err != nil {
		return err
	}
	if shot.Kind == picture.SnapshotScreen {
		u.patches = append(u.patches, snapshot(shot).View())
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

// A callPageView follows the page of one call.
type callPageView struct {
	server *Server
	id     uuid.UUID
}

func (v callPageView) pace() time.Duration { return paceRows }

func (v callPageView) wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventSnapshot || (e.Kind == fleet.EventCall && e.Call.ID == v.id)
}

func (v callPageView) begin(ctx context.Context) (updates, error) {
	c, err := v.server.Calls.Get(ctx, v.id)
	if err != nil {
		return updates{}, err
	}
	return v.show(ctx, c)
}

func (v callPageView) render(ctx context.Context, events []fleet.Event) (updates, error) {
	for _, e := range events {
		if e.Call != nil {
			return v.show(ctx, *e.Call)
		}
	}
	for _, e := range events {
		id, err := uuid.Parse(e.Subject)
		if err != nil {
			return updates{}, err
		}
		if shot, err := v.server.Pictures.Snapshot(ctx, id); err == nil && shot.Call == v.id {
			return v.begin(ctx)
		}
	}
	return updates{}, nil
}

func (v callPageView) show(ctx context.Context, c fleet.Call) (updates, error) {
	names, err := v.server.names(ctx, []fleet.Call{c})
	if err != nil {
		return updates{}, err
	}
	page, err := v.server.callView(ctx, c, names[c.Device])
	return updates{patches: []templ.Component{page.View()}}, err
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

// pageRead bounds the time of a stream's reads for its page: if the database hangs, the page shows
// it and the stream continues.
const pageRead = 3 * time.Second

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
