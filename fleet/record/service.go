package record

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/tlog"

	"fleetd/fleet"
)

// A Store stores the log and reads the rows of its entries.
type Store interface {
	SequencerStore
	VerifierStore
	RecordLeaves(ctx context.Context, first, end int64) ([]Leaf, error)
	RecordTile(ctx context.Context, t tlog.Tile) ([]byte, error)
	RecordHashes(ctx context.Context, tree tlog.Tree) tlog.HashReader
	// RecordLine returns the line of an entry; nil if its row was removed.
	RecordLine(ctx context.Context, l Leaf) ([]byte, error)
	// RecordLines returns the lines of leaves of all kinds.
	RecordLines(ctx context.Context, leaves []Leaf) ([][]byte, error)
	// RecordEntries returns the numbers of the entries whose rows have the id: a call has one for its outcome,
	// and perhaps one for a late answer.
	RecordEntries(ctx context.Context, id uuid.UUID) ([]int64, error)
	// RecordDevices returns the devices of steps and late answers, and "" for other leaves.
	RecordDevices(ctx context.Context, leaves []Leaf) ([]string, error)
	// RecordEntryAt returns the number of the first entry of the first batch that has an entry of the time or
	// later; the size of the log if none has.
	RecordEntryAt(ctx context.Context, at time.Time) (int64, error)
	// CosignedCheckpoints returns the latest checkpoints that witnesses signed, with one of their signatures each.
	CosignedCheckpoints(ctx context.Context) ([]string, error)
	// AuditVerification writes an audit entry with the result of a verification.
	AuditVerification(ctx context.Context, by fleet.Principal, r Report) error
}

// ServiceOptions configures a [Service].
type ServiceOptions struct {
	Store     Store
	Sequencer *Sequencer
	Log       *slog.Logger
}

// A Service gives operators access to the sealed record.
type Service struct {
	o ServiceOptions

	mu      sync.Mutex
	running *Verification
	last    *Verification
	life    context.Context // until the end of Run
	all     sync.WaitGroup
}

// A Verification is a run of a [Verifier] in the background.
type Verification struct {
	By      fleet.Principal
	Entries int64 // that were checked until now
	Total   int64 // entries at the start
	Began   time.Time
	Done    bool
	Report  Report // if done
	Err     error  // if it could not be completed
}

// NewService returns a service that runs nothing before [Service.Run].
func NewService(o ServiceOptions) *Service { return &Service{o: o, life: context.Background()} }

// Run seals the record until ctx ends, and then ends a verification that runs.
func (s *Service) Run(ctx context.Context) error {
	s.mu.Lock()
	s.life = ctx
	s.mu.Unlock()
	err := s.o.Sequencer.Run(ctx)
	s.all.Wait()
	return err
}

// Status returns the state of the log.
func (s *Service) Status() Status { return s.o.Sequencer.Status() }

// Queue returns the number of transactions whose entries wait for the next checkpoint, and the time of the oldest.
func (s *Service) Queue(ctx context.Context) (n int64, since time.Time, err error) {
	return s.o.Store.QueuedLeaves(ctx)
}

// ErrRunning refuses a second verification at the same time.
var ErrRunning = fleet.Refuse(fleet.ErrConflict, "verification_running")

// StartVerification starts a verification in the background. against are checkpoints that were kept in another
// place, as they were signed.
func (s *Service) StartVerification(by fleet.Principal, against []string) error {
	status := s.Status()
	for _, text := range against {
		if _, err := ParseCheckpoint(text, status.Verifier); err != nil {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_checkpoint", "origin", status.Origin).At("checkpoints")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		return ErrRunning
	}
	if s.life.Err() != nil {
		return fleet.ErrUnavailable
	}
	run := &Verification{By: by, Total: status.Latest.Size, Began: time.Now().UTC()}
	s.running = run
	s.all.Go(func() { s.verify(s.life, run, against) })
	return nil
}

func (s *Service) verify(ctx context.Context, run *Verification, against []string) {
	v := Verifier{Store: s.o.Store, Against: against, Verifier: s.Status().Verifier, Progress: func(n int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		run.Entries = n
	}}
	r, err := v.Verify(ctx)
	if err == nil {
		err = s.o.Store.AuditVerification(ctx, run.By, r)
	}
	if err == nil && !r.Sound() {
		s.o.Log.Error("the record was changed after it was sealed", "problem", r.Findings[0].Problem,
			"entry", r.Findings[0].Entry, "subject", r.Findings[0].Subject(), "findings", int64(len(r.Findings))+r.More)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	done := *run
	done.Report, done.Err, done.Done = r, err, true
	s.running, s.last = nil, &done
}

// Verification returns the verification that runs, or else the last one of this process.
func (s *Service) Verification() (v Verification, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.running != nil:
		return *s.running, true
	case s.last != nil:
		return *s.last, true
	}
	return v, false
}

// Prove returns the proof that a checkpoint contains the entry: one that witnesses signed, or else the latest.
func (s *Service) Prove(ctx context.Context, entry int64) (Proof, error) {
	latest, err := s.o.Store.LatestCheckpoint(ctx)
	if err != nil {
		return Proof{}, err
	}
	if entry < 0 || entry >= latest.Size {
		return Proof{}, fleet.Refuse(fleet.ErrNotFound, "entry_not_sealed", "entry", entry, "size", latest.Size)
	}
	leaves, err := s.o.Store.RecordLeaves(ctx, entry, entry+1)
	if err != nil {
		return Proof{}, err
	}
	line, err := s.o.Store.RecordLine(ctx, leaves[0])
	if err != nil {
		return Proof{}, err
	}
	switch {
	case line == nil:
		return Proof{}, fleet.Refuse(fleet.ErrNotFound, "entry_removed", "entry", entry)
	case tlog.RecordHash(line) != leaves[0].Hash:
		return Proof{}, fleet.Refuse(fleet.ErrConflict, "entry_changed", "entry", entry)
	}
	if latest, err = s.cosigned(ctx, latest, entry); err != nil {
		return Proof{}, err
	}
	hashes := s.o.Store.RecordHashes(ctx, tlog.Tree{N: latest.Size, Hash: latest.Root})
	path, err := tlog.ProveRecord(latest.Size, entry, hashes)
	if err != nil {
		return Proof{}, fmt.Errorf("proof of entry %d: %w", entry, err)
	}
	return Proof{Line: line, Index: entry, Path: path, Checkpoint: latest.Note}, nil
}

// cosigned returns the checkpoint with the entry that most witnesses signed, the largest of several, with all their
// signatures; without one, the latest checkpoint.
func (s *Service) cosigned(ctx context.Context, latest Checkpoint, entry int64) (Checkpoint, error) {
	notes, err := s.o.Store.CosignedCheckpoints(ctx)
	if err != nil {
		return latest, err
	}
	type signed struct {
		Checkpoint
		by int
	}
	all := make(map[int64]*signed)
	for _, text := range notes {
		c, err := ParseCheckpoint(text, s.Status().Verifier)
		if err != nil || c.Size <= entry || c.Size > latest.Size {
			continue // of an earlier key, or changed by hand
		}
		known := all[c.Size]
		if known == nil {
			known = &signed{Checkpoint: c}
			all[c.Size] = known
		}
		known.by++
		_, signatures, _ := strings.Cut(text, "\n\n")
		for line := range strings.Lines(signatures) {
			if !strings.Contains(known.Note, line) {
				known.Note += line
			}
		}
	}
	best := &signed{Checkpoint: latest}
	for _, c := range all {
		if c.by > best.by || c.by == best.by && c.Size > best.Size {
			best = c
		}
	}
	return best.Checkpoint, nil
}

// Entries returns the numbers of the entries of a row with an id: a call or an audit entry.
func (s *Service) Entries(ctx context.Context, id uuid.UUID) ([]int64, error) {
	numbers, err := s.o.Store.RecordEntries(ctx, id)
	if err == nil && len(numbers) == 0 {
		err = fleet.Refuse(fleet.ErrNotFound, "id_not_sealed", "id", id)
	}
	return numbers, err
}

// Checkpoint returns the latest checkpoint.
func (s *Service) Checkpoint(ctx context.Context) (Checkpoint, error) {
	c, err := s.o.Store.LatestCheckpoint(ctx)
	if err == nil && c.Size == 0 {
		err = fleet.Refuse(fleet.ErrNotFound, "record_empty")
	}
	return c, err
}

// Tile returns the hashes of a tile of tlog-tiles. A partial tile has the given width.
func (s *Service) Tile(ctx context.Context, level int, n int64, width int) ([]byte, error) {
	t := tlog.Tile{H: TileHeight, L: level, N: n, W: width}
	if err := s.checkTile(ctx, t); err != nil {
		return nil, err
	}
	return s.o.Store.RecordTile(ctx, t)
}

// checkTile refuses a tile that the log of the latest checkpoint does not have.
func (s *Service) checkTile(ctx context.Context, t tlog.Tile) error {
	latest, err := s.o.Store.LatestCheckpoint(ctx)
	if err != nil {
		return err
	}
	const maxLevel = 7 // 256^8 entries are more than an int64 can number
	if t.L < 0 || t.L > maxLevel || t.N < 0 || t.W < 1 || t.W > TileWidth ||
		t.N > latest.Size>>(TileHeight*t.L) || t.N*TileWidth+int64(t.W) > latest.Size>>(TileHeight*t.L) {
		return fleet.Refuse(fleet.ErrNotFound, "no_such_tile", "level", t.L, "n", t.N, "width", t.W, "size", latest.Size)
	}
	return nil
}

// Bundle returns the lines of the entries of a tile of level 0 in the form of tlog-tiles: each after its length in 16
// bits. It is refused if a row was removed.
func (s *Service) Bundle(ctx context.Context, n int64, width int) ([]byte, error) {
	if err := s.checkTile(ctx, tlog.Tile{H: TileHeight, N: n, W: width}); err != nil {
		return nil, err
	}
	first := n * TileWidth
	leaves, err := s.o.Store.RecordLeaves(ctx, first, first+int64(width))
	if err != nil {
		return nil, err
	}
	lines, err := s.o.Store.RecordLines(ctx, leaves)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(lines, func(line []byte) bool { return line == nil }); i >= 0 {
		return nil, fleet.Refuse(fleet.ErrNotFound, "entry_removed", "entry", first+int64(i))
	}
	return AppendBundle(nil, lines)
}

// AppendBundle appends lines as tlog-tiles stores entries.
func AppendBundle(b []byte, lines [][]byte) ([]byte, error) {
	for _, line := range lines {
		if len(line) > MaxLine {
			return nil, errors.New("a line is longer than 65,535 bytes")
		}
		b = append(append(b, byte(len(line)>>8), byte(len(line))), line...)
	}
	return b, nil
}
