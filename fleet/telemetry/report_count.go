package telemetry

import "sync/atomic"

// A ReportKind is what a device reports unasked, for counting.
type ReportKind int

const (
	ReportTelemetry ReportKind = iota
	ReportJob
	ReportConfig
	ReportLog
	ReportOther // of no kind that fleetd knows
	reportKinds
)

// ReportKinds lists every kind.
var ReportKinds = []ReportKind{ReportTelemetry, ReportJob, ReportConfig, ReportLog, ReportOther}

func (k ReportKind) String() string {
	return [reportKinds]string{"telemetry", "job", "config", "log", "other"}[k]
}

// reportMethods are the notifications that fleetd knows.
var reportMethods = map[string]ReportKind{
	"notifications/telemetry": ReportTelemetry,
	"notifications/job":       ReportJob,
	"notifications/config":    ReportConfig,
	"notifications/log":       ReportLog,
}

// ReportCount is what became of the reports of one kind.
type ReportCount struct {
	Taken     int64
	TooMany   int64 // dropped: the device reports more than it may
	Malformed int64 // dropped: it could not be understood, or is of an unknown kind
	NoRoom    int64 // dropped: the store is away, and memory is full
}

type reportCounter struct{ taken, tooMany, malformed, noRoom atomic.Int64 }

func (c *reportCounter) read() ReportCount {
	return ReportCount{c.taken.Load(), c.tooMany.Load(), c.malformed.Load(), c.noRoom.Load()}
}
