package audit

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/sheet"
)

// A Format is the form of an export. Both are for programs: they contain codes, and times in UTC.
type Format string

// Formats of exports.
const (
	NDJSON Format = "ndjson" // a JSON object on each line
	CSV    Format = "csv"    // a header, then a line for each entry; the detail is JSON
)

// MediaType returns the content type of the format.
func (f Format) MediaType() string {
	if f == CSV {
		return "text/csv; charset=utf-8"
	}
	return "application/x-ndjson"
}

// exported is an entry in an export.
type exported struct {
	At        string         `json:"at"`
	Kind      Kind           `json:"kind"`
	ID        string         `json:"id"`
	ActorKind string         `json:"actor_kind"`
	Actor     string         `json:"actor"`
	Role      string         `json:"role"`
	Action    string         `json:"action"`
	Subject   string         `json:"subject"`
	Outcome   string         `json:"outcome"`
	Address   string         `json:"address"`
	Client    string         `json:"client"`
	TraceID   string         `json:"trace_id"`
	Detail    map[string]any `json:"detail"`
}

var columns = []string{"at", "kind", "id", "actor_kind", "actor", "role", "action", "subject", "outcome", "address",
	"client", "trace_id", "detail"}

func (e Entry) exported() exported {
	return exported{e.At.UTC().Format(time.RFC3339Nano), e.Kind, e.Ref(), string(e.Actor.Kind), e.Actor.Name,
		string(e.Actor.Role), e.Action, e.Subject, e.Outcome, e.Origin.Address, e.Origin.Client, e.Origin.Trace.String(),
		e.Detail}
}

// An Export contains all entries of a filter, newest first. It holds one page of them in memory.
type Export struct {
	store Store
	f     Filter
	as    Format
	page  fleet.Page[Entry]
}

// NewExport reads the first page, so a caller can still answer with an error.
func NewExport(ctx context.Context, s Store, f Filter, as Format) (*Export, error) {
	f.Cursor, f.Limit = "", fleet.MaxLimit
	page, err := s.AuditEntries(ctx, f)
	return &Export{s, f, as, page}, err
}

// Write writes the entries, and calls flush after each page. After an error, the file is
// incomplete.
func (x *Export) Write(ctx context.Context, w io.Writer, flush func() error) error {
	buffered := bufio.NewWriterSize(w, 64<<10)
	write := writer(x.as, buffered)
	for page, f := x.page, x.f; ; {
		for _, e := range page.Items {
			if err := write(e.exported()); err != nil {
				return err
			}
		}
		if err := buffered.Flush(); err != nil {
			return err
		}
		if err := flush(); err != nil || page.Next == "" {
			return err
		}
		f.Cursor = page.Next
		var err error
		if page, err = x.store.AuditEntries(ctx, f); err != nil {
			return err
		}
	}
}

// writer returns a function that writes an entry to w.
func writer(as Format, w io.Writer) func(exported) error {
	if as != CSV {
		lines := json.NewEncoder(w)
		lines.SetEscapeHTML(false)
		return func(e exported) error { return lines.Encode(e) }
	}
	out := csv.NewWriter(w)
	_ = out.Write(columns) // buffered; Flush reports the error
	out.Flush()
	return func(e exported) error {
		detail, err := json.Marshal(e.Detail)
		if err != nil {
			return err
		}
		record := []string{e.At, string(e.Kind), e.ID, e.ActorKind, e.Actor, e.Role, e.Action, e.Subject, e.Outcome,
			e.Address, e.Client, e.TraceID, string(detail)}
		for i := range record {
			record[i] = sheet.Shield(record[i])
		}
		_ = out.Write(record)
		out.Flush()
		return out.Error()
	}
}
