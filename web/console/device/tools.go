package device

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/picture"
	"fleetd/web/access"
	"fleetd/web/console/calls"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// scriptedWait is how long a page with JavaScript waits for an outcome before it shows the
// unfinished call: the live stream brings the rest.
const scriptedWait = 2 * time.Second

func (s *Server) toolRoutes() []pages.Route {
	const viewer, operator, admin = fleet.RoleViewer, fleet.RoleOperator, fleet.RoleAdmin
	const get, post = http.MethodGet, http.MethodPost
	const device = ui.PathDevices + "/{device}"
	return []pages.Route{
		{Method: get, Pattern: device + "/tools", Role: viewer, Reach: access.Device, Page: s.showTools},
		{Method: get, Pattern: device + "/tools/{tool}", Role: viewer, Reach: access.Device, Page: s.showTools},
		{Method: post, Pattern: device + "/tools/{tool}", Role: operator, Reach: access.Device,
			Page: s.callTool, Body: uploadBytes, Wait: call.MaxTimeout + 2*time.Minute},
		{Method: post, Pattern: device + "/tools/{tool}/pin", Role: admin, Reach: access.Fleet, Page: s.pinTool,
			Confirm: true},
		{Method: post, Pattern: device + "/tools/{tool}/release", Role: admin, Reach: access.Fleet,
			Page: s.releaseTool, Confirm: true},
		{Method: post, Pattern: device + "/tools/{tool}/unpin", Role: admin, Reach: access.Fleet,
			Page: s.unpinTool, Confirm: true},
	}
}

func (s *Server) showTools(r *http.Request) (pages.Answer, error) {
	d, inv, err := s.deviceTools(r)
	if err != nil {
		return pages.Answer{}, err
	}
	page := s.toolsPage(r, d, inv)
	name := pages.ToolName(r)
	if name == "" {
		if page.Recent, err = s.recentCalls(r.Context(), d); err != nil {
			return pages.Answer{}, err
		}
		return pages.Show(page.Page())
	}
	tool, ok := inv.Tool(name)
	if !ok {
		return pages.Answer{}, pages.ErrNoPage
	}
	last, err := s.calls.LastArguments(r.Context(), tool)
	if err != nil {
		return pages.Answer{}, err
	}
	page.Form = toolForm(tool, last, d)
	calls.Refill(page.Form, r.URL.Query()) // as a search proposes
	page.Form.Talking = call.Interrupts(tool.Name) && s.Conversation(d.ID) != ""
	page.Form.CanPin = pages.MayAdmin(r.Context())
	if pin, ok := s.ToolPins.Pin(tool.Name); ok {
		page.Form.Pin, page.Form.Differs = &pin, s.ToolPins.Differs(d.InventoryID, tool)
	} else if held, ok := s.ToolQuarantines.Quarantine(d.ID, tool.Name); ok {
		page.Form.Held = &held
	} else {
		page.Form.Waits = s.waits(d, tool)
	}
	if page.Last, err = s.callOfForm(r, d, tool.Name); err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// deviceTools reads the device and its inventory, which is nil before the first listing.
func (s *Server) deviceTools(r *http.Request) (fleet.Device, *fleet.Inventory, error) {
	d, err := s.Device(r)
	if err != nil {
		return d, nil, err
	}
	inv, err := s.Devices.Tools(r.Context(), d.ID)
	return d, inv, err
}

func (s *Server) toolsPage(r *http.Request, d fleet.Device, inv *fleet.Inventory) ui.ToolsPage {
	page := ui.ToolsPage{Head: s.Head(r, d, "tools"), Held: s.heldTools(d)}
	if inv != nil {
		page.Tools = inv.Tools
		for _, tool := range inv.Tools {
			if s.waits(d, tool) {
				page.Held[tool.Name] = true
			}
		}
	}
	return page
}

func (s *Server) pinTool(r *http.Request) (pages.Answer, error) {
	d, err := s.Device(r)
	if err != nil {
		return pages.Answer{}, err
	}
	_, err = s.ToolPins.Save(r.Context(), pages.ViewerOf(r.Context()).Actor(), d.ID, pages.ToolName(r))
	return s.pinned(r, d, "flash.tool_pinned", err)
}

func (s *Server) unpinTool(r *http.Request) (pages.Answer, error) {
	d, err := s.Device(r)
	if err != nil {
		return pages.Answer{}, err
	}
	err = s.ToolPins.Delete(r.Context(), pages.ViewerOf(r.Context()).Actor(), pages.ToolName(r))
	if errors.Is(err, fleet.ErrNotFound) {
		err = nil // another operator was faster
	}
	return s.pinned(r, d, "flash.tool_unpinned", err)
}

// heldTools returns the names of a program's tools that are in quarantine.
func (s *Server) heldTools(d fleet.Device) map[string]bool {
	held := map[string]bool{}
	for _, q := range s.ToolQuarantines.All() {
		if q.Device == d.ID && !s.ToolPins.Pinned(q.Tool) {
			held[q.Tool] = true
		}
	}
	return held
}

// waits reports whether the definition of a tool waits for an administrator to release it.
func (s *Server) waits(d fleet.Device, tool fleet.Tool) bool {
	return !s.ToolPins.Pinned(tool.Name) && s.ToolQuarantines.Waits(d.InventoryID, tool)
}

// releaseTool ends the quarantine of a tool whose description the administrator has read.
func (s *Server) releaseTool(r *http.Request) (pages.Answer, error) {
	d, err := s.Device(r)
	if err != nil {
		return pages.Answer{}, err
	}
	digest, err := fleet.ParseToolDigest(r.PostFormValue("digest"))
	if err != nil {
		return pages.Answer{}, err
	}
	err = s.ToolQuarantines.Release(r.Context(), pages.ViewerOf(r.Context()).Actor(), d.ID, pages.ToolName(r), digest)
	if errors.Is(err, fleet.ErrNotFound) {
		err = nil // another operator was faster
	}
	return s.pinned(r, d, "flash.tool_released", err)
}

// pinned redirects to the tool.
func (s *Server) pinned(r *http.Request, d fleet.Device, done string, err error) (pages.Answer, error) {
	name := pages.ToolName(r)
	switch {
	case errors.Is(err, fleet.ErrConflict), errors.Is(err, fleet.ErrInvalid):
		s.Flash(r.Context(), ui.Flash{Bad: true, Text: pages.Explain(r.Context(), err)})
	case err != nil:
		return pages.Answer{}, err
	default:
		s.Flash(r.Context(), ui.Flash{Text: pages.Text(r.Context(), done, "tool", fleet.CleanText(name, 80))})
	}
	return pages.GoTo(ui.ToolPath(d.ID, name))
}

func toolForm(tool fleet.Tool, last json.RawMessage, d fleet.Device) *ui.ToolForm {
	f := ui.NewToolForm(tool, last)
	if d.ID.IsProgram() { // its arguments may be large
		for i := range f.Fields {
			f.Fields[i].Long = !slices.Contains([]string{"boolean", "integer", "number"}, f.Fields[i].Type)
		}
	}
	f.Offline = d.Presence != fleet.PresenceOnline && d.Presence != fleet.PresenceUnresponsive
	return f
}

// callOfForm returns the call that the form has just made, if it is in the address.
func (s *Server) callOfForm(r *http.Request, d fleet.Device, tool string) (*ui.CallView, error) {
	id, err := uuid.Parse(r.URL.Query().Get("call"))
	if err != nil {
		return nil, nil
	}
	c, err := s.Calls.Get(r.Context(), id)
	if errors.Is(err, fleet.ErrNotFound) || (err == nil && (c.Device != d.ID || c.Tool != tool)) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	v, err := s.calls.Details(r.Context(), c, d.Name)
	v.Compact = true
	return &v, err
}

// callTool makes the call of the form and redirects to its outcome.
func (s *Server) callTool(r *http.Request) (pages.Answer, error) {
	d, inv, err := s.deviceTools(r)
	if err != nil {
		return pages.Answer{}, err
	}
	tool, ok := inv.Tool(pages.ToolName(r))
	if !ok {
		return pages.Answer{}, pages.ErrNoPage
	}
	if err := parseUpload(r); err != nil {
		return pages.Answer{}, err
	}
	form := toolForm(tool, nil, d)
	form.Talking = call.Interrupts(tool.Name) && s.Conversation(d.ID) != ""
	request, problem, err := s.readToolForm(r, form, d)
	if err != nil {
		return pages.Answer{}, err
	}
	if problem != "" {
		page := s.toolsPage(r, d, inv)
		page.Form, form.Problem = form, problem
		return pages.ShowAgain(page.Page())
	}
	call, err := s.start(r, request)
	if err != nil {
		return pages.Answer{}, err
	}
	back := cmp.Or(backFrom(r, d.ID), ui.ToolPath(d.ID, tool.Name))
	return pages.GoTo(back + "?" + url.Values{"call": {call.ID.String()}}.Encode())
}

// parseUpload reads the form; large parts are stored in temporary files.
func parseUpload(r *http.Request) error {
	parse := r.ParseForm // ParseMultipartForm would swallow its error
	if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/form-data") {
		parse = func() error { return r.ParseMultipartForm(pages.FormBytes) }
	}
	if err := parse(); err != nil {
		return pages.FormError(err)
	}
	return nil
}

// readToolForm turns the form into a request, or returns its errors.
func (s *Server) readToolForm(r *http.Request, form *ui.ToolForm, d fleet.Device) (request call.Request,
	problem string, err error) {
	ctx := r.Context()
	args, shown, ok := forms.Arguments(form.Fields, r.PostForm)
	form.Fields = shown
	switch {
	case !ok:
		return request, pages.Text(ctx, "tools.check_fields"), nil
	case !calls.Confirmed(form.Confirm(), r.PostFormValue("confirm"), d):
		return request, pages.Explain(ctx, pages.ErrNotConfirmed), nil
	}
	request = call.Request{Actor: pages.ViewerOf(ctx).Actor(), Device: d.ID, Tool: form.Tool.Name, Arguments: args,
		Interrupt: r.PostFormValue("interrupt") != ""}
	if r.PostFormValue("offline") == "wait" {
		request.OfflineWait = call.DefaultCallOfflineWait
	}
	if fleet.ShowsPicture(form.Tool.Name) {
		request.Picture, err = s.receivePicture(r, d)
		if errors.Is(err, fleet.ErrInvalid) {
			return request, pages.Explain(ctx, err), nil
		}
	}
	return request, "", err
}

// receivePicture stores a picture for the device to show. It scales the picture to the screen if a
// snapshot of the screen has shown its size.
func (s *Server) receivePicture(r *http.Request, d fleet.Device) (string, error) {
	file, _, err := r.FormFile("picture")
	if err != nil {
		return "", fleet.Refuse(fleet.ErrInvalid, "picture_missing")
	}
	defer file.Close()
	return s.Snapshots.PreviewFor(r.Context(), d.ID, file)
}

// start makes the call and waits for its outcome: a page without JavaScript waits for as long as
// the call may take, a page with JavaScript for a moment.
func (s *Server) start(r *http.Request, request call.Request) (fleet.Call, error) {
	outcomes := s.Events.Subscribe(256, func(e *fleet.Event) bool {
		return e.Kind == fleet.EventCall && e.Device == request.Device && e.Call.State.Final()
	})
	defer outcomes.Close()
	call, err := s.Calls.Start(r.Context(), request)
	if err != nil || call.State.Final() || call.State == fleet.CallPendingApproval || !call.Waits.Is("") {
		return call, err // a decision may take hours, and a conversation minutes
	}
	wait := call.Timeout + time.Minute // other calls may be queued before it
	if pages.FromHTMX(r) {
		wait = scriptedWait
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	s.await(ctx, outcomes, call.ID)
	return call, nil
}

// await waits until the call has its outcome. Events may be lost; the record may not.
func (s *Server) await(ctx context.Context, outcomes *fleet.Subscription, id uuid.UUID) {
	look := time.NewTicker(2 * time.Second)
	defer look.Stop()
	events := outcomes.C
	for {
		select {
		case e, ok := <-events:
			if !ok {
				events = nil
			} else if e.Call.ID == id {
				return
			}
		case <-look.C:
			if c, err := s.Calls.Get(ctx, id); err != nil || c.State.Final() {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

const uploadBytes = picture.MaxSnapshotBytes + pages.FormBytes
