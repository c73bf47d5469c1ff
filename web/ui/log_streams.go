package ui

import (
	"context"
	"net/url"
	"strconv"

	"fleetd/fleet/logstream"
)

// PathLogStreams is the list of log streams, for admins: GET; POST adds one.
const PathLogStreams = "/settings/log-streams"

// LogStreamPath is the page of a log stream, or an act: "test", "replay", "enable", "disable", "delete".
func LogStreamPath(id string, act ...string) string {
	path := PathLogStreams + "/" + url.PathEscape(id)
	for _, a := range act {
		path += "/" + a
	}
	return path
}

// A LogStreamForm contains the fields of a stream as they were typed.
type LogStreamForm struct {
	Name, URL                     string
	Kind                          logstream.Kind
	Headers, CA, Certificate, Key string
	Filter                        logstream.Filter
	From                          string
}

// A LogStreamRow is a stream with its state.
type LogStreamRow struct {
	Stream logstream.Stream
	Size   int64  // of the record
	Why    string // the latest delivery failed, in the page's language
}

// A LogStreamsPage lists the streams, and adds one.
type LogStreamsPage struct {
	Rows    []LogStreamRow
	Secret  string // of a new webhook: shown once
	Form    LogStreamForm
	Problem string // why the last change failed, in the page's language
}

// A LogDeliveryRow is a delivery in the page of a stream.
type LogDeliveryRow struct {
	logstream.Delivery
	Why string
}

// A LogStreamPage shows a stream and its latest deliveries, and changes it.
type LogStreamPage struct {
	Row        LogStreamRow
	Deliveries []LogDeliveryRow
	Form       LogStreamForm
	Problem    string
}

func (r LogStreamRow) id() string { return r.Stream.ID.String() }

// state returns the tone and the text of the stream's state.
func (r LogStreamRow) state(ctx context.Context) (tn tone, code, label string) {
	lag := r.Stream.Lag(r.Size)
	switch {
	case !r.Stream.Enabled:
		return toneNone, "off", t(ctx, "log_streams.state.off")
	case r.Stream.Failures > 0:
		return toneBad, "failing", t(ctx, "log_streams.state.failing", "n", r.Stream.Failures)
	case lag > 0:
		return toneBusy, "behind", t(ctx, "log_streams.state.behind", "n", lag)
	}
	return toneGood, "current", t(ctx, "log_streams.state.current")
}

func (r LogStreamRow) switchTo() string {
	if r.Stream.Enabled {
		return "disable"
	}
	return "enable"
}

// span names the entries of a delivery.
func (d LogDeliveryRow) span() string {
	first, last := strconv.FormatInt(d.First, 10), strconv.FormatInt(d.Last, 10)
	if first == last {
		return first
	}
	return first + "–" + last
}
