package blobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
)

// records are the names of blobs.
type records struct {
	mu   sync.Mutex
	refs map[string]int
	err  error
}

func (r *records) name(key string, by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refs == nil {
		r.refs = map[string]int{}
	}
	r.refs[key] += by
}

func (r *records) named(_ context.Context, keys []string) (map[string]bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[string]bool{}
	for _, key := range keys {
		found[key] = r.refs[key] > 0
	}
	return found, r.err
}

func sweeperOf(s *Store, r *records, database string, ahead time.Duration) *Sweeper {
	return NewSweeper(SweeperOptions{Store: s, Named: r.named, Database: database,
		Now: func() time.Time { return time.Now().Add(ahead) }})
}

// testUnnamed sweeps a store that also has what fleetd did not make.
func testUnnamed(t *testing.T, p place) {
	ctx, r := t.Context(), new(records)
	put := func(text string) string {
		key, err := p.store.Put(ctx, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	kept, gone := put("named"), put("unnamed")
	large, err := p.store.PutFile(ctx, strings.NewReader("large"), 5)
	if err != nil {
		t.Fatal(err)
	}
	r.name(kept, 1)
	foreign := []string{"README", gone[:2] + "/notes", gone[:2] + "/" + gone + ".bak", gone[:2] + "/" + strings.ToUpper(kept),
		"zz/" + gone, "00/" + strings.Repeat("f", 64), "deep/" + path(gone)}
	for _, name := range foreign {
		p.write(name, []byte("foreign"))
	}
	all := append([]string{path(kept), path(gone), path(large), owner}, foreign...)
	has := func(why string, want ...string) {
		t.Helper()
		got := p.names()
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: objects (-want +got):\n%s", why, diff)
		}
	}
	sweep := func(database string, ahead time.Duration) (Swept, error) {
		t.Helper()
		return sweeperOf(p.store, r, database, ahead).Sweep(ctx)
	}
	// The first sweep only marks the store, however late it is.
	for _, ahead := range []time.Duration{48 * time.Hour, time.Hour} {
		if done, err := sweep("db", ahead); err != nil || done.Deleted != 0 {
			t.Errorf("%s ahead: %+v, %v", ahead, done, err)
		}
	}
	has("young", all...)
	if done, err := sweep("another", 25*time.Hour); err != nil || done.Deleted != 0 {
		t.Errorf("another database: %+v, %v", done, err)
	}
	r.err = errors.New("no database")
	if done, err := sweep("db", 25*time.Hour); !errors.Is(err, r.err) || done.Deleted != 0 {
		t.Errorf("without the database: %+v, %v", done, err)
	}
	r.err = nil
	has("before the sweep", all...)
	if _, err := readRange(t, p.store, gone, 0, -1); err != nil {
		t.Fatal(err)
	}
	w := sweeperOf(p.store, r, "db", 25*time.Hour)
	done, err := w.Sweep(ctx)
	if want := (Swept{Seen: done.Seen, Deleted: 2, Bytes: 12}); err != nil || done != want || done.Seen < 3 {
		t.Errorf("swept %+v, %v, want %+v", done, err, want)
	}
	if total := w.Total(); total.Deleted != 2 || total.Bytes != 12 {
		t.Errorf("total %+v", total)
	}
	has("after the sweep", append([]string{path(kept), owner}, foreign...)...)
	if _, err := readRange(t, p.store, gone, 0, -1); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("a swept blob: %v", err)
	}
	p.swap()
	if done, err := w.Sweep(ctx); err == nil && done.Deleted > 0 {
		t.Errorf("in another bucket: %+v", done)
	}
}

// A sweep is bounded, and the next one continues after its last blob.
func TestSweepsAreBounded(t *testing.T) {
	s, dir := open(t)
	for i := range 300 {
		if _, err := s.Put(t.Context(), fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	var all []object
	for shard := range 256 {
		name := fmt.Sprintf("%02x/", shard)
		if err := s.bucket.list(t.Context(), name, "", func(o object) error { all = append(all, o); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if len(all) != 300 || !slices.IsSortedFunc(all, func(a, b object) int { return strings.Compare(a.name, b.name) }) {
		t.Fatalf("%d objects listed", len(all))
	}
	w := sweeperOf(s, new(records), "db", 25*time.Hour)
	if _, err := w.Sweep(t.Context()); err != nil { // becomes the owner
		t.Fatal(err)
	}
	w.from = all[149].name // where an earlier sweep reached its limit
	if done, err := w.Sweep(t.Context()); err != nil || done.Deleted != 150 || w.from != "" {
		t.Errorf("the rest: %+v, %v, then from %q", done, err, w.from)
	}
	if done, err := w.Sweep(t.Context()); err != nil || done.Deleted != 150 {
		t.Errorf("from the beginning: %+v, %v", done, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "??", "*")); len(left) != 0 {
		t.Errorf("files left: %v", left)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "incoming")); len(left) != 0 {
		t.Errorf("incoming files left: %v", left)
	}
}

// While blobs are stored, named, unnamed and stored again, sweeps delete none that has a name. The
// files of unnamed blobs become old at any moment.
func TestNamedBlobsSurviveSweeps(t *testing.T) {
	for name, others := range map[string]int{"one process": 0, "two processes": 1} {
		t.Run(name, func(t *testing.T) { raceInDirectory(t, others) })
	}
}

func raceInDirectory(t *testing.T, others int) {
	s, dir := open(t)
	stores := []*Store{s}
	for range others {
		other, err := OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		stores = append(stores, other)
	}
	old := time.Now().Add(-2 * MinAge)
	// age makes the file old, as if its last upload was long ago. No writer stores it meanwhile.
	var aging [8]sync.RWMutex
	race(t, raceWorld{stores: stores, sweepers: 1 + others, keys: len(aging), lasts: 3 * time.Second,
		sweeper: func(s *Store, r *records) *Sweeper { return sweeperOf(s, r, "db", 0) },
		begin:   func(i int) func() { aging[i].RLock(); return aging[i].RUnlock },
		age: func(i int, key string) {
			aging[i].Lock()
			defer aging[i].Unlock()
			_ = os.Chtimes(filepath.Join(dir, path(key)), old, old) // fails if it is deleted
		},
		own: func() {
			if err := errors.Join(s.bucket.put(t.Context(), owner, []byte("db")),
				os.Chtimes(filepath.Join(dir, owner), old, old)); err != nil {
				t.Fatal(err)
			}
		}})
}

// In S3 the server sets the time of an object, in seconds, so it becomes old by waiting.
func TestNamedBlobsSurviveSweepsInS3(t *testing.T) {
	f := newFakeS3(t)
	s := f.open(t, s3Timeout)
	const age = 3 * time.Second
	race(t, raceWorld{stores: []*Store{s}, sweepers: 1, keys: 64, lasts: 3 * age, pause: 2 * age,
		sweeper: func(s *Store, r *records) *Sweeper {
			w := sweeperOf(s, r, "db", 0)
			w.o.Age = age
			return w
		},
		begin: func(int) func() { return func() {} },
		age:   func(int, string) {},
		own: func() {
			if err := s.bucket.put(t.Context(), owner, []byte("db")); err != nil {
				t.Fatal(err)
			}
		}})
}

type raceWorld struct {
	stores   []*Store
	sweepers int
	keys     int
	lasts    time.Duration
	pause    time.Duration // at most, between two uploads of a key
	sweeper  func(*Store, *records) *Sweeper
	begin    func(i int) (end func())
	age      func(i int, key string)
	own      func()
}

func race(t *testing.T, w raceWorld) {
	w.own()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var r records
	var all sync.WaitGroup
	var stored, swept atomic.Int64
	all.Go(func() { // on a busy machine, until there was a race
		begun := time.Now()
		for ctx.Err() == nil && (time.Since(begun) < w.lasts || stored.Load() == 0 || swept.Load() == 0) {
			time.Sleep(10 * time.Millisecond)
		}
		stop()
	})
	for i := range w.keys {
		for writer := range 2 {
			all.Go(func() {
				s, data := w.stores[writer%len(w.stores)], fmt.Appendf(nil, "blob %d", i)
				for ctx.Err() == nil {
					end := w.begin(i)
					key, err := s.Put(t.Context(), data)
					if err != nil {
						t.Error(err)
						stop()
					}
					r.name(key, 1)
					for range 1 + rand.IntN(3) {
						_, err := s.Get(t.Context(), key)
						for tries := 0; tries < 20 && len(w.stores) > 1 && errors.Is(err, fleet.ErrNotFound); tries++ {
							// The other process looks at the age of a file that only it sees, and puts it back.
							time.Sleep(5 * time.Millisecond)
							_, err = s.Get(t.Context(), key)
						}
						if err != nil {
							t.Errorf("a named blob: %v", err)
							stop()
						}
					}
					r.name(key, -1)
					end()
					stored.Add(1)
					if rand.IntN(2) == 0 {
						w.age(i, key)
					}
					select {
					case <-ctx.Done():
					case <-time.After(rand.N(w.pause + time.Millisecond)):
					}
				}
			})
		}
	}
	for i := range w.sweepers {
		all.Go(func() {
			sweeper := w.sweeper(w.stores[i%len(w.stores)], &r)
			for ctx.Err() == nil {
				// The sweep decides as it does after a day.
				done, err := sweeper.sweep(t.Context(), time.Now())
				if err != nil {
					t.Error(err)
					stop()
				}
				swept.Add(int64(done.Deleted))
			}
		})
	}
	all.Wait()
	if stored.Load() == 0 || swept.Load() == 0 {
		t.Errorf("%d uploads and %d deletions: nothing raced", stored.Load(), swept.Load())
	}
	t.Logf("%d uploads, %d deletions", stored.Load(), swept.Load())
}
