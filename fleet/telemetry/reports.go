package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/internal/writebehind"
)

// A ReportStore stores the reports of devices.
type ReportStore interface {
	VitalsStore
	JobStore
	ConfigStore
}

// ReportsOptions configures [Reports]. Store is required. The hooks run on the
// goroutine that reads the device's socket: they must not block.
type ReportsOptions struct {
	Store  ReportStore
	Events *fleet.Events // nil: no events are published
	Log    *slog.Logger

	// OnUpgradeJob receives each report on a job whose name has the form of
	// [fleet.UpgradeJobName], repeated reports included. The device chose the name: the
	// receiver must check that the deployment belongs to the device.
	OnUpgradeJob func(device fleet.DeviceID, deployment uuid.UUID, attempt int, j Job)
	// OnLog receives the raw params of notifications/log.
	OnLog func(device fleet.DeviceID, params json.RawMessage)

	Now        func() time.Time // default: time.Now
	WriteEvery time.Duration    // time between writes. Default: 15s for history, 2s for vitals, 250ms for jobs
}

// Reports receives the unsolicited reports of devices with the included firmware, and returns
// them to readers. It accepts reports without waiting and writes them later; it publishes an
// event when a report can be read.
type Reports struct {
	opts      ReportsOptions
	reporters *reporters
	counts    [reportKinds]reportCounter

	// Pages and programs read reports from the store, and events follow the write: a report that is
	// lost in a kill was never shown. Campaigns store reports on jobs before their conclusion
	// ([Reports.Stored]), and an answer that shows a configuration waits for it ([Reports.Called]).
	vitals  *writebehind.Buffer[fleet.DeviceID, Vitals]
	points  *writebehind.Buffer[pointKey, VitalsPoint]
	jobs    *writebehind.Buffer[jobKey, Job]
	configs *writebehind.Buffer[fleet.DeviceID, Config]
}

type pointKey struct {
	device fleet.DeviceID
	at     int64 // Unix seconds of the step
}

type jobKey struct {
	device fleet.DeviceID
	id     string
}

// NewReports returns the service. It stores nothing until Run.
func NewReports(o ReportsOptions) *Reports {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Reports{opts: o, reporters: newReporters()}
	r.vitals = newReportWriter(o, "vitals", 2*time.Second, r.saveVitals, newerVitals)
	r.points = newReportWriter(o, "vitals history", 15*time.Second, r.savePoints, VitalsPoint.Merge)
	r.jobs = newReportWriter(o, "jobs of devices", 250*time.Millisecond, r.saveJobs, mergeJob)
	r.configs = newReportWriter(o, "configurations of devices", time.Second, r.saveConfigs, nil)
	return r
}

// Bounds of the reports that wait to be written, per kind.
const (
	reportBatch = 2_000
	reportLimit = 200_000
)

func newReportWriter[K comparable, V any](o ReportsOptions, what string, every time.Duration,
	write func(context.Context, map[K]V) error, merge func(older, newer V) V) *writebehind.Buffer[K, V] {
	if o.WriteEvery > 0 {
		every = o.WriteEvery
	}
	return writebehind.New(&writebehind.Buffer[K, V]{Away: fleet.ErrUnavailable, What: what, Write: write, Merge: merge,
		Every: every, Batch: reportBatch, Limit: reportLimit, Log: o.Log})
}

// Run stores reports until ctx ends, and then the remaining ones.
func (r *Reports) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, run := range []func(context.Context){r.vitals.Run, r.points.Run, r.jobs.Run, r.configs.Run, r.forget} {
		wg.Go(func() { run(ctx) })
	}
	wg.Wait()
	return nil
}

func (r *Reports) forget(ctx context.Context) {
	tick := time.NewTicker(reporterIdle / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.reporters.forget(r.opts.Now())
		}
	}
}

// Count returns the counts of a kind of report since the start.
func (r *Reports) Count(k ReportKind) ReportCount { return r.counts[k].read() }

func (r *Reports) saveVitals(ctx context.Context, batch map[fleet.DeviceID]Vitals) error {
	if err := r.opts.Store.SaveVitals(ctx, batch); err != nil {
		return err
	}
	for id := range batch {
		r.publish(fleet.EventVitals, id, "")
	}
	return nil
}

func (r *Reports) savePoints(ctx context.Context, batch map[pointKey]VitalsPoint) error {
	points := make(map[fleet.DeviceID][]VitalsPoint, len(batch))
	for k, p := range batch {
		points[k.device] = append(points[k.device], p)
	}
	return r.opts.Store.AddVitalsPoints(ctx, points)
}

func (r *Reports) saveJobs(ctx context.Context, batch map[jobKey]Job) error {
	jobs := make([]Job, 0, len(batch))
	for _, j := range batch {
		jobs = append(jobs, j)
	}
	if err := r.opts.Store.SaveDeviceJobs(ctx, jobs); err != nil {
		return err
	}
	for _, j := range jobs {
		r.publish(fleet.EventJob, j.Device, j.ID)
	}
	return nil
}

func (r *Reports) saveConfigs(ctx context.Context, batch map[fleet.DeviceID]Config) error {
	if err := r.opts.Store.SaveDeviceConfigs(ctx, batch); err != nil {
		return err
	}
	for id := range batch {
		r.publish(fleet.EventConfig, id, "")
	}
	return nil
}

func (r *Reports) publish(kind fleet.EventKind, device fleet.DeviceID, subject string) {
	if e := r.opts.Events; e != nil && e.Wanted(kind) {
		e.Publish(fleet.Event{Kind: kind, At: r.opts.Now().UTC(), Device: device, Subject: subject})
	}
}

func newerVitals(older, newer Vitals) Vitals {
	if newer.At.Before(older.At) {
		return older
	}
	return newer
}

// maxReport bounds the params of a report; the broker has already bounded the size of the message.
const maxReport = 16 << 10

// Notified handles a notification of a device. It never blocks. It counts and drops reports
// that are excessive, unknown or malformed.
func (r *Reports) Notified(id fleet.DeviceID, method string, params json.RawMessage) {
	kind, known := reportMethods[method]
	if !known {
		r.counts[ReportOther].malformed.Add(1)
		return
	}
	count, now := &r.counts[kind], r.opts.Now().UTC()
	switch {
	case len(params) > maxReport:
		count.malformed.Add(1)
	case !r.may(id, kind, now):
		count.tooMany.Add(1)
	case kind == ReportLog:
		count.accepted.Add(1)
		if r.opts.OnLog != nil {
			r.opts.OnLog(id, params)
		}
	default:
		r.handle(id, kind, params, now)
	}
}

func (r *Reports) may(id fleet.DeviceID, kind ReportKind, now time.Time) (ok bool) {
	r.reporters.with(id, now, func(d *reporter) { ok = d.may(kind, now) })
	return ok
}

func (r *Reports) handle(id fleet.DeviceID, kind ReportKind, params json.RawMessage, now time.Time) {
	var understood, kept bool
	switch kind {
	case ReportTelemetry:
		understood, kept = r.putTelemetry(id, params, now)
	case ReportJob:
		understood, kept = r.putJob(id, params, now)
	case ReportConfig:
		f, _ := readFields(params)
		understood, kept = r.putConfig(id, f["config"], now)
	}
	switch count := &r.counts[kind]; {
	case !understood:
		count.malformed.Add(1)
		r.opts.Log.Debug("report not understood", "device", id, "kind", kind.String(), "bytes", len(params))
	case !kept:
		count.noRoom.Add(1)
	default:
		count.accepted.Add(1)
	}
}

func (r *Reports) putTelemetry(id fleet.DeviceID, params json.RawMessage, now time.Time) (understood, kept bool) {
	v, ok := parseTelemetry(params, now)
	if !ok {
		return false, false
	}
	var restarted bool
	r.reporters.with(id, now, func(d *reporter) { restarted = d.restarted(v) })
	p := v.point(restarted)
	kept = r.vitals.Put(id, v)
	return true, r.points.Put(pointKey{id, p.At.Unix()}, p) && kept
}

func (r *Reports) putJob(id fleet.DeviceID, params json.RawMessage, now time.Time) (understood, kept bool) {
	j, ok := parseJob(id, params, now)
	if !ok {
		return false, false
	}
	kept = r.jobs.Put(jobKey{id, j.ID}, j)
	if deployment, attempt, ok := fleet.ParseUpgradeJob(j.ID); ok && r.opts.OnUpgradeJob != nil {
		r.opts.OnUpgradeJob(id, deployment, attempt, j)
	}
	return true, kept
}

// Stored waits until all reports on jobs so far are stored.
func (r *Reports) Stored(ctx context.Context) error { return r.jobs.Settle(ctx) }

// calledTimeout bounds how long an answer waits for the configuration that it shows.
const calledTimeout = 500 * time.Millisecond

// Called handles the outcome of a call. Devices report their configuration unasked only when it
// changes: an answer that shows it counts as a report. Called returns when the report is
// stored, or after [calledTimeout], because the caller gets its answer next.
func (r *Reports) Called(c *fleet.Call) {
	if c.State != fleet.CallSucceeded || c.Tool != fleet.ToolConfigGet && c.Tool != fleet.ToolConfigSet {
		return
	}
	r.putConfig(c.Device, json.RawMessage(fleet.ResultText(c.Result)), r.opts.Now().UTC())
	ctx, cancel := context.WithTimeout(context.Background(), calledTimeout)
	defer cancel()
	if err := r.configs.Sync(ctx, c.Device); err != nil {
		r.opts.Log.Debug("an answer goes before the configuration that it shows is stored", "device", c.Device, "err", err)
	}
}

func (r *Reports) putConfig(id fleet.DeviceID, raw json.RawMessage, now time.Time) (understood, kept bool) {
	c, ok := ParseConfig(raw, now)
	if !ok {
		return false, false
	}
	return true, r.configs.Put(id, c)
}

// Bounds of a single read.
const (
	MaxDeviceJobs     = 50    // also the number stored per device
	maxVitalsPoints   = 2_000 // of one reply: the step grows until they suffice
	maxVitalsInterval = 400 * 24 * time.Hour
)

// VitalsKept is how long the history of vitals is stored. VitalsStepsKept is how long it has
// steps of [VitalsStep]; older history has steps of an hour.
const (
	VitalsKept      = 90 * 24 * time.Hour
	VitalsStepsKept = 3 * 24 * time.Hour
)

// Vitals returns the device's latest vitals, or [fleet.ErrNotFound] with a code for the
// possible reason.
func (r *Reports) Vitals(ctx context.Context, id fleet.DeviceID) (Vitals, error) {
	v, err := r.opts.Store.Vitals(ctx, id)
	return v, neverReported(err, fleet.Refuse(fleet.ErrNotFound, "no_vitals"))
}

// UnsteadyVitals returns the vitals of the given devices that are in safe mode, or have crashed
// since they last stayed up.
func (r *Reports) UnsteadyVitals(ctx context.Context, devices []fleet.DeviceID) (map[fleet.DeviceID]Vitals, error) {
	if len(devices) == 0 {
		return nil, nil
	}
	return r.opts.Store.UnsteadyVitals(ctx, devices)
}

// VitalsOf returns the latest vitals of the given devices that ever reported any.
func (r *Reports) VitalsOf(ctx context.Context, devices []fleet.DeviceID) (map[fleet.DeviceID]Vitals, error) {
	if len(devices) == 0 {
		return nil, nil
	}
	return r.opts.Store.VitalsOf(ctx, devices)
}

// LastCrashes returns the time of the last crash for the given devices that are known to have
// crashed: the arrival of their latest core dump, or the start that followed a crash according
// to their vitals.
func (r *Reports) LastCrashes(ctx context.Context, devices []fleet.DeviceID, vitals map[fleet.DeviceID]Vitals) (
	map[fleet.DeviceID]time.Time, error) {
	if len(devices) == 0 {
		return nil, nil
	}
	crashes, err := r.opts.Store.LastCoreDumps(ctx, devices)
	if err != nil {
		return nil, err
	}
	for id, v := range vitals {
		if start := v.At.Add(-v.Uptime); v.Crashes > 0 && start.After(crashes[id]) {
			crashes[id] = start
		}
	}
	return crashes, nil
}

// VitalsHistory returns the device's vitals, oldest first, in steps of at least step. The steps
// are longer if there would be too many.
func (r *Reports) VitalsHistory(ctx context.Context, id fleet.DeviceID, since, until time.Time, step time.Duration) (
	[]VitalsPoint, error) {
	if !since.Before(until) || until.Sub(since) > maxVitalsInterval {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_interval", "days", int64(maxVitalsInterval/24/time.Hour))
	}
	finest := VitalsStep
	if r.opts.Now().Sub(since) > VitalsStepsKept {
		finest = time.Hour
	}
	step = max(step, until.Sub(since)/maxVitalsPoints, finest)
	step = (step + finest - 1).Truncate(finest)
	return r.opts.Store.VitalsHistory(ctx, id, since, until, step)
}

// DeviceJobs returns the device's jobs, newest first.
func (r *Reports) DeviceJobs(ctx context.Context, id fleet.DeviceID, limit int) ([]Job, error) {
	if limit <= 0 {
		limit = MaxDeviceJobs
	}
	return r.opts.Store.DeviceJobs(ctx, id, min(limit, MaxDeviceJobs))
}

// DeviceConfig returns the configuration that the device reported last, or [fleet.ErrNotFound]
// with a code for the possible reason.
func (r *Reports) DeviceConfig(ctx context.Context, id fleet.DeviceID) (Config, error) {
	c, err := r.opts.Store.DeviceConfig(ctx, id)
	return c, neverReported(err, fleet.Refuse(fleet.ErrNotFound, "no_config", "tool", fleet.ToolConfigGet))
}

func neverReported(err error, missing *fleet.Error) error {
	if errors.Is(err, fleet.ErrNotFound) {
		return missing
	}
	return err
}
