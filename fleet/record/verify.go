package record

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// A Problem is a way in which the record differs from what was sealed.
type Problem string

// The problems.
const (
	Changed    Problem = "changed"            // the row of the entry was changed
	Removed    Problem = "removed"            // the row of the entry was deleted
	Inserted   Problem = "inserted"           // the row has no entry in the log
	Twice      Problem = "twice"              // the log has the entry twice
	LogChanged Problem = "log_changed"        // the tables of the log were changed at the entry
	Moved      Problem = "moved"              // entries from this one on were reordered, or removed from the log
	CutOff     Problem = "cut_off"            // the log ends before its latest checkpoint
	BadSign    Problem = "checkpoint_changed" // the signature of a checkpoint is wrong
	Replaced   Problem = "replaced"           // the log is not the one of a checkpoint from outside
	Restarted  Problem = "start_changed"      // the beginning of the record was changed
)

// A Finding is a problem at an entry.
type Finding struct {
	Problem Problem
	Entry   int64 // number of the entry in the log; -1 if it is not in the log
	End     int64 // Moved: the entry after the last one that may be concerned; otherwise 0
	Kind    Kind  // 0 if the finding is about the log
	Ref     string
	At      time.Time // creation of the row; the time of the checkpoint
}

// Subject names the row of the finding for people: an id, or a device.
func (f Finding) Subject() string { return Subject(f.Kind, f.Ref) }

// A Report is the result of a verification.
type Report struct {
	Entries   int64      // in the log
	Queued    int64      // entries that wait for the next checkpoint
	Latest    Checkpoint // zero for an empty log
	Missing   int64      // entries whose rows were removed by fleetd, mostly after their retention
	Start     time.Time  // older rows are not in the log
	Checked   int        // checkpoints
	Findings  []Finding  // the first is the one of the first entry; at most maxFindings
	More      int64      // further findings
	StartedAt time.Time
	Took      time.Duration
}

// Sound reports whether nothing was found.
func (r Report) Sound() bool { return len(r.Findings) == 0 }

const maxFindings = 100

// A Key identifies a row.
type Key struct {
	Ref string
	At  time.Time // in microseconds
}

// A Removal is an entry of kind Forgotten or Dropped as the database lists it.
type Removal struct {
	Kind Kind
	Ref  string
	At   time.Time
}

// A Reader reads the log and the rows from one snapshot of the database.
type Reader interface {
	Keys(ctx context.Context) ([]string, error)
	Checkpoints(ctx context.Context, after int64, limit int) ([]Checkpoint, error)
	Batches(ctx context.Context, from int64, limit int) ([]Batch, error)
	// Tiles returns the full tiles of a level from the given one on.
	Tiles(ctx context.Context, level int, from int64, limit int) ([]Tile, error)
	Queued(ctx context.Context) ([]Leaf, error)
	Removals(ctx context.Context) ([]Removal, error)
	// Lines returns the lines of the rows of leaves of one kind; nil for a missing row, or an unknown kind.
	Lines(ctx context.Context, k Kind, leaves []Leaf) ([][]byte, error)
	// Counts returns how many rows that belong in the log were created from the start on, by hour.
	Counts(ctx context.Context, k Kind, start time.Time) (map[time.Time]int64, error)
	// RowKeys returns the keys of the rows that belong in the log and were created from start, before end.
	RowKeys(ctx context.Context, k Kind, start, end time.Time) ([]Key, error)
	// LeavesAt returns the numbers and leaves of the entries whose rows were created from start, before end.
	LeavesAt(ctx context.Context, k Kind, start, end time.Time) (map[int64]Leaf, error)
}

// A VerifierStore opens snapshots.
type VerifierStore interface {
	// ReadRecord calls read with two readers of the same snapshot. Two goroutines can use one each.
	ReadRecord(ctx context.Context, read func(log, rows Reader) error) error
}

// A Verifier verifies the record.
type Verifier struct {
	Store VerifierStore
	// Verifier is the public key that the log must be signed with at its end. Default: any of the log's keys.
	Verifier string
	// Against are checkpoints that were kept in another place.
	Against []string
	// Progress, if not nil, is called with the number of entries that were checked.
	Progress func(entries int64)
	Now      func() time.Time
}

// Verify compares the rows, the log and its checkpoints. An error means that the verification could not be completed.
func (v *Verifier) Verify(ctx context.Context) (r Report, err error) {
	now := v.Now
	if now == nil {
		now = time.Now
	}
	begun := now()
	err = v.Store.ReadRecord(ctx, func(read, rows Reader) error {
		w := &verification{v: v, read: read, rows: rows, counts: make(map[Kind]map[time.Time]int64)}
		w.report.StartedAt = begun.UTC()
		err := w.run(ctx)
		r = w.report
		return err
	})
	r.Took = now().Sub(begun)
	if errors.Is(err, errLog) { // the findings say so
		err = nil
	}
	return r, err
}

// pageBatches bounds the batches that are read at once, pageTiles the tiles, pageCheckpoints the checkpoints.
const (
	pageBatches     = 16
	pageTiles       = 256
	pageCheckpoints = 1000
)

// A verification is one run of a [Verifier].
type verification struct {
	v      *Verifier
	read   Reader
	rows   Reader // for the next page, while this one is checked
	report Report

	keys    []string
	against []Checkpoint
	floors  map[string]time.Time // by kind: rows before it may be missing
	gone    map[string]time.Time // by device: likewise
	sealed  map[Removal]bool     // removals that the log has; the database's list alone proves nothing
	used    map[Removal]bool     // removals that excused a missing row

	waiting     []Leaf // in the queue
	edge        Edge
	good        int64 // entries up to the last checkpoint whose root was right
	checkpoints []Checkpoint
	noMore      bool // all checkpoints were read
	tiles       map[int][]Tile
	counts      map[Kind]map[time.Time]int64 // rows of leaves, by hour
	last        Checkpoint
}

func (w *verification) run(ctx context.Context) (err error) {
	if err := w.prepare(ctx); err != nil {
		return err
	}
	if err := w.entries(ctx); err != nil {
		return err
	}
	if err := w.end(ctx); err != nil {
		return err
	}
	if err := w.queued(ctx); err != nil {
		return err
	}
	for _, k := range Kinds {
		if err := w.compareCounts(ctx, k); err != nil {
			return err
		}
	}
	for r := range w.used {
		if !w.sealed[r] {
			w.find(Finding{Problem: Inserted, Entry: -1, Kind: r.Kind, Ref: r.Ref, At: r.At})
		}
	}
	slices.SortStableFunc(w.report.Findings, func(a, b Finding) int { return compareEntries(a.Entry, b.Entry) })
	return nil
}

// compareEntries puts those without an entry last.
func compareEntries(a, b int64) int {
	switch {
	case a == b:
		return 0
	case a < 0 || b >= 0 && b < a:
		return 1
	}
	return -1
}

func (w *verification) prepare(ctx context.Context) (err error) {
	if w.keys, err = w.read.Keys(ctx); err != nil {
		return err
	}
	if w.v.Verifier != "" && !slices.Contains(w.keys, w.v.Verifier) {
		w.keys = append(w.keys, w.v.Verifier)
	}
	for _, text := range w.v.Against {
		c, err := ParseCheckpoint(text, w.keys...)
		if err != nil {
			return fmt.Errorf("the checkpoint to compare with: %w", err)
		}
		w.against = append(w.against, c)
	}
	removals, err := w.read.Removals(ctx)
	if err != nil {
		return err
	}
	w.floors, w.gone = make(map[string]time.Time), make(map[string]time.Time)
	w.sealed, w.used = make(map[Removal]bool), make(map[Removal]bool)
	w.tiles = make(map[int][]Tile)
	for _, r := range removals {
		of := w.gone
		if r.Kind == Dropped {
			of = w.floors
		}
		if r.At.After(of[r.Ref]) {
			of[r.Ref] = r.At
		}
	}
	return nil
}

func (w *verification) find(f Finding) {
	if len(w.report.Findings) == maxFindings {
		w.report.More++
		return
	}
	w.report.Findings = append(w.report.Findings, f)
}

// entries checks all entries. The database makes the lines of a page while the page before is checked.
func (w *verification) entries(ctx context.Context) error {
	pages := make(chan page, 1)
	done := make(chan struct{})
	var ahead sync.WaitGroup
	ahead.Go(func() {
		defer close(pages)
		for first, more := int64(0), true; more; {
			p := readPage(ctx, w.rows, first)
			select {
			case pages <- p:
			case <-done:
				return
			}
			first += int64(len(p.leaves))
			more = p.err == nil && !p.damaged && len(p.leaves) > 0
		}
	})
	defer ahead.Wait()
	defer close(done)
	return w.check(ctx, pages)
}

// A page is some consecutive entries.
type page struct {
	leaves  []Leaf
	lines   [][]byte
	damaged bool // the stored log cannot be read after these entries
	err     error
}

// readPage reads the entries from a number on; none at the end of the log.
func readPage(ctx context.Context, read Reader, first int64) (p page) {
	batches, err := read.Batches(ctx, first, pageBatches)
	if err != nil {
		return page{err: err}
	}
	for _, b := range batches {
		list, err := b.Leaves()
		if err != nil || b.First != first+int64(len(p.leaves)) || len(list) == 0 {
			p.damaged = true
			break
		}
		p.leaves = append(p.leaves, list...)
	}
	p.lines, p.err = Lines(ctx, read, p.leaves)
	return p
}

func (w *verification) check(ctx context.Context, pages <-chan page) error {
	for p := range pages {
		if p.err != nil {
			return p.err
		}
		for i, l := range p.leaves {
			if err := w.entry(ctx, w.edge.Size, l, p.lines[i]); err != nil {
				return err
			}
		}
		w.report.Entries = w.edge.Size
		if p.damaged {
			w.find(Finding{Problem: LogChanged, Entry: w.edge.Size})
			return errLog
		}
		if w.v.Progress != nil {
			w.v.Progress(w.edge.Size)
		}
	}
	return nil
}

// errLog ends a verification that cannot go on, after a finding.
var errLog = errors.New("the tables of the log are damaged")

// Lines returns the lines of leaves of all kinds; nil for a missing row, and for a kind that is unknown.
func Lines(ctx context.Context, read Reader, leaves []Leaf) ([][]byte, error) {
	lines := make([][]byte, len(leaves))
	byKind := make(map[Kind][]int)
	for i, l := range leaves {
		switch l.Kind {
		case Forgotten, Dropped, Started:
			lines[i] = RowlessLine(l.Kind, l.Ref, l.At)
		default:
			byKind[l.Kind] = append(byKind[l.Kind], i)
		}
	}
	for k, numbers := range byKind {
		list := make([]Leaf, len(numbers))
		for n, i := range numbers {
			list[n] = leaves[i]
		}
		found, err := read.Lines(ctx, k, list)
		if err != nil {
			return nil, err
		}
		for n, i := range numbers {
			lines[i] = found[n]
		}
	}
	return lines, nil
}

// entry checks one entry, and adds it to the tree.
func (w *verification) entry(ctx context.Context, n int64, l Leaf, line []byte) error {
	copied, err := w.copyOf(ctx, n)
	if err != nil {
		return err
	}
	hash := l.Hash
	rowMatches := line != nil && tlog.RecordHash(line) == l.Hash
	if copied != nil && *copied != l.Hash {
		// One of the two copies of the hash was changed. The row shows which.
		if !rowMatches {
			hash = *copied
			rowMatches = line != nil && tlog.RecordHash(line) == hash
		}
		w.find(Finding{Problem: LogChanged, Entry: n, Kind: l.Kind, Ref: l.Ref, At: l.At})
	}
	switch {
	case line == nil && w.excused(l):
		w.report.Missing++
	case line == nil:
		w.find(Finding{Problem: Removed, Entry: n, Kind: l.Kind, Ref: l.Ref, At: l.At})
	case !rowMatches:
		w.find(Finding{Problem: Changed, Entry: n, Kind: l.Kind, Ref: l.Ref, At: l.At})
	}
	w.note(n, l, line != nil)
	w.edge.Append(hash, func(t Tile) { err = w.tile(ctx, t) })
	if err != nil {
		return err
	}
	return w.checkpoint(ctx)
}

// note counts the entry, and remembers the removals.
func (w *verification) note(n int64, l Leaf, row bool) {
	switch l.Kind {
	case Forgotten, Dropped:
		w.sealed[Removal{l.Kind, l.Ref, l.At}] = true
	case Started:
		if w.report.Start.IsZero() {
			w.report.Start = l.At
			return
		}
		w.find(Finding{Problem: Restarted, Entry: n, Kind: l.Kind, At: l.At})
	default:
		if row {
			hours := w.counts[l.Kind]
			if hours == nil {
				hours = make(map[time.Time]int64)
				w.counts[l.Kind] = hours
			}
			hours[l.At.Truncate(time.Hour)]++
		}
	}
}

// excused reports whether fleetd removed the row.
func (w *verification) excused(l Leaf) bool {
	kind := l.Kind.String()
	if floor, ok := w.floors[kind]; ok && l.At.Before(floor) {
		w.used[Removal{Dropped, kind, floor}] = true
		return true
	}
	device := l.Ref
	if l.Kind == Firmware {
		device, _, _ = strings.Cut(device, "/")
	}
	if at, ok := w.gone[device]; ok && (l.Kind == Firmware || l.Kind == Connection) && !l.At.After(at) {
		w.used[Removal{Forgotten, device, at}] = true
		return true
	}
	return false
}

// copyOf returns the hash of the entry in its full tile, if there is one.
func (w *verification) copyOf(ctx context.Context, n int64) (*tlog.Hash, error) {
	t, err := w.storedTile(ctx, 0, n/TileWidth)
	if t == nil || err != nil {
		return nil, err
	}
	h := tlog.Hash(t.Hashes[n%TileWidth*tlog.HashSize:])
	return &h, nil
}

// storedTile returns a full tile of the database, or nil. Tiles of a level are asked for in order.
func (w *verification) storedTile(ctx context.Context, level int, n int64) (*Tile, error) {
	list := w.tiles[level]
	if len(list) == 0 || list[len(list)-1].N < n {
		limit := pageTiles
		if level > 0 {
			limit = 16
		}
		var err error
		if list, err = w.read.Tiles(ctx, level, n, limit); err != nil {
			return nil, err
		}
		if len(list) == 0 { // the level has no tile from here on
			list = []Tile{{Level: level, N: 1<<63 - 1}}
		}
	}
	for len(list) > 0 && list[0].N < n {
		list = list[1:]
	}
	w.tiles[level] = list
	if len(list) > 0 && list[0].N == n {
		return &list[0], nil
	}
	return nil, nil
}

// tile compares a tile that became full with the database's.
func (w *verification) tile(ctx context.Context, t Tile) error {
	stored, err := w.storedTile(ctx, t.Level, t.N)
	if err != nil {
		return err
	}
	span := int64(TileWidth)
	for range t.Level {
		span *= TileWidth
	}
	if stored == nil {
		w.find(Finding{Problem: LogChanged, Entry: t.N * span})
		return nil
	}
	if t.Level == 0 { // each hash was compared
		return nil
	}
	for i := range TileWidth {
		at := i * tlog.HashSize
		if string(t.Hashes[at:at+tlog.HashSize]) != string(stored.Hashes[at:at+tlog.HashSize]) {
			w.find(Finding{Problem: LogChanged, Entry: t.N*span + int64(i)*span/TileWidth})
			return nil
		}
	}
	return nil
}

// checkpoint compares the tree with the checkpoint of its size, if there is one.
func (w *verification) checkpoint(ctx context.Context) (err error) {
	if len(w.checkpoints) == 0 && !w.noMore {
		if w.checkpoints, err = w.read.Checkpoints(ctx, w.edge.Size-1, pageCheckpoints); err != nil {
			return err
		}
		w.noMore = len(w.checkpoints) < pageCheckpoints
	}
	size := w.edge.Size
	for len(w.checkpoints) > 0 && w.checkpoints[0].Size <= size {
		c := w.checkpoints[0]
		w.checkpoints = w.checkpoints[1:]
		if c.Size < size {
			continue // it was before the first entry of this page
		}
		if err := w.compare(c, Moved); err != nil {
			return err
		}
		w.last = c
		w.report.Checked++
	}
	for _, c := range w.against {
		if c.Size == size {
			if err := w.compare(c, Replaced); err != nil {
				return err
			}
		}
	}
	return nil
}

// compare checks the signature of a checkpoint and its root.
func (w *verification) compare(c Checkpoint, problem Problem) error {
	signed, err := ParseCheckpoint(c.Note, w.keys...)
	if err != nil || signed.Size != c.Size || signed.Root != c.Root || signed.Term != c.Term ||
		!signed.At.Equal(c.At) {
		w.find(Finding{Problem: BadSign, Entry: c.Size - 1, At: c.At})
		return nil
	}
	root, err := w.edge.Root()
	if err != nil {
		return fmt.Errorf("root of the record: %w", err)
	}
	if root == c.Root {
		w.good = c.Size
		return nil
	}
	known := slices.ContainsFunc(w.report.Findings, func(f Finding) bool {
		return f.Entry >= 0 && f.Entry < c.Size && f.Problem != BadSign
	})
	if problem == Replaced || !known {
		w.find(Finding{Problem: problem, Entry: w.good, End: c.Size, At: c.At})
	}
	return nil
}

// end checks the end of the log.
func (w *verification) end(ctx context.Context) error {
	left, err := w.read.Checkpoints(ctx, w.edge.Size, 1)
	if err != nil {
		return err
	}
	if len(left) > 0 || w.edge.Size > w.last.Size {
		w.find(Finding{Problem: CutOff, Entry: min(w.edge.Size, w.last.Size)})
	}
	for _, c := range w.against {
		if c.Size > w.edge.Size {
			w.find(Finding{Problem: Replaced, Entry: w.edge.Size, End: c.Size, At: c.At})
		}
	}
	for level := range w.tiles {
		extra, err := w.read.Tiles(ctx, level, w.edge.Size>>(TileHeight*(level+1)), 1)
		if err != nil {
			return err
		}
		if len(extra) > 0 {
			w.find(Finding{Problem: LogChanged, Entry: w.edge.Size})
		}
	}
	w.report.Latest = w.last
	if w.v.Verifier != "" && w.last.Size > 0 {
		if _, err := ParseCheckpoint(w.last.Note, w.v.Verifier); err != nil {
			w.find(Finding{Problem: BadSign, Entry: w.last.Size - 1, At: w.last.At})
		}
	}
	return nil
}

// queued checks the entries that wait for the next checkpoint.
func (w *verification) queued(ctx context.Context) error {
	leaves, err := w.read.Queued(ctx)
	if err != nil {
		return err
	}
	w.report.Queued, w.waiting = int64(len(leaves)), leaves
	lines, err := Lines(ctx, w.read, leaves)
	if err != nil {
		return err
	}
	for i, l := range leaves {
		switch {
		case lines[i] == nil && w.excused(l):
			w.report.Missing++
		case lines[i] == nil:
			w.find(Finding{Problem: Removed, Entry: -1, Kind: l.Kind, Ref: l.Ref, At: l.At})
		case tlog.RecordHash(lines[i]) != l.Hash:
			w.find(Finding{Problem: Changed, Entry: -1, Kind: l.Kind, Ref: l.Ref, At: l.At})
		}
		w.note(-1, l, lines[i] != nil)
	}
	return nil
}

// compareCounts finds rows that are not in the log, and entries that are there twice: each entry has a row, so the
// counts of an hour differ if there is one.
func (w *verification) compareCounts(ctx context.Context, k Kind) error {
	rows, err := w.read.Counts(ctx, k, w.report.Start)
	if err != nil {
		return err
	}
	hours := make(map[time.Time]bool)
	for hour, n := range rows {
		hours[hour] = n != w.counts[k][hour]
	}
	for hour, n := range w.counts[k] {
		hours[hour] = n != rows[hour]
	}
	for _, hour := range slices.SortedFunc(maps.Keys(hours), time.Time.Compare) {
		if hours[hour] && hour.Add(time.Hour).After(w.report.Start) {
			if err := w.compareHour(ctx, k, hour); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *verification) compareHour(ctx context.Context, k Kind, hour time.Time) error {
	from := hour
	if from.Before(w.report.Start) {
		from = w.report.Start
	}
	leaves, err := w.read.LeavesAt(ctx, k, from, hour.Add(time.Hour))
	if err != nil {
		return err
	}
	seen := make(map[Key]bool)
	for _, n := range slices.SortedFunc(maps.Keys(leaves), compareEntries) {
		l := leaves[n]
		key := Key{l.Ref, l.At}
		if seen[key] {
			w.find(Finding{Problem: Twice, Entry: n, Kind: k, Ref: l.Ref, At: l.At})
		}
		seen[key] = true
	}
	for _, l := range w.waiting {
		if l.Kind == k {
			seen[Key{l.Ref, l.At}] = true
		}
	}
	rows, err := w.read.RowKeys(ctx, k, from, hour.Add(time.Hour))
	if err != nil {
		return err
	}
	for _, key := range rows {
		if !seen[key] {
			w.find(Finding{Problem: Inserted, Entry: -1, Kind: k, Ref: key.Ref, At: key.At})
		}
	}
	return nil
}
