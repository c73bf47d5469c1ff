package telemetry

import (
	"context"
	"encoding/json"
	"fleetd/fleet"
	"fleetd/fleet/internal/writebehind"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
)

// A ReportStore keeps what devices report.
type ReportStore interface {
	VitalsStore
	JobStore
	ConfigStore
}

// ReportsOptions configures [Reports]. Store is required. The hooks run on the
// goroutine that reads the device's socket: they must not block.
type ReportsOptions struct {
	Store  ReportStore
	Events *fleet.Events // nil: nobody is told
	Log    *slog.Logger

	// OnUpgradeJob is told each report on a job that is named as
	// [fleet.UpgradeJobName] does, also one that comes twice. The device chose the
	// name: whether the deployment is its own remains to be seen.
	OnUpgradeJob func(device fleet.DeviceID, deployment uuid.UUID, attempt int, j Job)
	// OnLog is given the params of notifications/log as they came.
	OnLog func(device fleet.DeviceID, params json.RawMessage)

	Now        func() time.Time // default: time.Now
	WriteEvery time.Duration    // how long reports are gathered. Default: 15s for history, 2s for vitals, 250ms for jobs
}

// Reports takes what devices with the included firmware report unasked, and
// answers what was reported. It takes reports without waiting for anything and
// writes behind; an event tells when a report can be read.
type Reports struct {
	opts      ReportsOptions
	reporters *reporters
	counts    [reportKinds]reportCounter

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

// NewReports makes the service. Nothing is stored until Run.
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

// Bounds of what waits to be written, per kind.
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

// Run stores what is reported until ctx ends, and what is left after that.
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

// Count is what became of the reports of a kind since the start.
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
	if e := r.opts.Events; e != nil && !e.Idle() {
		e.Publish(fleet.Event{Kind: kind, At: r.opts.Now().UTC(), Device: device, Subject: subject})
	}
}

func newerVitals(older, newer Vitals) Vitals {
	if newer.At.Before(older.At) {
		return older
	}
	return newer
}
