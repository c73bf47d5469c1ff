package logstream

import (
	"context"
	"encoding/hex"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

// otlp posts log records to an OpenTelemetry collector. The body of a record is the entry as one line of JSON.
type otlp struct{ poster }

func (o *otlp) send(ctx context.Context, list []event) (int, error) {
	records := make([]*logs.LogRecord, len(list))
	for i := range list {
		records[i] = list[i].otlp()
	}
	// LogsData has the encoding of ExportLogsServiceRequest.
	body, err := proto.Marshal(&logs.LogsData{ResourceLogs: []*logs.ResourceLogs{{
		Resource: &resource.Resource{Attributes: []*common.KeyValue{text("service.name", "fleetd"),
			text("fleetd.record", list[0].source)}},
		ScopeLogs: []*logs.ScopeLogs{{Scope: &common.InstrumentationScope{Name: "fleetd/fleet/logstream"},
			LogRecords: records}},
	}}})
	if err != nil {
		return 0, failed(err)
	}
	return o.post(ctx, "application/x-protobuf", body, nil)
}

func text(key, value string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: value}}}
}

func (e *event) otlp() *logs.LogRecord {
	r := &logs.LogRecord{TimeUnixNano: uint64(e.At.UnixNano()), ObservedTimeUnixNano: uint64(time.Now().UnixNano()),
		SeverityNumber: logs.SeverityNumber_SEVERITY_NUMBER_INFO, SeverityText: "INFO", EventName: "fleetd." + e.Kind,
		Body: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: string(e.body())}},
		Attributes: []*common.KeyValue{{Key: "fleetd.entry",
			Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: e.Number}}}}}
	if e.failed() {
		r.SeverityNumber, r.SeverityText = logs.SeverityNumber_SEVERITY_NUMBER_WARN, "WARN"
	}
	for key, value := range map[string]string{"fleetd.subject": e.subject(), "fleetd.device": e.device(),
		"fleetd.action": e.action(), "fleetd.outcome": e.outcome()} {
		if value != "" {
			r.Attributes = append(r.Attributes, text(key, value))
		}
	}
	if id, err := hex.DecodeString(e.trace()); err == nil && len(id) == 16 {
		r.TraceId = id
	}
	return r
}
