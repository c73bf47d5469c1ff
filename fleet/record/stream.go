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

// A streamed is an entry of the log in a stream.
type streamed struct {
	Number  int64           `json:"number"`
	Kind    string          `json:"kind"`
	Subject string          `json:"subject"`
	At      time.Time       `json:"at"`
	Line    json.RawMessage `json:"line"` // null: the row was removed
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
		leaves, err := x.s.o.Store.RecordLeaves(ctx, first, min(first+streamChunk, x.end))
		if err != nil {
			return err
		}
		texts, err := x.s.o.Store.RecordLines(ctx, leaves)
		if err != nil {
			return err
		}
		for i, l := range leaves {
			err := lines.Encode(streamed{first + int64(i), l.Kind.String(), Subject(l.Kind, l.Ref), l.At, texts[i]})
			if err != nil {
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
