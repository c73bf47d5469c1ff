package devices

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
	"fleetd/web/console/device"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// bulkBytes has room for the ids of the maximum number of devices in one act.
const bulkBytes = 2 << 20

// maxAddress bounds an address made from a form: proxies accept 8 KB.
const maxAddress = 6 << 10

func (s *Server) bulkRoutes() []pages.Route {
	return []pages.Route{
		{Method: http.MethodGet, Pattern: ui.PathBulk, Role: fleet.RoleOperator, Reach: access.Audience, Page: s.planBulk,
			Heavy: heavy.Preview},
		{Method: http.MethodPost, Pattern: ui.PathBulk, Role: fleet.RoleOperator, Reach: access.Audience, Page: s.doBulk,
			Body: bulkBytes, Wait: time.Minute, Heavy: heavy.Preview},
	}
}

// planBulk shows the preview of an act. Without an act it redirects to the list, where acts are
// chosen.
func (s *Server) planBulk(r *http.Request) (pages.Answer, error) {
	if r.URL.Query().Get("act") == "" {
		return pages.GoTo(ui.PathDevices)
	}
	return s.bulkPlanned(r.Context(), r.URL.Query())
}

// doBulk carries out the previewed act. From a list it redirects to the preview; if the choice is
// too long for an address, it shows the preview at once.
func (s *Server) doBulk(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	form := r.PostForm
	if form.Get("step") == "apply" {
		return s.applyBulk(r)
	}
	form.Del("step")
	chosen := audienceForm(form)
	if len(chosen["d"]) == 0 && !chosen.Has("all") {
		s.Flash(r.Context(), ui.Flash{Bad: true, Text: pages.Explain(r.Context(), errNothingTicked)})
		return pages.GoTo(backToList(form))
	}
	switch act := form.Get("act"); act {
	case "call", "update":
		if len(chosen["d"]) > fleet.MaxLimit {
			return pages.Answer{}, fleet.Refuse(fleet.ErrInvalid, "audience_too_large.ticked", "limit", fleet.MaxLimit)
		}
		chosen.Del("all")
		path := map[string]string{"call": ui.PathFanOutNew, "update": ui.PathCampaignNew}[act]
		return pages.GoTo(path + "?" + chosen.Encode())
	}
	for _, name := range []string{"act", "tags", "reason", "hours", "next"} {
		if v := form.Get(name); v != "" {
			chosen.Set(name, v)
		}
	}
	if to := ui.PathBulk + "?" + chosen.Encode(); len(to) < maxAddress {
		return pages.GoTo(to)
	}
	return s.bulkPlanned(r.Context(), chosen)
}

// audienceForm returns the part of a form that chooses devices: all of a query, or the checked
// ones. ids are checked devices, also of earlier pages.
func audienceForm(form url.Values) url.Values {
	if form.Has("all") {
		return url.Values{"all": {"1"}, "q": {form.Get("q")}}
	}
	ids := form["d"]
	if more := form.Get("ids"); more != "" {
		ids = append(ids, strings.Split(more, ",")...)
	}
	return url.Values{"d": ids}
}

// bulkRequest reads a form, and returns its errors.
func (s *Server) bulkRequest(ctx context.Context, form url.Values) (r fleet.BulkRequest, err error) {
	r = fleet.BulkRequest{Actor: pages.ViewerOf(ctx).Actor(), Query: form.Get("q"), Act: fleet.BulkAct(form.Get("act")),
		Tags: device.SplitTags(form.Get("tags")), Reason: form.Get("reason")}
	for _, text := range audienceForm(form)["d"] {
		id, err := fleet.ParseDeviceID(text)
		if err != nil {
			return r, err
		}
		r.Devices = append(r.Devices, id)
	}
	if len(r.Devices) == 0 && !form.Has("all") {
		return r, errNothingTicked
	}
	if hours := form.Get("hours"); hours != "" && hours != "0" {
		n, err := strconv.Atoi(hours)
		if err != nil || n < 0 || n > device.MaxHold {
			return r, fleet.Refuse(fleet.ErrInvalid, "invalid_until.hours")
		}
		r.Until = new(s.Now().Add(time.Duration(n) * time.Hour))
	}
	return r, nil
}

var errNothingTicked = fleet.Refuse(fleet.ErrInvalid, "nothing_ticked")

// backToList returns the list from which the devices were chosen.
func backToList(form url.Values) string {
	if next := pages.LocalPath(form.Get("next")); next != ui.PathHome {
		return next
	}
	return ui.PathDevices
}

// bulkPlanned shows the preview of an act, or the fields that it still needs.
func (s *Server) bulkPlanned(ctx context.Context, form url.Values) (pages.Answer, error) {
	page, r, err := s.bulkPage(ctx, form)
	if err != nil {
		return pages.Answer{}, err
	}
	if page.Wants() {
		count, err := s.countChosen(ctx, r)
		if err != nil {
			return pages.Answer{}, err
		}
		page.Matched = count
		return pages.Show(page.Page())
	}
	return s.showBulk(ctx, page, r)
}

func (s *Server) countChosen(ctx context.Context, r fleet.BulkRequest) (int, error) {
	if len(r.Devices) > 0 {
		return len(r.Devices), nil
	}
	q, err := fleet.ParseQuery(r.Query)
	if err != nil {
		return 0, err
	}
	return s.Devices.CountDevices(ctx, q)
}

func (s *Server) bulkPage(ctx context.Context, form url.Values) (ui.BulkPage, fleet.BulkRequest, error) {
	r, err := s.bulkRequest(ctx, form)
	if err == nil && r.Act.Role() == "" {
		err = fleet.Refuse(fleet.ErrInvalid, "invalid_act", "value", string(r.Act))
	}
	page := ui.BulkPage{Act: r.Act, Query: r.Query, Devices: r.Devices, Tags: form.Get("tags"), Reason: r.Reason,
		Hours: form.Get("hours"), Next: backToList(form)}
	return page, r, err
}

// showBulk shows the preview, with the errors that the operator can correct.
func (s *Server) showBulk(ctx context.Context, page ui.BulkPage, r fleet.BulkRequest) (pages.Answer, error) {
	preview, err := s.Devices.PreviewBulk(ctx, r)
	switch {
	case errors.Is(err, fleet.ErrInvalid) && page.Takes():
		page.Problem, page.Asking = pages.Explain(ctx, err), true
		if page.Matched, err = s.countChosen(ctx, r); err != nil {
			return pages.Answer{}, err
		}
		return pages.ShowAgain(page.Page())
	case err != nil:
		return pages.Answer{}, err
	}
	page.Preview, page.Matched = &preview, preview.Matched
	if page.Problem != "" {
		return pages.ShowAgain(page.Page())
	}
	return pages.Show(page.Page())
}

func (s *Server) applyBulk(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	page, request, err := s.bulkPage(ctx, r.PostForm)
	if err != nil {
		return pages.Answer{}, err
	}
	request.Confirm, _ = strconv.Atoi(strings.TrimSpace(r.PostForm.Get("confirm")))
	done, err := s.Devices.Bulk(ctx, request)
	if errors.Is(err, fleet.ErrInvalid) || pages.ErrorCode(err) == "bulk_count_differs" {
		page.Problem = pages.Explain(ctx, err)
		return s.showBulk(ctx, page, request)
	}
	if err != nil {
		return pages.Answer{}, err
	}
	s.Flash(ctx, s.Undoable(ctx, ui.Flash{Text: ui.BulkDone(pages.InLanguage(ctx), request, done)}, s.undoBulk(done)))
	return pages.GoTo(page.Next)
}

// undoBulk takes back a bulk act on the devices that it changed.
func (s *Server) undoBulk(done fleet.BulkResult) pages.TakeBack {
	if len(done.Undo) == 0 {
		return nil
	}
	return func(ctx context.Context, by fleet.Principal) error {
		for _, request := range done.Undo {
			request.Actor = by
			if _, err := s.Devices.Bulk(ctx, request); err != nil {
				return err
			}
		}
		return nil
	}
}
