package ui_test

import (
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/logstream"
	"fleetd/web/ui"
)

func sampleLogStream(i byte, kind logstream.Kind) ui.LogStreamRow {
	st := logstream.Stream{ID: uuid.NewSHA1(uuid.Max, []byte{i}), Name: "siem " + hostile[0], Kind: kind,
		Shown: "https://collector.example.org/…", Enabled: true, Next: 48_211,
		Filter: logstream.Filter{Kinds: []string{"call"}, Actions: []string{"self.*"}}}
	return ui.LogStreamRow{Stream: st, Size: 48_211}
}

func logStreamsPage(problem string) templ.Component {
	failing, off, behind := sampleLogStream(2, logstream.Syslog), sampleLogStream(3, logstream.OTLP),
		sampleLogStream(4, logstream.Webhook)
	failing.Stream.Failures, failing.Why = 12, "503"
	off.Stream.Enabled = false
	behind.Size += 123_456
	return ui.LogStreamsPage{Rows: []ui.LogStreamRow{sampleLogStream(1, logstream.Webhook), failing, off, behind},
		Secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", Form: ui.LogStreamForm{Kind: logstream.Webhook, From: "now"},
		Problem: problem}.Page()
}

func logStreamPage() templ.Component {
	row := sampleLogStream(1, logstream.Webhook)
	good := logstream.Delivery{At: now, First: 48_100, Last: 48_210, Entries: 97, Requests: 97, Removed: 3,
		Took: 840 * time.Millisecond, Status: 200}
	bad := logstream.Delivery{At: now.Add(-time.Minute), First: 48_100, Last: 48_100, Requests: 1, Status: 503,
		Reason: fleet.Because("log_stream_status", "status", 503)}
	return ui.LogStreamPage{Row: row, Form: ui.LogStreamForm{Name: row.Stream.Name, Kind: row.Stream.Kind,
		URL: row.Stream.Shown, Filter: row.Stream.Filter}, Deliveries: []ui.LogDeliveryRow{{Delivery: good},
		{Delivery: bad, Why: "503"}}}.Page()
}
