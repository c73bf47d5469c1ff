package record

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"time"

	"fleetd/fleet"
)

// streamChunk is how many entries a stream reads at a time.
const streamChunk = 512

// An Entry is an entry of the log with its line.
type Entry struct {
	Number  int64           `json:"number"`
	Kind    string          `json:"kind"`
	Subject string          `json:"subject"`
	At      time.Time       `json:"at"`
	Device  string          `json:"device_id,omitempty"` // of a step or late answer, whose line does not name it
	Line    json.RawMessage `json:"line"`                // null: the row was removed
}

// Read returns the entries from first, before end, which the log must have.
func (s *Service) Read(ctx context.Context, first, end int64) ([]Entry, error) {
	leaves, err := s.o.Store.RecordLeaves(ctx, first, end)
	if err != nil {
		return nil, err
	}
	texts, err := s.o.Store.RecordLines(ctx, leaves)
	if err != nil {
		return nil, err
	}
	devices, err := s.o.Store.RecordDevices(ctx, leaves)
	if err != nil {
		return nil, err
	}
	list := make([]Entry, len(leaves))
	for i, l := range leaves {
		list[i] = Entry{first + int64(i), l.Kind.String(), Subject(l.Kind, l.Ref), l.At, devices[i], texts[i]}
	}
	return list, nil
}

// EntryAt returns the number of an entry before which the log has none of the time or later. It is at most one
// batch, the entries of a second, too small. Without such an entry, it is the size of the log.
func (s *Service) EntryAt(ctx context.Context, at time.Time) (int64, error) {
	return s.o.Store.RecordEntryAt(ctx, at)
}

// A Stream contains the entries of the log from a number on, as of the latest checkpoint.
type Stream struct {
	s         *Service
	from, end int64
}

// Stream returns the entries from the number on. A number that the log does not reach yet is an empty stream, so
// that a reader can ask again with the number that follows its last one.
func (s *Service) Stream(ctx context.Context, from int64) (*Stream, error) {
	latest, err := s.o.Store.LatestCheckpoint(ctx)
	if err != nil {
		return nil, err
	}
	if from < 0 || from > latest.Size {
		return nil, fleet.Refuse(fleet.ErrNotFound, "entry_not_sealed", "entry", from, "size", latest.Size)
	}
	return &Stream{s, from, latest.Size}, nil
}

// Write writes each entry as a line of JSON, in the order of the log, and calls flush now and then. After an error, the
// last line may be incomplete.
func (x *Stream) Write(ctx context.Context, w io.Writer, flush func() error) error {
	buffered := bufio.NewWriterSize(w, 64<<10)
	lines := json.NewEncoder(buffered)
	lines.SetEscapeHTML(false)
	for first := x.from; first < x.end; first += streamChunk {
		list, err := x.s.Read(ctx, first, min(first+streamChunk, x.end))
		if err != nil {
			return err
		}
		for _, e := range list {
			if err := lines.Encode(e); err != nil {
				return err
			}
		}
		if err := buffered.Flush(); err != nil {
			return err
		}
		if err := flush(); err != nil {
			return err
		}
	}
	return nil
}
