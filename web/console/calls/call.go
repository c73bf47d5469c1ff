package calls

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/heavy"
	"fleetd/fleet/picture"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/request"
	"fleetd/web/ui"
)

// callFilter reads the list's filter, with times in the viewer's zone.
func callFilter(l ui.ListURL, zone *time.Location) (f call.Filter, err error) {
	f = call.Filter{Tool: l.Get("tool"), Actor: l.Get("actor"), Digest: l.Get("digest"),
		Limit: pages.LimitOf(l), Cursor: l.Get("cursor")}
	if text := l.Get("device"); text != "" {
		if f.Device, err = fleet.ParseDeviceID(text); err != nil {
			return f, err
		}
	}
	if text := l.Get("fanout"); text != "" {
		if f.FanOut, err = uuid.Parse(text); err != nil {
			return f, fleet.Refuse(fleet.ErrInvalid, "invalid_fanout", "value", text)
		}
	}
	if text := l.Get("conversation"); text != "" {
		if f.Conversation, err = uuid.Parse(text); err != nil {
			return f, fleet.Refuse(fleet.ErrInvalid, "invalid_conversation", "value", text)
		}
	}
	if f.States, err = callStates(l.Get("state")); err != nil {
		return f, err
	}
	if f.Since, err = forms.Moment(l.Get("since"), zone); err != nil {
		return f, err
	}
	f.Until, err = forms.Moment(l.Get("until"), zone)
	return f, err
}

func callStates(list string) ([]fleet.CallState, error) {
	var states []fleet.CallState
	for word := range strings.SplitSeq(list, ",") {
		state := fleet.CallState(strings.TrimSpace(word))
		switch {
		case state == "":
		case !slices.Contains(fleet.CallStates, state):
			return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_state.call", "value", word)
		default:
			states = append(states, state)
		}
	}
	return states, nil
}

func callList(r *http.Request) ui.ListURL {
	return pages.ListURL(r, ui.PathCalls, "device", "tool", "actor", "state", "since", "until", "fanout", "conversation", "digest")
}

func (s *Server) callRoutes() []pages.Route {
	const viewer, operator = fleet.RoleViewer, fleet.RoleOperator
	const get, post = http.MethodGet, http.MethodPost
	const one = ui.PathCalls + "/{call}"
	return []pages.Route{
		{Method: get, Pattern: ui.PathCalls, Role: viewer, Reach: access.List, Page: s.listCalls},
		{Method: get, Pattern: ui.PathCallsExport, Role: viewer, Reach: access.List, Raw: s.exportCalls,
			Wait: 2 * time.Minute, Heavy: heavy.Export},
		{Method: get, Pattern: one, Role: viewer, Reach: access.Record, Page: s.showCall},
		{Method: post, Pattern: one + "/interrupt", Role: operator, Reach: access.Record, Page: s.interruptCall},
		{Method: post, Pattern: one + "/cancel", Role: operator, Reach: access.Record, Page: s.cancelCall},
		{Method: get, Pattern: one + "/images/{n}", Role: viewer, Reach: access.Record, Raw: s.sendCallImage},
	}
}

func (s *Server) listCalls(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	page := ui.CallsPage{List: callList(r)}
	f, err := callFilter(page.List, pages.ViewerOf(ctx).Zone)
	if err != nil {
		page.Bad = pages.Explain(ctx, err)
		return pages.Show(page.Page())
	}
	found, err := s.Calls.List(ctx, f)
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(page.List.At(""))
	}
	if pages.ErrorCode(err) == "invalid_call_digest" {
		page.Bad = pages.Explain(ctx, err)
		return pages.Show(page.Page())
	}
	if err != nil {
		return pages.Answer{}, err
	}
	page.Prev, page.Next = found.Prev, found.Next
	page.Rows, err = s.callRows(ctx, found.Items)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// exportCalls writes the calls of the list's filter as CSV.
func (s *Server) exportCalls(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	f, err := callFilter(callList(r), pages.ViewerOf(ctx).Zone)
	var export *call.Export
	if err == nil {
		export, err = s.Calls.Export(ctx, f)
	}
	if err != nil {
		s.Fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="calls.csv"`)
	w.Header().Set("Cache-Control", "no-store")
	if err := export.Write(ctx, w, request.Progress(w)); err != nil {
		s.CutShort(ctx, "call export", err)
	}
}

// callRows returns the rows of calls, with the names of their devices.
func (s *Server) callRows(ctx context.Context, calls []fleet.Call) ([]ui.CallRow, error) {
	names, err := s.names(ctx, calls)
	if err != nil {
		return nil, err
	}
	rows := make([]ui.CallRow, len(calls))
	for i, c := range calls {
		rows[i] = s.Row(ctx, c, names[c.Device])
	}
	return rows, nil
}

func (s *Server) names(ctx context.Context, calls []fleet.Call) (map[fleet.DeviceID]string, error) {
	var ids []fleet.DeviceID
	for _, c := range calls {
		ids = append(ids, c.Device)
	}
	slices.Sort(ids)
	if ids = slices.Compact(ids); len(ids) == 0 {
		return nil, nil
	}
	devices, err := s.Devices.DevicesByID(ctx, ids)
	names := make(map[fleet.DeviceID]string, len(devices))
	for _, d := range devices {
		names[d.ID] = d.Name
	}
	return names, err
}

// Row returns the row of a call to the device with the name.
func (s *Server) Row(ctx context.Context, c fleet.Call, device string) ui.CallRow {
	detail := ""
	if c.Error == nil {
		detail = firstText(c.Result)
	}
	row := ui.NewCallRow(c, device, detail)
	row.CanCancel = s.MayCancel(ctx, c)
	return row
}

// MayCancel reports whether the call waits and the viewer may cancel it.
func (s *Server) MayCancel(ctx context.Context, c fleet.Call) bool {
	return s.mayEndWait(ctx, c, "cancel_call")
}

func (s *Server) mayEndWait(ctx context.Context, c fleet.Call, act string) bool {
	if c.Waits.Is("") || !pages.MayAct(ctx) {
		return false
	}
	d, err := s.Devices.Known(ctx, c.Device)
	return err == nil && pages.ViewerOf(ctx).Actor().MayEndWait(c, d, act) == nil
}

// firstText returns the first text of a result, cut to the size of a row.
func firstText(result json.RawMessage) string {
	var r struct {
		Content []struct{ Text string }
	}
	if json.Unmarshal(result, &r) != nil {
		return ""
	}
	for _, c := range r.Content {
		if c.Text != "" {
			return fleet.CleanText(c.Text, 400)
		}
	}
	return ""
}

func (s *Server) showCall(r *http.Request) (pages.Answer, error) {
	c, err := s.call(r)
	if err != nil {
		return pages.Answer{}, err
	}
	names, err := s.names(r.Context(), []fleet.Call{c})
	if err != nil {
		return pages.Answer{}, err
	}
	v, err := s.Details(r.Context(), c, names[c.Device])
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(ui.CallPage{Call: v}.Page())
}

// call reads the call in the address.
func (s *Server) call(r *http.Request) (fleet.Call, error) {
	id, err := uuid.Parse(chi.URLParam(r, "call"))
	if err != nil {
		return fleet.Call{}, pages.ErrNoPage
	}
	return s.Calls.Get(r.Context(), id)
}

// Details returns a call with the pictures that its device has uploaded for it.
func (s *Server) Details(ctx context.Context, c fleet.Call, device string) (ui.CallView, error) {
	v := ui.CallView{Call: c, DeviceName: device, CanCancel: s.MayCancel(ctx, c),
		CanInterrupt: c.Waits.Is(call.ReasonInConversation) && s.mayEndWait(ctx, c, "interrupt_call")}
	if c.SentAt == nil {
		return v, nil
	}
	shots, err := s.Pictures.SnapshotsOfCall(ctx, c.ID, picture.MaxCallPictures)
	for _, shot := range shots {
		v.Pictures = append(v.Pictures, Snapshot(shot))
	}
	return v, err
}

// sendCallImage serves an image that is part of a call's result.
func (s *Server) sendCallImage(w http.ResponseWriter, r *http.Request) {
	c, err := s.call(r)
	if err != nil {
		s.Fail(w, r, err)
		return
	}
	data, ok := callImage(c, chi.URLParam(r, "n"))
	if !ok {
		s.Fail(w, r, pages.ErrNoPage)
		return
	}
	sendPicture(w, r, http.DetectContentType(data), data, c.ID.String())
}

// DeviceNames returns the names of the devices that the viewer sees.
func (s *Server) DeviceNames(ctx context.Context, ids []fleet.DeviceID) (map[fleet.DeviceID]string, error) {
	names := make(map[fleet.DeviceID]string, len(ids))
	if len(ids) == 0 {
		return names, nil
	}
	devices, err := s.Devices.DevicesByID(ctx, ids)
	for _, d := range devices {
		names[d.ID] = d.Name
	}
	return names, err
}
