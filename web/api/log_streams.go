package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/logstream"
	"fleetd/web/access"
	"fleetd/web/i18n"
)

func (a *api) registerLogStreams() {
	const path, one = "/log-streams", "/log-streams/{id}"
	register(a, operation{id: "list-log-streams", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: path, role: fleet.RoleAdmin,
		summary: "List log streams, without their secrets and the secret parts of their addresses"}, a.listLogStreams)
	register(a, operation{id: "get-log-stream", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: one, role: fleet.RoleAdmin,
		noun: "log_stream", summary: "A log stream with its latest deliveries"}, a.getLogStream)
	register(a, operation{id: "create-log-stream", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: path, role: fleet.RoleAdmin, created: true,
		summary: "Send the sealed record to another system",
		about: "Entries are sent in the order of the log, and again until the receiver confirms them: by an answer below 300 within 15 seconds, a syslog server by keeping the connection open for 5 seconds. " +
			"A webhook gets CloudEvents 1.0 in JSON, signed as Standard Webhooks defines; the secret is in this answer alone. Redirects are not followed. The answer 410 disables the stream."},
		a.createLogStream)
	register(a, operation{id: "update-log-stream", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPatch, path: one, role: fleet.RoleAdmin,
		noun: "log_stream", summary: "Change a log stream; it goes on where it was"}, a.updateLogStream)
	register(a, operation{id: "delete-log-stream", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodDelete, path: one, role: fleet.RoleAdmin,
		noun: "log_stream", summary: "Delete a log stream"}, a.deleteLogStream)
	register(a, operation{id: "test-log-stream", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: one + "/test", role: fleet.RoleAdmin,
		noun: "log_stream", summary: "Send one test entry now"}, a.testLogStream)
	register(a, operation{id: "replay-log-stream", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: one + "/replay", role: fleet.RoleAdmin,
		noun: "log_stream", summary: "Send entries again from a time or number, or skip to it"}, a.replayLogStream)
}

// LogStreamFilter selects entries.
type LogStreamFilter struct {
	Kinds    []string `json:"kinds,omitempty" nullable:"false" doc:"Kinds of the sealed record; all if empty"`
	Actions  []string `json:"actions,omitempty" nullable:"false" doc:"Actions and tools; a trailing * matches any ending"`
	Outcomes []string `json:"outcomes,omitempty" nullable:"false" doc:"States of calls and campaign steps, presences"`
	Devices  []string `json:"devices,omitempty" nullable:"false" doc:"Ids of devices, and subjects of actions"`
}

// LogStreamView is a log stream without its secrets.
type LogStreamView struct {
	ID         uuid.UUID        `json:"id" format:"uuid"`
	Name       string           `json:"name"`
	Kind       logstream.Kind   `json:"kind" enum:"webhook,syslog,otlp"`
	URL        string           `json:"url" doc:"Scheme and host; the rest may be a secret of the receiver, shown as …"`
	Filter     LogStreamFilter  `json:"filter"`
	Batch      int              `json:"batch" doc:"Entries of a request, at most"`
	Enabled    bool             `json:"enabled"`
	CreatedBy  string           `json:"created_by"`
	CreatedAt  time.Time        `json:"created_at"`
	NextEntry  int64            `json:"next_entry" doc:"Number of the first entry that the receiver has not confirmed"`
	LagEntries int64            `json:"lag_entries" doc:"Entries of the log from there on"`
	Failures   int              `json:"failures" doc:"Failed attempts since the last success"`
	Last       *logDeliveryView `json:"last_delivery" doc:"null before the first"`
}

// TransformSchema marks last_delivery as nullable.
func (LogStreamView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "last_delivery")
}

// logDeliveryView is the outcome of the requests of a second, or of one that failed.
type logDeliveryView struct {
	At         time.Time    `json:"at"`
	OK         bool         `json:"ok"`
	FirstEntry int64        `json:"first_entry"`
	LastEntry  int64        `json:"last_entry"`
	Entries    int          `json:"entries" doc:"Entries that were sent"`
	Requests   int          `json:"requests"`
	Removed    int          `json:"removed" doc:"Entries that were left out, because their rows were removed after their retention"`
	TookMs     int64        `json:"took_ms"`
	Status     int          `json:"status" doc:"Of the latest answer; 0 without one"`
	Code       string       `json:"code,omitempty" doc:"Why it failed"`
	Message    string       `json:"message,omitempty"`
	Params     fleet.Params `json:"params,omitempty"`
}

func logDelivery(d logstream.Delivery) logDeliveryView {
	v := logDeliveryView{At: utc(d.At), OK: d.OK(), FirstEntry: d.First, LastEntry: d.Last, Entries: d.Entries,
		Requests: d.Requests, Removed: d.Removed, TookMs: d.Took.Milliseconds(), Status: d.Status, Code: d.Reason.Code,
		Params: d.Reason.Params}
	if !v.OK {
		v.Message = i18n.Because(i18n.English, time.UTC, "log_stream.failure.", d.Reason)
	}
	return v
}

func logStreamView(s logstream.Stream, size int64) LogStreamView {
	v := LogStreamView{ID: s.ID, Name: s.Name, Kind: s.Kind, URL: s.Shown, Filter: LogStreamFilter(s.Filter),
		Batch: s.Batch, Enabled: s.Enabled, CreatedBy: s.CreatedBy, CreatedAt: utc(s.CreatedAt), NextEntry: s.Next,
		LagEntries: s.Lag(size), Failures: s.Failures}
	if !s.Last.At.IsZero() {
		last := logDelivery(s.Last)
		v.Last = &last
	}
	return v
}

func (a *api) listLogStreams(ctx context.Context, by fleet.Principal, _ *struct{}) (*answer[list[LogStreamView]],
	error) {
	streams, size, err := a.LogStreams.List(ctx, by)
	if err != nil {
		return nil, err
	}
	return listOf(streams, func(s logstream.Stream) LogStreamView { return logStreamView(s, size) }), nil
}

type logStreamDetail struct {
	LogStreamView
	Deliveries []logDeliveryView `json:"deliveries" nullable:"false" doc:"The latest 200, newest first"`
}

func (a *api) getLogStream(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[logStreamDetail], error) {
	s, deliveries, size, err := a.LogStreams.Get(ctx, by, in.uuid())
	if err != nil {
		return nil, err
	}
	v := logStreamDetail{logStreamView(s, size), make([]logDeliveryView, len(deliveries))}
	for i, d := range deliveries {
		v.Deliveries[i] = logDelivery(d)
	}
	return answerWith(v), nil
}

// LogStreamFields are the fields of a log stream that can be changed.
type LogStreamFields struct {
	Name        *string          `json:"name,omitempty" maxLength:"120"`
	URL         *string          `json:"url,omitempty" maxLength:"2000" doc:"http or https; for syslog tls://host:port"`
	Secret      *string          `json:"secret,omitempty" maxLength:"200" doc:"Of a webhook: whsec_ and 24 to 64 bytes in base64"`
	Headers     *string          `json:"headers,omitempty" maxLength:"4096" doc:"Further headers of HTTP requests, a line for each: Name: value"`
	Certificate *string          `json:"client_certificate,omitempty" maxLength:"65536" doc:"PEM, that fleetd shows the receiver"`
	Key         *string          `json:"client_key,omitempty" maxLength:"65536" doc:"PEM"`
	CA          *string          `json:"ca_certificates,omitempty" maxLength:"65536" doc:"PEM; default: the authorities of the system"`
	Filter      *LogStreamFilter `json:"filter,omitempty"`
	Batch       *int             `json:"batch,omitempty" minimum:"1" maximum:"500" doc:"Of a webhook above 1: CloudEvents in JSON batches. Default: 1; OTLP and syslog: 500"`
	Enabled     *bool            `json:"enabled,omitempty" doc:"Default: true"`
}

func (f LogStreamFields) request() logstream.Request {
	return logstream.Request{Name: f.Name, URL: f.URL, Secret: f.Secret, Headers: f.Headers, Certificate: f.Certificate,
		Key: f.Key, CA: f.CA, Filter: (*logstream.Filter)(f.Filter), Batch: f.Batch, Enabled: f.Enabled}
}

type createLogStreamInput struct {
	Body struct {
		LogStreamFields
		Kind logstream.Kind `json:"kind" enum:"webhook,syslog,otlp"`
		From string         `json:"from,omitempty" maxLength:"40" doc:"Where it starts: start, now (default), a time, or the number of an entry"`
	}
}

type newLogStreamView struct {
	LogStreamView
	Secret string `json:"secret,omitempty" doc:"Of a webhook, if it was generated; shown only once"`
}

func (a *api) createLogStream(ctx context.Context, by fleet.Principal, in *createLogStreamInput) (
	*answer[newLogStreamView], error) {
	r := in.Body.request()
	r.Kind, r.From = in.Body.Kind, in.Body.From
	s, secret, err := a.LogStreams.Create(ctx, by, r)
	if err != nil {
		return nil, err
	}
	return answerWith(newLogStreamView{logStreamView(s, a.LogStreams.Size()), secret}), nil
}

type updateLogStreamInput struct {
	IDPath
	Body struct{ LogStreamFields }
}

func (a *api) updateLogStream(ctx context.Context, by fleet.Principal, in *updateLogStreamInput) (
	*answer[LogStreamView], error) {
	s, err := a.LogStreams.Update(ctx, by, in.uuid(), in.Body.request())
	if err != nil {
		return nil, err
	}
	return answerWith(logStreamView(s, a.LogStreams.Size())), nil
}

func (a *api) deleteLogStream(ctx context.Context, by fleet.Principal, in *IDPath) (*empty, error) {
	return &empty{}, a.LogStreams.Delete(ctx, by, in.uuid())
}

func (a *api) testLogStream(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[logDeliveryView], error) {
	d, err := a.LogStreams.Test(ctx, by, in.uuid())
	if err != nil {
		return nil, err
	}
	return answerWith(logDelivery(d)), nil
}

type replayLogStreamInput struct {
	IDPath
	Body struct {
		From string `json:"from" minLength:"1" maxLength:"40" doc:"start, now, a time (RFC 3339), or the number of an entry"`
	}
}

type replayView struct {
	NextEntry int64 `json:"next_entry"`
}

func (a *api) replayLogStream(ctx context.Context, by fleet.Principal, in *replayLogStreamInput) (*answer[replayView],
	error) {
	next, err := a.LogStreams.Replay(ctx, by, in.uuid(), in.Body.From)
	if err != nil {
		return nil, err
	}
	return answerWith(replayView{next}), nil
}
