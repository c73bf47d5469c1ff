package device

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/picture"
	"fleetd/web/access"
	"fleetd/web/console/calls"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// Maximum lengths of lists on a device's pages.
const (
	recentOfDevice = 8
	maxFactsShown  = 64 << 10
)

// Device returns the device in the address.
func (s *Server) Device(r *http.Request) (fleet.Device, error) {
	id, err := pages.DeviceID(r)
	if err != nil {
		return fleet.Device{}, err
	}
	return s.Devices.Device(r.Context(), id)
}

// Board returns the device in the address, if it is a board: others have no page about screen, health
// or logs.
func (s *Server) Board(r *http.Request) (fleet.Device, error) {
	d, err := s.Device(r)
	if err == nil && !d.IsBoard() {
		err = pages.ErrNoPage
	}
	return d, err
}

// deviceFacts returns a device's facts, with what a connected program says about itself.
func (s *Server) deviceFacts(d fleet.Device) ui.DeviceFacts {
	facts := ui.NewDeviceFacts(d)
	if s.Program != nil && d.ID.IsProgram() {
		facts.Server, _ = s.Program(d.ID)
	}
	return facts
}

// Head returns the head of a device's page for one of its tabs.
func (s *Server) Head(r *http.Request, d fleet.Device, tab string) ui.DeviceHead {
	return s.headOf(r.Context(), d, tab)
}

func (s *Server) headOf(ctx context.Context, d fleet.Device, tab string) ui.DeviceHead {
	h := ui.NewDeviceHead(d, tab, s.Now(), pages.MayActOn(ctx, d))
	h.Talking = s.Conversation(d.ID)
	h.Held = len(s.heldTools(d))
	if d.InventoryID == "" || !d.IsBoard() {
		return h
	}
	if inv, err := s.Devices.Inventory(ctx, d.InventoryID); err == nil {
		_, h.CanSnap = inv.Tool(fleet.ToolSnapshot)
		h.HasLogs = ui.NewOffers(inv).Any()
	}
	h.Reports, _ = s.reporting(ctx, d.ID) // on an error the tab is not shown
	if newest, err := picture.Newest(ctx, s.Pictures, d.ID, picture.SnapshotScreen); err == nil {
		shot := calls.Snapshot(newest)
		h.Thumb = &shot
	}
	return h
}

func (s *Server) deviceRoutes() []pages.Route {
	const viewer, operator, admin = fleet.RoleViewer, fleet.RoleOperator, fleet.RoleAdmin
	const get, post = http.MethodGet, http.MethodPost
	const device = ui.PathDevices + "/{device}"
	return []pages.Route{
		{Method: get, Pattern: device, Role: viewer, Reach: access.Device, Page: s.showDevice},
		{Method: get, Pattern: device + "/activity", Role: viewer, Reach: access.Device, Page: s.showActivity},
		{Method: get, Pattern: device + "/firmware", Role: viewer, Reach: access.Device, Page: s.showFirmware},
		{Method: get, Pattern: device + "/facts", Role: viewer, Reach: access.Device, Page: s.showFacts},
		{Method: get, Pattern: device + "/screen", Role: viewer, Reach: access.Device, Page: s.showScreen},
		{Method: get, Pattern: device + "/name", Role: operator, Reach: access.Device, Page: s.showName},
		{Method: post, Pattern: device + "/edit", Role: operator, Reach: access.Device, Page: s.editDevice},
		{Method: post, Pattern: device + "/hold", Role: operator, Reach: access.Device, Page: s.holdDevice},
		{Method: post, Pattern: device + "/release", Role: operator, Reach: access.Device, Page: s.releaseDevice},
		{Method: post, Pattern: device + "/approve", Role: operator, Reach: access.Device, Page: s.approveDevice},
		{Method: post, Pattern: device + "/reject", Role: operator, Reach: access.Device, Page: s.rejectDevice},
		{Method: post, Pattern: device + "/resolve-conflict", Role: operator, Reach: access.Device,
			Page: s.resolveConflict},
		{Method: post, Pattern: device + "/quarantine", Role: operator, Reach: access.Device, Page: s.clearQuarantine},
		{Method: post, Pattern: device + "/retire", Role: admin, Reach: access.Device, Page: s.retireDevice},
	}
}

func (s *Server) showDevice(r *http.Request) (pages.Answer, error) {
	d, err := s.Device(r)
	if err != nil {
		return pages.Answer{}, err
	}
	page, err := s.devicePage(r, d)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) devicePage(r *http.Request, d fleet.Device) (page ui.DevicePage, err error) {
	ctx := r.Context()
	page.Head = s.Head(r, d, "")
	page.Latest = page.Head.Thumb
	page.About = s.deviceFacts(d)
	if page.Line, err = s.timeline(ctx, pages.ListURL(r, ui.DevicePath(d.ID), "show", "day", "entry"), d.ID); err != nil {
		return page, err
	}
	page.Head.Live, page.Line.Kind, page.Line.CanCall = page.Line.List.Values, d.Kind, page.Head.Callable()
	if page.Entry, err = s.chosenEntry(ctx, page.Line, d); err != nil {
		return page, err
	}
	if page.Acts, err = s.deviceActs(ctx, d); err != nil {
		return page, err
	}
	if page.Acts.Last, err = s.lastCall(r, d); err != nil {
		return page, err
	}
	if page.Calls, err = s.callsOfDay(ctx, d.ID); err != nil || !d.IsBoard() {
		return page, err
	}
	if page.Vitals, err = s.deviceVitals(ctx, d); err != nil {
		return page, err
	}
	page.Sparks, err = s.healthTrends(ctx, d, page.Vitals, ui.ParseHealthRange("", s.Now().Sub(d.CreatedAt)))
	return page, err
}

// chosenEntry returns the entry of the time line that the address names; nil if it names none.
func (s *Server) chosenEntry(ctx context.Context, line ui.Timeline, d fleet.Device) (*ui.TimelineDetail, error) {
	i := slices.IndexFunc(line.Entries, func(e fleet.TimelineEntry) bool { return e.Key == line.List.Get("entry") })
	if i < 0 {
		return nil, nil
	}
	detail := &ui.TimelineDetail{Row: line.Row(line.Entries[i])}
	id, err := uuid.Parse(line.Entries[i].Ref)
	if line.Entries[i].Kind != fleet.TimelineCall || err != nil {
		return detail, nil
	}
	c, err := s.Calls.Get(ctx, id)
	if err = pages.Unless(err, fleet.ErrNotFound); err != nil || c.ID != id {
		return detail, err
	}
	v, err := s.calls.Details(ctx, c, d.Name)
	v.Compact = true
	detail.Call = &v
	return detail, err
}

// callsOfDay counts the device's calls of the last day by the hour.
func (s *Server) callsOfDay(ctx context.Context, id fleet.DeviceID) (day ui.CallsOfDay, err error) {
	day.Device, day.To = id, s.Now()
	day.Buckets, err = s.Stats.CallBuckets(ctx, id, day.To.Add(-24*time.Hour).Truncate(time.Hour), time.Hour)
	return day, err
}

// recentCalls returns the newest calls to a device.
func (s *Server) recentCalls(ctx context.Context, d fleet.Device) (rows []ui.CallRow, err error) {
	recent, err := s.Calls.List(ctx, call.Filter{Device: d.ID, Limit: recentOfDevice})
	for _, c := range recent.Items {
		rows = append(rows, s.calls.Row(ctx, c, d.Name))
	}
	return rows, err
}

// showActivity redirects to the page that replaced it.
func (s *Server) showActivity(r *http.Request) (pages.Answer, error) {
	id, err := pages.DeviceID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.GoTo(ui.DevicePath(id) + "?show=calls")
}

// shownStates is the number of states on the page of a device.
const shownStates = 50

func (s *Server) showFirmware(r *http.Request) (pages.Answer, error) {
	d, err := s.Device(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx, page := r.Context(), ui.FirmwarePage{Head: s.Head(r, d, "firmware")}
	if d.IsBoard() {
		if err := s.deviceBuilds(ctx, d.ID, &page); err != nil {
			return pages.Answer{}, err
		}
	}
	if page.Inventories, err = s.Devices.DeviceInventories(ctx, d.ID); err != nil {
		return pages.Answer{}, err
	}
	if from, to := r.URL.Query().Get("from"), r.URL.Query().Get("to"); from != "" && to != "" {
		diff, err := s.Devices.Diff(ctx, from, to)
		if err != nil {
			return pages.Answer{}, err
		}
		page.Diff = &diff
	}
	if page.States, err = s.History.States(ctx, d.ID, shownStates); err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// deviceBuilds reads the updates and builds of a board.
func (s *Server) deviceBuilds(ctx context.Context, id fleet.DeviceID, page *ui.FirmwarePage) (err error) {
	if page.Updates, err = s.deviceUpdates(ctx, id); err != nil {
		return err
	}
	if page.Jobs, err = s.deviceJobs(ctx, id); err != nil {
		return err
	}
	page.Firmware, err = s.Devices.FirmwareHistory(ctx, id)
	return err
}

func (s *Server) showFacts(r *http.Request) (pages.Answer, error) {
	d, err := s.Device(r)
	if err != nil {
		return pages.Answer{}, err
	}
	facts, err := s.Devices.Facts(r.Context(), d.ID)
	if err != nil && pages.StatusOf(err) != http.StatusNotFound { // not an error: a device that has not polled yet
		return pages.Answer{}, err
	}
	body := facts.Body
	if len(body) > maxFactsShown {
		body = json.RawMessage(`"…"`)
	}
	about := s.deviceFacts(d)
	if about.Voice, err = s.deviceVoice(r.Context(), d.ID); err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(ui.FactsPage{Head: s.Head(r, d, "facts"), About: about, PolledAt: facts.PolledAt, Body: body,
		Problem: facts.Problem(), Salvaged: facts.Salvaged}.Page())
}

// mayCall is mayActOn for a device's id.
func (s *Server) mayCall(ctx context.Context, id fleet.DeviceID) bool {
	if pages.ViewerOf(ctx).Actor().Scope == nil {
		return pages.MayAct(ctx)
	}
	d, err := s.Devices.Known(ctx, id)
	return err == nil && pages.MayActOn(ctx, d)
}

// deviceVoice returns the voice server of a device that the viewer sees.
func (s *Server) deviceVoice(ctx context.Context, id fleet.DeviceID) (v ui.DeviceVoice, err error) {
	u, account, err := s.Upstreams.OfDevice(ctx, id)
	if err != nil || u == nil {
		return v, err
	}
	v.ID, v.Name = u.ID, u.Name
	if account != nil {
		v.Code, v.Message, v.AskedAt = account.Code, account.Message, account.AskedAt
	}
	return v, nil
}

// showName shows the form that names a board that has just joined.
func (s *Server) showName(r *http.Request) (pages.Answer, error) {
	d, err := s.Device(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(ui.NamePage{Head: s.Head(r, d, "")}.Page())
}

// Conversation returns the id of the device's present conversation, or "".
func (s *Server) Conversation(id fleet.DeviceID) string {
	if c, talks := s.Talking.Of(id); talks {
		return c.ID.String()
	}
	return ""
}
