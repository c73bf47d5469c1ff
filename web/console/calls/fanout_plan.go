package calls

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// ToolSample is how many devices of an audience the tool list is read from. Equal boards offer
// equal tools: a sample finds all but the rarest.
const ToolSample = fleet.MaxLimit

// planFanOut shows the steps to a fan-out: audience, tool, arguments, preview.
func (s *Server) planFanOut(r *http.Request) (pages.Answer, error) {
	form := r.URL.Query()
	page, err := s.fanOutPage(r.Context(), form)
	if err != nil || page.Problem != "" || page.Form == nil {
		return showPlan(page, err)
	}
	if page.Retry != uuid.Nil && !hasArguments(form) { // the arguments of the first fan-out
		for name, values := range forms.Values(page.Form.Fields) {
			form[name] = values
		}
	}
	if form.Get("step") != "preview" {
		Refill(page.Form, form)
		return showPlan(page, nil)
	}
	_, err = s.previewFanOut(r.Context(), &page, form)
	return showPlan(page, err)
}

// Refill restores the earlier inputs in the address.
func Refill(f *ui.ToolForm, form url.Values) {
	if hasArguments(form) {
		_, f.Fields, _ = forms.Arguments(f.Fields, form)
	}
}

func hasArguments(form url.Values) bool {
	for name := range form {
		if strings.HasPrefix(name, "arg.") {
			return true
		}
	}
	return false
}

// showPlan shows the page, with the errors that the operator can correct.
func showPlan(page ui.FanOutNewPage, err error) (pages.Answer, error) {
	switch {
	case err != nil:
		return pages.Answer{}, err
	case page.Problem != "":
		return pages.ShowAgain(page.Page())
	}
	return pages.Show(page.Page())
}

// createFanOut starts the previewed fan-out. It resolves the audience again, and compares the typed
// count with the new result.
func (s *Server) createFanOut(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	ctx := r.Context()
	page, err := s.fanOutPage(ctx, r.PostForm)
	if err != nil || page.Problem != "" {
		return showPlan(page, err)
	}
	if page.Form == nil {
		return pages.Answer{}, fleet.Refuse(fleet.ErrInvalid, "invalid_tool.none")
	}
	request, err := s.previewFanOut(ctx, &page, r.PostForm)
	if err != nil || page.Problem != "" {
		return showPlan(page, err)
	}
	typed := strings.TrimSpace(r.PostForm.Get("confirm"))
	if page.Preview.MustType() && typed != strconv.Itoa(page.Preview.Targets) {
		page.Problem = pages.Text(ctx, "fanout.count_differs", "n", page.Preview.Targets)
		return showPlan(page, nil)
	}
	request.Confirm, _ = strconv.Atoi(typed)
	f, err := s.FanOuts.Create(ctx, request)
	if errors.Is(err, fleet.ErrInvalid) {
		page.Problem = pages.Explain(ctx, err)
		return showPlan(page, nil)
	}
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.GoTo(ui.FanOutPath(f.ID.String()))
}

// fanOutPage reads audience and tool.
func (s *Server) fanOutPage(ctx context.Context, form url.Values) (ui.FanOutNewPage, error) {
	page := ui.FanOutNewPage{Query: form.Get("q"), ByQuery: !form.Has("d"), CanAct: pages.MayAct(ctx)}
	page.MaxInFlight, _ = strconv.Atoi(form.Get("max_in_flight"))
	page.Interrupt = form.Get("interrupt") != ""
	for _, text := range form["d"] {
		if id, err := fleet.ParseDeviceID(text); err == nil {
			page.Devices = append(page.Devices, id)
		}
	}
	var first call.FanOut
	if form.Has("retry") {
		id, err := uuid.Parse(form.Get("retry"))
		if err != nil {
			return page, pages.ErrNoPage
		}
		if first, err = s.FanOuts.Get(ctx, id); err != nil {
			return page, err
		}
		if page.Devices, err = s.FanOuts.Failed(ctx, id); err != nil {
			return page, err
		}
		page.Retry, page.ByQuery = id, false
		if page.MaxInFlight == 0 {
			page.MaxInFlight = first.MaxInFlight
		}
	}
	wait, badWait := offlineWait(form.Get("offline_wait"))
	page.OfflineWait = wait
	sample, problem, err := s.audience(ctx, &page)
	if problem != nil {
		page.Problem = pages.Explain(ctx, problem)
		return page, nil
	}
	if err != nil {
		return page, err
	}
	if page.Tools, err = s.ToolsOf(ctx, sample); err != nil {
		return page, err
	}
	name := form.Get("tool")
	if i := slices.IndexFunc(page.Tools, func(t fleet.Tool) bool { return t.Name == name }); i >= 0 {
		last, err := s.LastArguments(ctx, page.Tools[i])
		if page.Retry != uuid.Nil {
			last = first.Arguments
		}
		page.Form = ui.NewToolForm(page.Tools[i], last)
		if badWait != nil {
			page.Problem = pages.Explain(ctx, badWait)
			Refill(page.Form, form)
		}
		return page, err
	}
	if name != "" {
		page.Problem = pages.Text(ctx, "fanout.no_such_tool", "tool", fleet.CleanText(name, 80))
	}
	return page, nil
}

// offlineWait reads how long the calls wait for offline devices, in minutes; "" means not at all.
func offlineWait(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if most := int(call.MaxOfflineWait / time.Minute); err != nil || n < 0 || n > most {
		return 0, fleet.Refuse(fleet.ErrInvalid, "invalid_offline_wait.minutes", "minutes", most)
	}
	return time.Duration(n) * time.Minute, nil
}

// audience counts the devices and returns some of them.
func (s *Server) audience(ctx context.Context, page *ui.FanOutNewPage) (sample []fleet.Device, problem, err error) {
	if page.Retry != uuid.Nil {
		page.Matched = len(page.Devices)
		sample, err = s.Devices.DevicesByID(ctx, page.Devices[:min(len(page.Devices), ToolSample)])
		return sample, nil, err
	}
	if !page.ByQuery {
		page.Devices = page.Devices[:min(len(page.Devices), fleet.MaxLimit)]
		sample, err = s.Devices.DevicesByID(ctx, page.Devices)
		page.Matched = len(sample)
		return sample, nil, err
	}
	q, problem := fleet.ParseQuery(page.Query)
	if problem != nil {
		return nil, problem, nil
	}
	if page.Matched, err = s.Devices.CountDevices(ctx, q); err != nil {
		return nil, nil, err
	}
	found, err := s.Devices.Devices(ctx, fleet.DeviceFilter{Query: q, Limit: ToolSample})
	return found.Items, nil, err
}

// ToolsOf lists the tools that any of the devices offers, by name.
func (s *Server) ToolsOf(ctx context.Context, devices []fleet.Device) ([]fleet.Tool, error) {
	tools, seen := map[string]fleet.Tool{}, map[string]bool{"": true}
	for _, d := range devices {
		if seen[d.InventoryID] {
			continue
		}
		seen[d.InventoryID] = true
		inv, err := s.Devices.Inventory(ctx, d.InventoryID)
		if err != nil {
			return nil, err
		}
		for _, t := range inv.Tools {
			if _, known := tools[t.Name]; !known {
				tools[t.Name] = t
			}
		}
	}
	list := make([]fleet.Tool, 0, len(tools))
	for _, t := range tools {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b fleet.Tool) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// previewFanOut adds the preview of the form to the page.
func (s *Server) previewFanOut(ctx context.Context, page *ui.FanOutNewPage, form url.Values) (call.FanOutRequest,
	error) {
	args, shown, ok := forms.Arguments(page.Form.Fields, form)
	page.Form.Fields = shown
	if !ok {
		page.Problem = pages.Text(ctx, "tools.check_fields")
		return call.FanOutRequest{}, nil
	}
	request := call.FanOutRequest{Actor: pages.ViewerOf(ctx).Actor(), Tool: page.Form.Tool.Name, Arguments: args,
		MaxInFlight: page.MaxInFlight, OfflineWait: page.OfflineWait, Interrupt: page.Interrupt}
	if page.Retry != uuid.Nil {
		request.RetryOf = page.Retry
	} else if page.ByQuery {
		request.Query = page.Query
	} else {
		request.Devices = page.Devices
	}
	preview, err := s.FanOuts.Preview(ctx, request)
	if errors.Is(err, fleet.ErrInvalid) {
		page.Problem = pages.Explain(ctx, err)
		return request, nil
	}
	if err == nil {
		page.Preview, page.Arguments = &preview, args
	}
	return request, err
}

// LastArguments returns the arguments of the viewer's last call of the tool.
func (s *Server) LastArguments(ctx context.Context, tool fleet.Tool) (json.RawMessage, error) {
	return s.Calls.LastArguments(ctx, pages.ViewerOf(ctx).Actor(), tool.Name)
}
