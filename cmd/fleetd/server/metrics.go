package server

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/web/device"
)

// metrics are the counters of fleetd's work.
type metrics struct {
	registry *prometheus.Registry
	calls    map[fleet.CallState]prometheus.Counter // by outcome
	duration prometheus.Histogram

	approvals map[call.ApprovalState]prometheus.Counter // by their end
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		calls:    make(map[fleet.CallState]prometheus.Counter),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fleetd_call_duration_seconds", Help: "From sending a call to its outcome.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18)}),
	}
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fleetd_calls_total", Help: "Tool calls by outcome."}, []string{"state"})
	for _, s := range fleet.CallStates {
		if s.Final() {
			m.calls[s] = calls.WithLabelValues(string(s)) // present from the start, as 0
		}
	}
	approvals := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fleetd_approvals_total", Help: "Approvals by how they ended."}, []string{"state"})
	m.approvals = make(map[call.ApprovalState]prometheus.Counter)
	for _, s := range call.ApprovalStates {
		if s != call.ApprovalWaiting {
			m.approvals[s] = approvals.WithLabelValues(string(s))
		}
	}
	m.registry.MustRegister(calls, approvals, m.duration, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// observe counts one outcome.
func (m *metrics) observe(c *fleet.Call) {
	if n, ok := m.calls[c.State]; ok {
		n.Inc()
	}
	if d := c.Duration(); d > 0 {
		m.duration.Observe(d.Seconds())
	}
}

// observeApproval counts the end of an approval.
func (m *metrics) observeApproval(s call.ApprovalState) {
	if n, ok := m.approvals[s]; ok {
		n.Inc()
	}
}

// countPolls adds the counts of broken boot polls of the device routes.
func (m *metrics) countPolls(stats func() device.Stats) {
	for outcome, read := range map[string]func(device.Stats) int64{
		"salvaged":   func(s device.Stats) int64 { return s.PollsSalvaged },
		"unreadable": func(s device.Stats) int64 { return s.PollsUnreadable },
	} {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "fleetd_boot_polls_broken_total",
			Help:        "Boot polls whose body was no JSON, often for a quote in the Wi-Fi name, by what could be read.",
			ConstLabels: prometheus.Labels{"outcome": outcome}}, func() float64 { return float64(read(stats())) }))
	}
}

// gauge adds a value that is read with the metrics.
func (m *metrics) gauge(name, help string, labels prometheus.Labels, read func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels},
		read))
}

// counter adds a count that is read with the metrics.
func (m *metrics) counter(name, help string, labels prometheus.Labels, read func() float64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
		read))
}
