package server

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fleetd/broker"
	"fleetd/broker/edge"
	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/telemetry"
)

// watchParts exports the numbers that the parts count themselves. They are read
// with the metrics.
func (s *Server) watchParts() {
	m := s.metrics
	m.gauge("fleetd_devices", "Connected devices by presence.",
		prometheus.Labels{"presence": string(fleet.PresenceOnline)},
		func() float64 { online, _, _ := s.Presences.Counts(); return float64(online) })
	m.gauge("fleetd_devices", "Connected devices by presence.",
		prometheus.Labels{"presence": string(fleet.PresenceUnresponsive)},
		func() float64 { _, unresponsive, _ := s.Presences.Counts(); return float64(unresponsive) })
	m.gauge("fleetd_devices", "Connected devices by presence.",
		prometheus.Labels{"presence": string(fleet.PresenceUnknownEdge)},
		func() float64 { _, _, unknown := s.Presences.Counts(); return float64(unknown) })
	m.gauge("fleetd_database_connections", "Database connections in use.", nil,
		func() float64 { return float64(s.pool.Stat().AcquiredConns()) })
	m.gauge("fleetd_enrolment_waiting", "Devices that wait to be enrolled.", nil,
		func() float64 { return float64(s.Enrolments.Stats().Waiting) })
	m.gauge("fleetd_device_conflicts", "Devices whose Device-Id two units seem to use.", nil,
		func() float64 { return float64(s.Enrolments.Conflicts()) })
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "fleetd_enrolment_unlisted_total",
		Help: "Requests to be enrolled that were not listed, or lost their place: their network had too many."},
		func() float64 { return float64(s.Enrolments.Stats().Unlisted) }))
	for _, outcome := range enrolment.ProofOutcomes {
		m.counter("fleetd_serial_proofs_total", "Activations with a serial number, by outcome.",
			prometheus.Labels{"outcome": string(outcome)},
			func() float64 { return float64(s.Serials.Proofs(outcome)) })
	}
	if s.files != nil {
		m.counter("fleetd_blobs_swept_total", "Files deleted from the blob store because no record named them.", nil,
			func() float64 { return float64(s.files.Total().Deleted) })
		m.counter("fleetd_blobs_swept_bytes_total", "Bytes of the files deleted because no record named them.", nil,
			func() float64 { return float64(s.files.Total().Bytes) })
	}
	m.gauge("fleetd_signing_key_generation", "Generation of the key that signs device credentials.", nil,
		func() float64 { return float64(s.Keys.SigningGeneration()) })
	m.registry.MustRegister(reportMetrics{s.Reports}, statMetrics[broker.Stats]{brokerMetrics, s.broker.Stats},
		&rotationMetrics{keys: s.Keys})
	if s.edge != nil {
		m.watchEdge(s.edge)
	}
}

// watchEdge exports the numbers of the sockets.
func (m *metrics) watchEdge(e *edge.Edge) {
	m.registry.MustRegister(statMetrics[edge.Stats]{edgeMetrics, e.Stats}, refusedMetrics{e})
}

// statMetrics exports the numbers of one part of the broker, all from one reading.
type statMetrics[S any] struct {
	list  []statMetric[S]
	stats func() S
}

// A statMetric is one of the numbers with its name as a metric.
type statMetric[S any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(*S) int64
}

func mqttCounter[S any](name, help string, read func(*S) int64) statMetric[S] {
	return statMetric[S]{prometheus.NewDesc("fleetd_mqtt_"+name+"_total", help, nil, nil), prometheus.CounterValue, read}
}

func mqttGauge[S any](name, help string, read func(*S) int64) statMetric[S] {
	return statMetric[S]{prometheus.NewDesc("fleetd_mqtt_"+name, help, nil, nil), prometheus.GaugeValue, read}
}

var brokerMetrics = []statMetric[broker.Stats]{
	mqttGauge("connections", "Devices connected.", func(s *broker.Stats) int64 { return s.Connections }),
	mqttGauge("onboarding", "Devices being asked for their tools.", func(s *broker.Stats) int64 { return s.Onboarding }),
	mqttGauge("channels", "Conversations without voice, kept open for the tools of programs that leave with them.",
		func(s *broker.Stats) int64 { return s.Channels }),
	mqttCounter("connects", "Connections accepted.", func(s *broker.Stats) int64 { return s.Connects }),
	mqttCounter("takeovers", "Connections that replaced another of the same device.",
		func(s *broker.Stats) int64 { return s.Takeovers }),
	mqttCounter("unreadable", "Messages that could not be read.", func(s *broker.Stats) int64 { return s.Unreadable }),
	mqttCounter("unmatched_answers", "Answers to nothing that was asked.",
		func(s *broker.Stats) int64 { return s.Unmatched }),
	mqttCounter("late_answers", "Answers to calls given up before.", func(s *broker.Stats) int64 { return s.Late }),
	mqttCounter("listings", "Tool lists taken.", func(s *broker.Stats) int64 { return s.Listings }),
	mqttCounter("listings_failed", "Tool lists that could not be taken.",
		func(s *broker.Stats) int64 { return s.ListingsFailed }),
}

var edgeMetrics = []statMetric[edge.Stats]{
	mqttGauge("sockets", "Sockets open, those not yet authenticated included.",
		func(s *edge.Stats) int64 { return s.Sockets }),
	mqttGauge("websockets", "Devices connected by WebSocket, for a conversation; among the connections.",
		func(s *edge.Stats) int64 { return s.WebSockets }),
	mqttGauge("agents", "MCP clients connected; not among the connections.",
		func(s *edge.Stats) int64 { return s.Agents }),
	mqttCounter("websocket_audio_dropped",
		"Audio over WebSockets that came too late, too often, or outside of a conversation.",
		func(s *edge.Stats) int64 { return s.AudioDropped }),
	mqttCounter("publishes_in", "Messages from devices.", func(s *edge.Stats) int64 { return s.PublishesIn }),
	mqttCounter("publishes_out", "Messages to devices.", func(s *edge.Stats) int64 { return s.PublishesOut }),
	mqttCounter("foreign_topics", "Messages dropped since their topic was not the device's own.",
		func(s *edge.Stats) int64 { return s.ForeignTopics }),
	mqttCounter("duplicates", "Messages at QoS 2 that came again and were handled once.",
		func(s *edge.Stats) int64 { return s.Duplicates }),
	mqttCounter("protocol_errors", "Connections ended since the device broke the rules of MQTT.",
		func(s *edge.Stats) int64 { return s.ProtocolErrors }),
	mqttCounter("outbox_full", "Messages not sent since the device does not read.",
		func(s *edge.Stats) int64 { return s.OutboxFull }),
	mqttGauge("tls_handshakes", "TLS handshakes that are not finished.",
		func(s *edge.Stats) int64 { return s.Handshakes }),
	mqttCounter("tls_handshakes_failed", "TLS handshakes that failed.",
		func(s *edge.Stats) int64 { return s.HandshakesFailed }),
	mqttCounter("tls_handshakes_evicted", "TLS handshakes ended since others waited for their place.",
		func(s *edge.Stats) int64 { return s.HandshakesEvicted }),
	mqttCounter("accept_errors", "Errors in accepting connections.",
		func(s *edge.Stats) int64 { return s.AcceptErrors }),
	mqttCounter("panics", "Panics contained in one connection.", func(s *edge.Stats) int64 { return s.Panics }),
}

// Describe implements prometheus.Collector.
func (m statMetrics[S]) Describe(descs chan<- *prometheus.Desc) {
	for _, m := range m.list {
		descs <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (m statMetrics[S]) Collect(metrics chan<- prometheus.Metric) {
	stats := m.stats()
	for _, m := range m.list {
		metrics <- prometheus.MustNewConstMetric(m.desc, m.kind, float64(m.read(&stats)))
	}
}

// refusedMetrics exports the refused connections.
type refusedMetrics struct{ edge *edge.Edge }

var refusedDesc = prometheus.NewDesc("fleetd_mqtt_refused_total", "Connections refused, by reason.", []string{"reason"},
	nil)

// Describe implements prometheus.Collector.
func (refusedMetrics) Describe(descs chan<- *prometheus.Desc) { descs <- refusedDesc }

// Collect implements prometheus.Collector.
func (m refusedMetrics) Collect(metrics chan<- prometheus.Metric) {
	for reason, n := range m.edge.Stats().Refused {
		metrics <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(n), reason)
	}
}

// rotationMetrics exports the progress of the latest rotation of the signing
// key. It queries the database at most every 15 seconds.
type rotationMetrics struct {
	keys *enrolment.SigningKeys

	mu     sync.Mutex
	at     time.Time
	counts enrolment.RotationCounts
}

var rotationDesc = prometheus.NewDesc("fleetd_signing_key_devices",
	"Enrolled devices by their place in the latest rotation of the signing key: connected with the new key, seen without it, not seen.",
	[]string{"group"}, nil)

// Describe implements prometheus.Collector.
func (*rotationMetrics) Describe(descs chan<- *prometheus.Desc) { descs <- rotationDesc }

// Collect implements prometheus.Collector. Before the first rotation it sends
// no metrics.
func (r *rotationMetrics) Collect(metrics chan<- prometheus.Metric) {
	if r.keys.Rotation().ID == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) > 15*time.Second {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		counts, err := r.keys.Counts(ctx)
		if err != nil {
			return
		}
		r.at, r.counts = time.Now(), counts
	}
	for group, n := range map[enrolment.RotationGroup]int64{enrolment.RotationNew: r.counts.New,
		enrolment.RotationOld:     r.counts.Old,
		enrolment.RotationNotSeen: r.counts.NotSeen} {
		metrics <- prometheus.MustNewConstMetric(rotationDesc, prometheus.GaugeValue, float64(n), string(group))
	}
}

// reportMetrics exports the counts of reports by outcome.
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
		metrics <- prometheus.MustNewConstMetric(reportsDesc, prometheus.CounterValue, float64(c.Accepted), kind.String())
		for reason, n := range map[string]int64{"too_many": c.TooMany, "malformed": c.Malformed, "no_room": c.NoRoom} {
			metrics <- prometheus.MustNewConstMetric(reportsDroppedDesc, prometheus.CounterValue, float64(n), kind.String(),
				reason)
		}
	}
}
