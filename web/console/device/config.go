package device

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/telemetry"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// TabConfiguration is the tab of a device's settings.
const TabConfiguration = "configuration"

func (s *Server) showConfiguration(r *http.Request) (pages.Answer, error) {
	d, err := s.Device(r)
	if err != nil {
		return pages.Answer{}, err
	}
	page, err := s.configurationPage(r, d)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) configurationPage(r *http.Request, d fleet.Device) (ui.ConfigurationPage, error) {
	ctx := r.Context()
	page := ui.NewConfigurationPage(d, s.Head(r, d, TabConfiguration))
	page.CanRetire = pages.ViewerOf(ctx).Actor().RoleOn(d).Allows(fleet.RoleAdmin)
	if st, ok := s.Enrolments.MQTT5State(d.ID); ok && d.RetiredAt == nil && d.Enrolment == fleet.EnrolmentEnrolled &&
		page.Head.CanAct {
		page.Credentials = &st
	}
	if !d.IsBoard() {
		return page, nil
	}
	var err error
	if page.Config, err = s.deviceConfig(ctx, d); err != nil {
		return page, err
	}
	page.Config.Last, err = s.configCall(r, d)
	return page, err
}

// defaultHeartbeat is the interval of the included firmware if its configuration does not set
// another.
const defaultHeartbeat = time.Minute

// reportWait is longer than storing a report takes.
const reportWait = 2 * time.Second

// heartbeatOf returns the configured interval of heartbeats.
func heartbeatOf(c telemetry.Config) (every time.Duration, muted bool) {
	values := struct {
		Seconds   int64 `json:"heartbeat_s"`
		Telemetry *bool `json:"telemetry"`
	}{}
	_ = json.Unmarshal(c.Values, &values) // invalid values are ignored
	every = time.Duration(values.Seconds) * time.Second
	if values.Seconds <= 0 || values.Seconds > 24*3600 {
		every = defaultHeartbeat
	}
	return every, values.Telemetry != nil && !*values.Telemetry
}

// deviceConfig returns the configuration in the device's report, and the form to change it.
func (s *Server) deviceConfig(ctx context.Context, d fleet.Device) (ui.DeviceConfigView, error) {
	v := ui.DeviceConfigView{Device: d.ID, CanAct: s.mayCall(ctx, d.ID),
		Offline: d.Presence != fleet.PresenceOnline && d.Presence != fleet.PresenceUnresponsive}
	if inv, err := s.Devices.Tools(ctx, d.ID); err == nil {
		v.Offers = Offers(inv, fleet.ToolConfigGet) && Offers(inv, fleet.ToolConfigSet)
	}
	c, err := s.Reports.DeviceConfig(ctx, d.ID)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return v, nil
	case err != nil:
		return v, err
	}
	v.Config, v.Fields = &c, forms.ConfigFields(c.Values)
	vitals, err := s.Reports.Vitals(ctx, d.ID)
	if err == nil && vitals.At.After(c.At) && vitals.ConfigVersion != c.Version {
		v.Running = &vitals.ConfigVersion // it was restarted on trial, or configured by others
	}
	return v, pages.Unless(err, fleet.ErrNotFound)
}

// configCall returns the call that the page has just made, if it is in the address.
func (s *Server) configCall(r *http.Request, d fleet.Device) (*ui.ConfigCall, error) {
	id, err := uuid.Parse(r.URL.Query().Get("call"))
	if err != nil {
		return nil, nil
	}
	c, err := s.Calls.Get(r.Context(), id)
	if errors.Is(err, fleet.ErrNotFound) || (err == nil && (c.Device != d.ID || (c.Tool != fleet.ToolConfigGet &&
		c.Tool != fleet.ToolConfigSet))) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &ui.ConfigCall{Call: c}, nil
}

// readConfig reads the configuration from the device.
func (s *Server) readConfig(r *http.Request) (pages.Answer, error) {
	d, err := s.Board(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return s.callConfig(r, d, fleet.ToolConfigGet, struct{}{})
}

// applyConfig sends the changes of the form with the next version number: the device refuses a
// version that is not newer than its own.
func (s *Server) applyConfig(r *http.Request) (pages.Answer, error) {
	d, err := s.Board(r)
	if err != nil {
		return pages.Answer{}, err
	}
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	view, err := s.deviceConfig(r.Context(), d)
	if err != nil {
		return pages.Answer{}, err
	}
	if view.Config == nil {
		return pages.Answer{}, fleet.Refuse(fleet.ErrInvalid, "config_unknown")
	}
	changed, typed, ok := forms.ReadConfig(view.Fields, r.PostForm)
	if problem := s.configProblem(r, view, changed, ok); problem != "" {
		return s.configAgain(r, d, typed, problem)
	}
	document, err := json.Marshal(struct {
		Version int64          `json:"version"`
		Values  map[string]any `json:"values"`
	}{max(view.Config.Version, view.Config.Reverted) + 1, changed})
	if err != nil {
		return pages.Answer{}, err
	}
	return s.callConfig(r, d, fleet.ToolConfigSet, map[string]string{"document": string(document)})
}

// configProblem returns the reason why the form is not sent; "" if it is.
func (s *Server) configProblem(r *http.Request, v ui.DeviceConfigView, changed map[string]any, ok bool) string {
	ctx := r.Context()
	base, err := strconv.ParseInt(r.PostFormValue("base"), 10, 64)
	switch {
	case !ok:
		return pages.Text(ctx, "config.check_fields")
	case err != nil || base != v.Config.Version:
		return pages.Text(ctx, "config.newer", "version", v.Config.Version)
	case v.Running != nil:
		return pages.Text(ctx, "config.stale", "version", *v.Running)
	case len(changed) == 0:
		return pages.Text(ctx, "config.unchanged")
	}
	return ""
}

// configAgain shows the page again with the form as typed and its problem.
func (s *Server) configAgain(r *http.Request, d fleet.Device, typed []forms.ConfigField, problem string) (pages.Answer,
	error) {
	page, err := s.configurationPage(r, d)
	if err != nil {
		return pages.Answer{}, err
	}
	page.Config.Fields, page.Config.Problem = typed, problem
	return pages.ShowAgain(page.Page())
}

// awaitReport waits a moment until the device's report is stored: the next page shows it, also
// without JavaScript.
func awaitReport(ctx context.Context, reports *fleet.Subscription) {
	ctx, cancel := context.WithTimeout(ctx, reportWait)
	defer cancel()
	select {
	case <-reports.C:
	case <-ctx.Done():
	}
}

// callConfig makes an ordinary recorded call, and redirects to its outcome.
func (s *Server) callConfig(r *http.Request, d fleet.Device, tool string, arguments any) (pages.Answer, error) {
	args, err := json.Marshal(arguments)
	if err != nil {
		return pages.Answer{}, err
	}
	reports := s.Events.Subscribe(8, func(e *fleet.Event) bool { return e.Kind == fleet.EventConfig && e.Device == d.ID })
	defer reports.Close()
	call, err := s.start(r, call.Request{Actor: pages.ViewerOf(r.Context()).Actor(), Device: d.ID, Tool: tool,
		Arguments: args})
	if err != nil {
		return pages.Answer{}, err
	}
	if c, err := s.Calls.Get(r.Context(), call.ID); err == nil && c.State == fleet.CallSucceeded {
		awaitReport(r.Context(), reports)
	}
	return pages.GoTo(ui.DevicePath(d.ID, TabConfiguration) + "?" + url.Values{"call": {call.ID.String()}}.Encode())
}
