package server

import (
	"cmp"
	"context"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

// openReports starts what takes the reports of devices: before the broker,
// which brings them.
func (s *Server) openReports(context.Context) error {
	s.reports = telemetry.NewReports(telemetry.ReportsOptions{Store: crashWatch{s.store, s}, Events: s.events,
		OnLog: s.logged, Log: s.log,
		OnUpgradeJob: func(device fleet.DeviceID, deployment uuid.UUID, attempt int, j telemetry.Job) {
			if engine := s.engine.Load(); engine != nil {
				engine.Reported(device, deployment, attempt, j)
			}
		}})
	s.stages.run("reports of devices", s.reports.Run)
	s.metrics.registry.MustRegister(reportMetrics{s.reports})
	return nil
}

// observed sees every outcome of a call.
func (s *Server) observed(c *fleet.Call) {
	s.metrics.observe(c)
	s.reports.Called(c)
}

// vitalsKept is how long the history of vitals is kept: it grows faster than
// all else.
func (c *Config) vitalsKept() time.Duration {
	return min(cmp.Or(c.Retention, telemetry.VitalsKept), telemetry.VitalsKept)
}

// reportMetrics shows what became of the reports.
type reportMetrics struct{ reports *telemetry.Reports }

var (
	reportsDesc = prometheus.NewDesc("fleetd_reports_total",
		"Reports that devices sent unasked and that were taken, by kind.", []string{"kind"}, nil)
	reportsDroppedDesc = prometheus.NewDesc("fleetd_reports_dropped_total",
		"Reports of devices that were dropped, by kind and reason.", []string{"kind", "reason"}, nil)
)

// Describe implements prometheus.Collector.
func (reportMetrics) Describe(descs chan<- *prometheus.Desc) {
	descs <- reportsDesc
	descs <- reportsDroppedDesc
}

// Collect implements prometheus.Collector.
func (r reportMetrics) Collect(metrics chan<- prometheus.Metric) {
	for _, kind := range telemetry.ReportKinds {
		c := r.reports.Count(kind)
		metrics <- prometheus.MustNewConstMetric(reportsDesc, prometheus.CounterValue, float64(c.Taken), kind.String())
		for reason, n := range map[string]int64{"too_many": c.TooMany, "malformed": c.Malformed, "no_room": c.NoRoom} {
			metrics <- prometheus.MustNewConstMetric(reportsDroppedDesc, prometheus.CounterValue, float64(n), kind.String(),
				reason)
		}
	}
}
