package call

import (
	"cmp"
	"context"
	"encoding/csv"
	"io"
	"strconv"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/sheet"
)

// ExportColumns are the columns of exported calls. The file is for programs: it has codes, and times
// in UTC.
var ExportColumns = []string{"id", "created_at", "actor_kind", "actor", "device", "tool", "arguments", "state",
	"error_code", "error_message", "sent_at", "finished_at", "duration_ms", "fanout", "approval"}

// An Export contains all calls of a filter, newest first, without their answers. It holds one page
// of them in memory.
type Export struct {
	service *Service
	f       Filter
	page    fleet.Page[fleet.Call]
}

// Export reads the first page, so a caller can still answer with an error.
func (s *Service) Export(ctx context.Context, f Filter) (*Export, error) {
	f.Cursor, f.Limit = "", fleet.MaxLimit
	page, err := s.List(ctx, f)
	return &Export{s, f, page}, err
}

// Write writes the calls as CSV, and calls flush after each page. After an error, the file is
// incomplete.
func (x *Export) Write(ctx context.Context, w io.Writer, flush func() error) error {
	out := csv.NewWriter(w)
	_ = out.Write(ExportColumns) // Flush reports the error
	for page, f := x.page, x.f; ; {
		for _, c := range page.Items {
			_ = out.Write(exported(c))
		}
		out.Flush()
		if err := cmp.Or(out.Error(), flush()); err != nil || page.Next == "" {
			return err
		}
		f.Cursor = page.Next
		var err error
		if page, err = x.service.List(ctx, f); err != nil {
			return err
		}
	}
}

func exported(c fleet.Call) []string {
	failure := fleet.CallError{}
	if c.Error != nil {
		failure = *c.Error
	}
	took := ""
	if d := c.Duration(); d > 0 {
		took = strconv.FormatInt(d.Milliseconds(), 10)
	}
	record := []string{c.ID.String(), utc(&c.CreatedAt), string(c.Actor.Kind), c.Actor.Name, string(c.Device), c.Tool,
		string(c.Arguments), string(c.State), failure.Code, failure.Message, utc(c.SentAt), utc(c.FinishedAt), took,
		idOrEmpty(c.FanOut), idOrEmpty(c.Approval)}
	for i := range record {
		record[i] = sheet.Shield(record[i])
	}
	return record
}

func utc(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func idOrEmpty(id uuid.UUID) string {
	if id == uuid.Nil {
		return ""
	}
	return id.String()
}
