package console

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
	"fleetd/web/ui"
)

// Maximum lengths of lists on a device's pages.
const (
	recentOfDevice = 8
	maxFactsShown  = 64 << 10
)

func (s *Server) device(r *http.Request) (fleet.Device, error) {
	id, err := deviceID(r)
	if err != nil {
		return fleet.Device{}, err
	}
	return s.Devices.Device(r.Context(), id)
}

// board returns the device in the address, if it is a board: others have no page about screen, health
// or logs.
func (s *Server) board(r *http.Request) (fleet.Device, error) {
	d, err := s.device(r)
	if err == nil && !d.IsBoard() {
		err = errNoPage
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

// head returns the head of a device's page for one of its tabs.
func (s *Server) head(r *http.Request, d fleet.Device, tab string) ui.DeviceHead {
	return s.headOf(r.Context(), d, tab)
}

func (s *Server) headOf(ctx context.Context, d fleet.Device, tab string) ui.DeviceHead {
	h := ui.NewDeviceHead(d, tab, s.now(), mayActOn(ctx, d))
	h.Talking = s.talking(d.ID)
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
		shot := snapshot(newest)
		h.Thumb = &shot
	}
	return h
}

func (s *Server) deviceRoutes() []route {
	const viewer, operator, admin = fleet.RoleViewer, fleet.RoleOperator, fleet.RoleAdmin
	const get, post = http.MethodGet, http.MethodPost
	const device = ui.PathDevices + "/{device}"
	return []route{
		{method: get, pattern: device, role: viewer, reach: access.Device, page: s.showDevice},
		{method: get, pattern: device + "/activity", role: viewer, reach: access.Device, page: s.showActivity},
		{method: get, pattern: device + "/firmware", role: viewer, reach: access.Device, page: s.showFirmware},
		{method: get, pattern: device + "/facts", role: viewer, reach: access.Device, page: s.showFacts},
		{method: get, pattern: device + "/screen", role: viewer, reach: access.Device, page: s.showScreen},
		{method: get, pattern: device + "/name", role: operator, reach: access.Device, page: s.showName},
		{method: post, pattern: device + "/edit", role: operator, reach: access.Device, page: s.editDevice},
		{method: post, pattern: device + "/hold", role: operator, reach: access.Device, page: s.holdDevice},
		{method: post, pattern: device + "/release", role: operator, reach: access.Device, page: s.releaseDevice},
		{method: post, pattern: device + "/approve", role: operator, reach: access.Device, page: s.approveDevice},
		{method: post, pattern: device + "/reject", role: operator, reach: access.Device, page: s.rejectDevice},
		{method: post, pattern: device + "/resolve-conflict", role: operator, reach: access.Device,
			page: s.resolveConflict},
		{method: post, pattern: device + "/quarantine", role: operator, reach: access.Device, page: s.clearQuarantine},
		{method: post, pattern: device + "/retire", role: admin, reach: access.Device, page: s.retireDevice},
	}
}

func (s *Server) showDevice(r *http.Request) (answer, error) {
	d, err := s.device(r)
	if err != nil {
		return answer{}, err
	}
	page, err := s.devicePage(r, d)
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

func (s *Server) devicePage(r *http.Request, d fleet.Device) (page ui.DevicePage, err error) {
	ctx := r.Context()
	page.Head = s.head(r, d, "")
	page.Latest = page.Head.Thumb
	page.About = s.deviceFacts(d)
	if page.Line, err = s.timeline(ctx, listURL(r, ui.DevicePath(d.ID), "show", "day", "entry"), d.ID); err != nil {
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
	page.Sparks, err = s.healthTrends(ctx, d, page.Vitals, ui.ParseHealthRange("", s.now().Sub(d.CreatedAt)))
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
	if err = unless(err, fleet.ErrNotFound); err != nil || c.ID != id {
		return detail, err
	}
	v, err := s.callView(ctx, c, d.Name)
	v.Compact = true
	detail.Call = &v
	return detail, err
}

// callsOfDay counts the device's calls of the last day by the hour.
func (s *Server) callsOfDay(ctx context.Context, id fleet.DeviceID) (day ui.CallsOfDay, err error) {
	day.Device, day.To = id, s.now()
	day.Buckets, err = s.Stats.CallBuckets(ctx, id, day.To.Add(-24*time.Hour).Truncate(time.Hour), time.Hour)
	return day, err
}

// recentCalls returns the newest calls to a device.
func (s *Server) recentCalls(ctx context.Context, d fleet.Device) (rows []ui.CallRow, err error) {
	recent, err := s.Calls.List(ctx, call.Filter{Device: d.ID, Limit: recentOfDevice})
	for _, c := range recent.Items {
		rows = append(rows, s.callRow(ctx, c, d.Name))
	}
	return rows, err
}

// showActivity redirects to the page that replaced it.
func (s *Server) showActivity(r *http.Request) (answer, error) {
	id, err := deviceID(r)
	if err != nil {
		return answer{}, err
	}
	return goTo(ui.DevicePath(id) + "?show=calls")
}

// shownStates is the number of states on the page of a device.
const shownStates = 50

func (s *Server) showFirmware(r *http.Request) (answer, error) {
	d, err := s.device(r)
	if err != nil {
		return answer{}, err
	}
	ctx, page := r.Context(), ui.FirmwarePage{Head: s.head(r, d, "firmware")}
	if d.IsBoard() {
		if err := s.deviceBuilds(ctx, d.ID, &page); err != nil {
			return answer{}, err
		}
	}
	if page.Inventories, err = s.Devices.DeviceInventories(ctx, d.ID); err != nil {
		return answer{}, err
	}
	if from, to := r.URL.Query().Get("from"), r.URL.Query().Get("to"); from != "" && to != "" {
		diff, err := s.Devices.Diff(ctx, from, to)
		if err != nil {
			return answer{}, err
		}
		page.Diff = &diff
	}
	if page.States, err = s.History.States(ctx, d.ID, shownStates); err != nil {
		return answer{}, err
	}
	return show(page.Page())
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

func (s *Server) showFacts(r *http.Request) (answer, error) {
	d, err := s.device(r)
	if err != nil {
		return answer{}, err
	}
	facts, err := s.Devices.Facts(r.Context(), d.ID)
	if err != nil && statusOf(err) != http.StatusNotFound { // not an error: a device that has not polled yet
		return answer{}, err
	}
	body := facts.Body
	if len(body) > maxFactsShown {
		body = json.RawMessage(`"…"`)
	}
	about := s.deviceFacts(d)
	if about.Voice, err = s.deviceVoice(r.Context(), d.ID); err != nil {
		return answer{}, err
	}
	return show(ui.FactsPage{Head: s.head(r, d, "facts"), About: about, PolledAt: facts.PolledAt, Body: body,
		Problem: facts.Problem(), Salvaged: facts.Salvaged}.Page())
}

// mayCall is mayActOn for a device's id.
func (s *Server) mayCall(ctx context.Context, id fleet.DeviceID) bool {
	if viewerOf(ctx).actor().Scope == nil {
		return mayAct(ctx)
	}
	d, err := s.Devices.Known(ctx, id)
	return err == nil && mayActOn(ctx, d)
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
func (s *Server) showName(r *http.Request) (answer, error) {
	d, err := s.device(r)
	if err != nil {
		return answer{}, err
	}
	return show(ui.NamePage{Head: s.head(r, d, "")}.Page())
}
