package device

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/telemetry"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// Maximum lengths of lists on the health page.
const (
	shownJobs  = 8
	campaigned = 50 // deployments to search for a job's campaign
)

// Reports reads the reports of a device with the included firmware. For a device that never reported
// it returns [fleet.ErrNotFound], or no points.
type Reports interface {
	Vitals(ctx context.Context, device fleet.DeviceID) (telemetry.Vitals, error)
	VitalsHistory(ctx context.Context, device fleet.DeviceID, since, until time.Time, step time.Duration) (
		[]telemetry.VitalsPoint, error)
	DeviceJobs(ctx context.Context, device fleet.DeviceID, limit int) ([]telemetry.Job, error)
	DeviceConfig(ctx context.Context, device fleet.DeviceID) (telemetry.Config, error)
}

func (s *Server) healthRoutes() []pages.Route {
	const device = ui.PathDevices + "/{device}"
	return []pages.Route{
		{Method: http.MethodGet, Pattern: device + "/health", Role: fleet.RoleViewer, Reach: access.Device,
			Page: s.showHealth},
		{Method: http.MethodGet, Pattern: device + "/configuration", Role: fleet.RoleViewer, Reach: access.Device,
			Page: s.showConfiguration},
		{Method: http.MethodPost, Pattern: device + "/config", Role: fleet.RoleOperator, Reach: access.Device,
			Page: s.applyConfig,
			Wait: call.MaxTimeout + 2*time.Minute},
		{Method: http.MethodPost, Pattern: device + "/config/read", Role: fleet.RoleOperator, Reach: access.Device,
			Page: s.readConfig,
			Wait: call.MaxTimeout + 2*time.Minute},
	}
}

func (s *Server) showHealth(r *http.Request) (pages.Answer, error) {
	d, err := s.Board(r)
	if err != nil {
		return pages.Answer{}, err
	}
	page, err := s.healthPage(r, d)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) healthPage(r *http.Request, d fleet.Device) (page ui.HealthPage, err error) {
	ctx := r.Context()
	page.Head = s.Head(r, d, "health")
	if page.Vitals, err = s.deviceVitals(ctx, d); err != nil {
		return page, err
	}
	if page.Jobs, err = s.deviceJobs(ctx, d.ID); err != nil {
		return page, err
	}
	page.Jobs.Always = page.Vitals.Reports
	shown, err := s.healthRange(r, d)
	if err != nil {
		return page, err
	}
	page.Trends, err = s.healthTrends(ctx, d, page.Vitals, shown)
	return page, err
}

// healthRange returns the time that the address asks for: a named range up to now, or two times.
func (s *Server) healthRange(r *http.Request, d fleet.Device) (ui.HealthRange, error) {
	q, now, zone := r.URL.Query(), s.Now(), pages.ViewerOf(r.Context()).Zone
	from, err := pages.FormMoment(q, "from", zone)
	if err != nil || from == nil {
		return ui.ParseHealthRange(q.Get("range"), now.Sub(d.CreatedAt)), err
	}
	to, err := pages.FormMoment(q, "to", zone)
	switch {
	case err != nil:
		return ui.HealthRange{}, err
	case to == nil || to.After(now):
		to = &now
	}
	return ui.ChosenHealthRange(*from, *to, now), nil
}

// deviceVitals returns the latest report of the device.
func (s *Server) deviceVitals(ctx context.Context, d fleet.Device) (ui.DeviceVitals, error) {
	v := ui.DeviceVitals{Device: d.ID, Online: d.Presence == fleet.PresenceOnline, Heartbeat: defaultHeartbeat}
	vitals, err := s.Reports.Vitals(ctx, d.ID)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		v.Reports, err = s.reporting(ctx, d.ID)
		return v, err
	case err != nil:
		return v, err
	}
	v.Vitals, v.Reports = &vitals, true
	if vitals.CoreDump {
		dumps, err := s.CoreDumps.CoreDumps(ctx, d.ID, 1)
		if err != nil {
			return v, err
		}
		v.Collected = collected(dumps, vitals)
	}
	config, err := s.Reports.DeviceConfig(ctx, d.ID)
	if err == nil {
		v.Heartbeat, v.Muted = heartbeatOf(config)
		if config.At.After(vitals.At) {
			vitals.ConfigVersion = config.Version
		}
	}
	return v, pages.Unless(err, fleet.ErrNotFound)
}

// reporting reports whether the device's firmware sends reports: it has sent one, or it offers the
// tools of the included firmware.
func (s *Server) reporting(ctx context.Context, id fleet.DeviceID) (bool, error) {
	_, err := s.Reports.Vitals(ctx, id)
	if err == nil {
		return true, nil
	}
	inv, failed := s.Devices.Tools(ctx, id)
	if err := cmp.Or(pages.Unless(err, fleet.ErrNotFound), pages.Unless(failed, fleet.ErrNotFound)); err != nil {
		return false, err
	}
	return Offers(inv, fleet.ToolConfigGet), nil
}

// Offers reports whether the inventory has the tool. A nil inventory has none.
func Offers(inv *fleet.Inventory, tool string) bool {
	if inv == nil {
		return false
	}
	_, ok := inv.Tool(tool)
	return ok
}

// healthTrends returns the vitals over time, up to the latest report.
func (s *Server) healthTrends(ctx context.Context, d fleet.Device, v ui.DeviceVitals, shown ui.HealthRange) (
	ui.HealthTrends, error) {
	trends := ui.HealthTrends{Device: v.Device, Shown: v.Reports, Range: shown, First: d.CreatedAt, To: s.Now(),
		Heartbeat: v.Heartbeat}
	if !shown.To.IsZero() {
		trends.To = shown.To
	}
	if !v.Reports {
		return trends, nil
	}
	since := trends.To.Add(-shown.Span)
	points, err := s.Reports.VitalsHistory(ctx, v.Device, since, trends.To, shown.Step)
	if err != nil {
		return trends, err
	}
	if v.Vitals != nil && !v.Vitals.At.After(trends.To) {
		points = withLatest(points, v.Vitals, since, shown.Step)
	}
	trends.Points = points
	return trends, nil
}

// withLatest adds the latest report: a step is stored a little later, under the time at which it
// began.
func withLatest(points []telemetry.VitalsPoint, latest *telemetry.Vitals, since time.Time,
	step time.Duration) []telemetry.VitalsPoint {
	if latest.At.Before(since) {
		return points
	}
	p := telemetry.VitalsPoint{At: latest.At, Beats: 1, HeapFree: latest.HeapFree, HeapMin: latest.HeapMin,
		HeapLargest: latest.HeapLargest, RSSI: latest.RSSI, Temperature: latest.Temperature,
		Reconnects: latest.Reconnects, Uptime: latest.Uptime, Boots: latest.Boots}
	if n := len(points); n > 0 {
		last := points[n-1]
		if !latest.At.After(last.At) {
			return points
		}
		p.Restarted = latest.Boots > last.Boots && last.Boots > 0 ||
			latest.At.Add(-latest.Uptime).After(last.At.Add(step))
	}
	return append(points, p)
}

// deviceJobs returns the newest jobs, with the campaigns that they belong to.
func (s *Server) deviceJobs(ctx context.Context, id fleet.DeviceID) (ui.DeviceJobs, error) {
	v := ui.DeviceJobs{Device: id}
	var err error
	if v.Jobs, err = s.Reports.DeviceJobs(ctx, id, shownJobs); err != nil {
		return v, err
	}
	wanted := false
	for _, j := range v.Jobs {
		wanted = wanted || j.Deployment != uuid.Nil
	}
	if !wanted {
		return v, nil
	}
	parts, err := s.Campaigns.DeviceDeployments(ctx, id, campaigned)
	v.Campaigns = make(map[uuid.UUID]uuid.UUID, len(parts))
	for _, d := range parts {
		v.Campaigns[d.ID] = d.Campaign
	}
	return v, err
}
