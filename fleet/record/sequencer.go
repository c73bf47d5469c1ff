package record

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Every is the time between two checkpoints.
const Every = time.Second

// maxAtOnce bounds the leaves of one transaction; batchLeaves those of one stored batch.
const (
	maxAtOnce   = 50_000
	batchLeaves = 1024
)

// An Addition is what one transaction adds to the log.
type Addition struct {
	Batches    []Batch
	Tiles      []Tile // those that became full
	Checkpoint Checkpoint
}

// A SequencerStore stores the log.
type SequencerStore interface {
	// RecordKeys returns the public keys of the log, the oldest first; none before the first start.
	RecordKeys(ctx context.Context) ([]string, error)
	// AddRecordKey stores a key that signs from now on.
	AddRecordKey(ctx context.Context, verifier string) error
	// LatestCheckpoint returns the checkpoint of the largest size; the zero value of an empty log.
	LatestCheckpoint(ctx context.Context) (Checkpoint, error)
	// RecordEdge reads the partial tiles of a log of the size.
	RecordEdge(ctx context.Context, size int64) (*Edge, error)
	// AppendQueued removes at most max leaves from the queue and stores the addition that seal returns for
	// them, in one transaction. It returns [ErrMoved] if the latest checkpoint is not of the given size,
	// and does not call seal without leaves.
	AppendQueued(ctx context.Context, size int64, max int, seal func([]Leaf) (Addition, error)) (n int, err error)
	// QueuedLeaves returns the number of queued transactions, and the time of the oldest.
	QueuedLeaves(ctx context.Context) (n int64, since time.Time, err error)
}

// ErrMoved means that another process appended to the log.
var ErrMoved = errors.New("another process appended to the record")

// A StaleError means that a later leader has signed a checkpoint.
type StaleError struct{ Term, Latest int }

func (e *StaleError) Error() string {
	return fmt.Sprintf("the record was sealed in term %d, and this process leads term %d", e.Latest, e.Term)
}

// SequencerOptions configures a [Sequencer].
type SequencerOptions struct {
	Store  SequencerStore
	Secret []byte // the key of fleetd
	Term   int    // of the leader
	Log    *slog.Logger
	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

// A Status is the state of the log as the sequencer knows it.
type Status struct {
	Origin   string
	Verifier string // the public key that signs
	Latest   Checkpoint
	Err      error     // of the last attempt to seal; nil after a success
	Since    time.Time // of Err
}

// A Sequencer appends queued leaves to the log. Only the leader has one. An attempt that fails changes nothing,
// and its leaves remain queued.
type Sequencer struct {
	o   SequencerOptions
	key *SigningKey

	mu     sync.Mutex
	edge   *Edge // nil until it was read
	status Status

	complaints rate.Sometimes
}

// OpenSequencer reads the keys of the log, and starts a log at the first start. If the secret key was replaced, the
// log continues under a new key: its first checkpoint confirms the entries before.
func OpenSequencer(ctx context.Context, o SequencerOptions) (*Sequencer, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	keys, err := o.Store.RecordKeys(ctx)
	if err != nil {
		return nil, err
	}
	origin := ""
	if len(keys) > 0 {
		origin = Origin(keys[0])
	} else if origin, err = NewOrigin(o.Secret); err != nil {
		return nil, fmt.Errorf("name of the record: %w", err)
	}
	s := &Sequencer{o: o, complaints: rate.Sometimes{First: 1, Interval: time.Minute}}
	if s.key, err = NewSigningKey(o.Secret, origin); err != nil {
		return nil, err
	}
	if len(keys) == 0 || keys[len(keys)-1] != s.key.Verifier {
		if err := o.Store.AddRecordKey(ctx, s.key.Verifier); err != nil {
			return nil, err
		}
		if len(keys) > 0 {
			o.Log.Warn("the record is signed with another key from now on, because the secret key was replaced: "+
				"give the new public key to those who check proofs", "key", s.key.Verifier)
		}
	}
	s.status = Status{Origin: origin, Verifier: s.key.Verifier}
	s.status.Latest, err = o.Store.LatestCheckpoint(ctx)
	return s, err
}

// Run seals each second until ctx ends, and then once more.
func (s *Sequencer) Run(ctx context.Context) error {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.attempt(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			s.attempt(last)
			return nil
		}
	}
}

func (s *Sequencer) attempt(ctx context.Context) {
	if err := s.Seal(ctx); err != nil && ctx.Err() == nil {
		s.complaints.Do(func() {
			s.o.Log.Error("cannot seal the record; its entries wait", "err", err)
		})
	}
}

// Seal appends all queued leaves.
func (s *Sequencer) Seal(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		n, err := s.sealSome(ctx)
		if err != nil {
			s.edge = nil // whether the transaction was committed may be unknown
			if s.status.Err == nil {
				s.status.Since = s.o.Now()
			}
			s.status.Err = err
			return err
		}
		s.status.Err, s.status.Since = nil, time.Time{}
		if n < maxAtOnce {
			return nil
		}
	}
}

// sealSome appends one transaction's leaves. Callers hold mu.
func (s *Sequencer) sealSome(ctx context.Context) (int, error) {
	if s.edge == nil {
		if err := s.load(ctx); err != nil {
			return 0, err
		}
	}
	next := s.edge.Clone()
	var added Addition
	n, err := s.o.Store.AppendQueued(ctx, s.edge.Size, maxAtOnce, func(leaves []Leaf) (Addition, error) {
		var err error
		added, err = s.add(next, leaves)
		return added, err
	})
	if err != nil || n == 0 {
		return n, err
	}
	s.edge, s.status.Latest = next, added.Checkpoint
	return n, nil
}

// load reads the latest checkpoint and the edge, and checks that they belong together.
func (s *Sequencer) load(ctx context.Context) error {
	latest, err := s.o.Store.LatestCheckpoint(ctx)
	if err != nil {
		return err
	}
	if latest.Term > s.o.Term {
		return &StaleError{Term: s.o.Term, Latest: latest.Term}
	}
	if seen := s.status.Latest; latest.Size < seen.Size || latest.Size == seen.Size && latest.Root != seen.Root {
		return fmt.Errorf("the latest checkpoint in the database is of %d entries, and one of %d was stored: "+
			"the record was changed; restore the tables record_* from a backup", latest.Size, seen.Size)
	}
	edge, err := s.o.Store.RecordEdge(ctx, latest.Size)
	if err != nil {
		return err
	}
	if latest.Size > 0 {
		root, err := edge.Root()
		if err != nil {
			return fmt.Errorf("root of the record: %w", err)
		}
		if root != latest.Root {
			return fmt.Errorf("the record of %d entries has the root %s, and its checkpoint has %s: the record was "+
				"changed; fleetd audit verify names the entry", latest.Size, root, latest.Root)
		}
	}
	s.edge, s.status.Latest = edge, latest
	return nil
}

func (s *Sequencer) add(edge *Edge, leaves []Leaf) (a Addition, err error) {
	for from := 0; from < len(leaves); from += batchLeaves {
		part := leaves[from:min(from+batchLeaves, len(leaves))]
		a.Batches = append(a.Batches, BatchOf(edge.Size, part))
		for _, l := range part {
			edge.Append(l.Hash, func(t Tile) { a.Tiles = append(a.Tiles, t) })
		}
	}
	root, err := edge.Root()
	if err != nil {
		return a, fmt.Errorf("root of the record: %w", err)
	}
	a.Checkpoint, err = s.key.Sign(edge.Size, root, s.o.Now(), s.o.Term)
	return a, err
}

// Status returns the state of the log.
func (s *Sequencer) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}
