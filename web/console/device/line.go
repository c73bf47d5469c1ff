package device

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// lineLength is the number of timeline entries on a page, all of which a live page updates.
const lineLength = 40

// timeline reads the part of a device's timeline that the address selects.
func (s *Server) timeline(ctx context.Context, list ui.ListURL, id fleet.DeviceID) (ui.Timeline, error) {
	v := ui.Timeline{Device: id, List: list}
	f := fleet.TimelineFilter{Device: id, Limit: lineLength, Cursor: list.Get("cursor")}
	v.Subject, f.Kinds = ui.ParseTimelineSubjects(list.Get("show"))
	if day, err := time.ParseInLocation(time.DateOnly, list.Get("day"), pages.ViewerOf(ctx).Zone); err == nil {
		f.Before = day.AddDate(0, 0, 1)
	}
	page, err := s.Devices.Timeline(ctx, f)
	if errors.Is(err, fleet.ErrInvalid) {
		v.Bad = pages.Explain(ctx, err)
		return v, nil
	}
	if err != nil {
		return v, err
	}
	v.Entries, v.Next = page.Items, page.Next
	v.CanCancel, err = s.cancelable(ctx, id, v.Entries)
	return v, err
}

// cancelable returns the ids of the waiting calls in a device's timeline that the viewer may
// cancel.
func (s *Server) cancelable(ctx context.Context, id fleet.DeviceID, line []fleet.TimelineEntry) (map[string]bool,
	error) {
	states := []fleet.CallState{fleet.CallPendingDevice, fleet.CallPending}
	if !pages.MayAct(ctx) || !slices.ContainsFunc(line, func(e fleet.TimelineEntry) bool {
		return e.Kind == fleet.TimelineCall && slices.Contains(states, fleet.CallState(e.Code))
	}) {
		return nil, nil
	}
	found, err := s.Calls.List(ctx, call.Filter{Device: id, States: states, Limit: lineLength})
	ids := make(map[string]bool)
	for _, c := range found.Items {
		ids[c.ID.String()] = s.calls.MayCancel(ctx, c)
	}
	return ids, err
}

// deviceActs returns the acts that the device's inventory offers to the viewer.
func (s *Server) deviceActs(ctx context.Context, d fleet.Device) (ui.DeviceActs, error) {
	a := ui.DeviceActs{Device: d.ID, Title: d.Title()}
	if d.RetiredAt != nil || d.Enrolment != fleet.EnrolmentEnrolled || !pages.MayActOn(ctx, d) || !d.IsBoard() {
		return a, nil // others have no screen, speaker or firmware, whatever their tools are named
	}
	by := pages.ViewerOf(ctx).Actor()
	a.Offline = d.Presence != fleet.PresenceOnline && d.Presence != fleet.PresenceUnresponsive
	inv, err := s.Devices.Tools(ctx, d.ID)
	if err = pages.Unless(err, fleet.ErrNotFound); err != nil {
		return a, err
	}
	may := func(tool string) bool { return Offers(inv, tool) && by.Scope.AllowsTool(tool) }
	a.Snap, a.Reboot = may(fleet.ToolSnapshot), may(fleet.ToolReboot)
	a.Log = inv != nil && ui.NewOffers(inv).Tail
	if may(fleet.ToolSetVolume) || may(fleet.ToolDeviceStatus) {
		if err := s.said(ctx, &a, may(fleet.ToolSetVolume)); err != nil {
			return a, err
		}
	}
	a.Update = true
	outlook, err := s.Campaigns.Outlook(ctx, d.ID)
	if err == nil && len(outlook.Newer) > 0 {
		a.Newer = &outlook.Newer[0]
	}
	return a, err
}

// said fills in volume and battery from the device's recorded calls.
func (s *Server) said(ctx context.Context, a *ui.DeviceActs, volume bool) error {
	if volume {
		a.Volume = &ui.VolumeAct{Min: 0, Max: 100}
	}
	succeeded := []fleet.CallState{fleet.CallSucceeded}
	status, err := s.Calls.List(ctx, call.Filter{Device: a.Device, Tool: fleet.ToolDeviceStatus, States: succeeded,
		Limit: 1})
	if err != nil {
		return err
	}
	for _, c := range status.Items {
		spoken, battery := statusOfDevice(c.Result)
		if a.Battery = battery; a.Volume != nil && spoken != nil {
			a.Volume.Value, a.Volume.At = spoken, c.CreatedAt
		}
	}
	if a.Volume == nil {
		return nil
	}
	set, err := s.Calls.List(ctx, call.Filter{Device: a.Device, Tool: fleet.ToolSetVolume, States: succeeded,
		Limit: 1})
	for _, c := range set.Items {
		var args struct{ Volume *int64 }
		if json.Unmarshal(c.Arguments, &args) == nil && args.Volume != nil && c.CreatedAt.After(a.Volume.At) {
			a.Volume.Value, a.Volume.At = args.Volume, c.CreatedAt
		}
	}
	if v := a.Volume.Value; v != nil && (*v < a.Volume.Min || *v > a.Volume.Max) {
		a.Volume.Value = nil
	}
	return err
}

// statusOfDevice reads volume and battery from the result of get_device_status.
func statusOfDevice(result json.RawMessage) (volume, battery *int64) {
	var answer struct {
		Content []struct{ Type, Text string }
	}
	if json.Unmarshal(result, &answer) != nil {
		return nil, nil
	}
	var status struct {
		AudioSpeaker struct{ Volume *int64 } `json:"audio_speaker"`
		Battery      struct{ Level *int64 }  `json:"battery"`
	}
	for _, part := range answer.Content {
		if part.Type == "text" && json.Unmarshal([]byte(part.Text), &status) == nil {
			break
		}
	}
	if b := status.Battery.Level; b != nil && (*b < 0 || *b > 100) {
		status.Battery.Level = nil
	}
	return status.AudioSpeaker.Volume, status.Battery.Level
}

// lastCall returns the call in the address, whatever its tool; nil if it was made to another
// device.
func (s *Server) lastCall(r *http.Request, d fleet.Device) (*ui.CallView, error) {
	id, err := uuid.Parse(r.URL.Query().Get("call"))
	if err != nil {
		return nil, nil
	}
	c, err := s.Calls.Get(r.Context(), id)
	if errors.Is(err, fleet.ErrNotFound) || err == nil && c.Device != d.ID {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	v, err := s.calls.Details(r.Context(), c, d.Name)
	return &v, err
}

// backFrom returns the page of the device that a form wants to return to with the outcome of its
// call; "" is the page of the tool.
func backFrom(r *http.Request, id fleet.DeviceID) string {
	next := r.PostFormValue("next")
	if slices.Contains([]string{ui.DevicePath(id), ui.DevicePath(id, "screen")}, next) {
		return next
	}
	return ""
}

// A shownLine is the part of a timeline that a live page has shown.
type shownLine struct {
	list  ui.ListURL
	known map[string]bool // keys of the entries that are shown or counted; nil before the first look
}

// lineNews shows changed entries, and counts new ones. A new entry may belong below others: a
// restart is recorded after the connection that followed it.
func (v *deviceView) lineNews(ctx context.Context, u *pages.Updates) error {
	if v.tab != "" || v.line.list.Get("cursor") != "" || v.line.list.Get("day") != "" {
		return nil
	}
	line, err := v.server.timeline(ctx, v.line.list, v.id)
	if err != nil {
		return err
	}
	first, known := v.line.known == nil, make(map[string]bool, len(line.Entries))
	for _, e := range slices.Backward(line.Entries) {
		u.Patches = append(u.Patches, line.Row(e).Row())
		if known[e.Key] = true; !v.line.known[e.Key] && (!first || e.At.After(v.fresh.Began)) {
			u.Fresh++
		}
	}
	v.line.known = known
	return nil
}
