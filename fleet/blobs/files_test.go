package blobs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"fleetd/fleet"
)

func readRange(t *testing.T, s *Store, key string, offset, length int64) (string, error) {
	t.Helper()
	r, err := s.OpenRange(t.Context(), key, offset, length)
	if err != nil {
		return "", err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	return string(data), err
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if !d.IsDir() && d.Name() != marker {
			names = append(names, name)
		}
		return nil
	})
	return names
}

func TestPutFileAndRanges(t *testing.T) {
	s, dir := open(t)
	for range 2 { // equal bytes are stored once
		key, err := s.PutFile(t.Context(), strings.NewReader("hello"), 5)
		if err != nil || key != keyOf([]byte("hello")) {
			t.Fatalf("key %s, %v", key, err)
		}
	}
	if got := files(t, dir); len(got) != 1 {
		t.Errorf("files %v, want the blob alone", got)
	}
	key := keyOf([]byte("hello"))
	for _, tt := range []struct {
		offset, length int64
		want           string
	}{{0, -1, "hello"}, {0, 5, "hello"}, {1, 3, "ell"}, {4, -1, "o"}, {5, -1, ""}, {0, 0, ""}} {
		if got, err := readRange(t, s, key, tt.offset, tt.length); err != nil || got != tt.want {
			t.Errorf("%d bytes from %d: %q, %v; want %q", tt.length, tt.offset, got, err, tt.want)
		}
	}
	if err := errors.Join(s.DeleteFile(t.Context(), key), s.DeleteFile(t.Context(), key), s.DeleteFile(t.Context(),
		"../x")); err != nil {
		t.Error(err)
	}
	for _, gone := range []string{key, "", "../../etc/passwd"} {
		if _, err := readRange(t, s, gone, 0, -1); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("blob %q: %v", gone, err)
		}
	}
}

func TestPutFileRefuses(t *testing.T) {
	s, dir := open(t)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	tests := map[string]struct {
		ctx  context.Context
		r    io.Reader
		size int64
		kind error
	}{
		"too short": {t.Context(), strings.NewReader("hell"), 5, fleet.ErrInvalid},
		"too long":  {t.Context(), strings.NewReader("hello!"), 5, fleet.ErrInvalid},
		"breaks off": {t.Context(), io.MultiReader(strings.NewReader("he"), iotest.ErrReader(io.ErrUnexpectedEOF)), 5,
			fleet.ErrInvalid},
		"canceled": {canceled, strings.NewReader("hello"), 5, fleet.ErrUnavailable},
	}
	for name, tt := range tests {
		if key, err := s.PutFile(tt.ctx, tt.r, tt.size); !errors.Is(err, tt.kind) {
			t.Errorf("%s: stored as %q, %v; want %v", name, key, err, tt.kind)
		}
	}
	if left := files(t, dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestDamagedFileIsNotServed damages a blob on disk, once before and once after its first
// read. The second damage is detected by the file's time.
func TestDamagedFileIsNotServed(t *testing.T) {
	s, dir := open(t)
	key, err := s.PutFile(t.Context(), strings.NewReader("hello"), 5)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, key[:2], key)
	write := func(text string, at time.Time) {
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chtimes(file, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		write("hellO", time.Now().Add(-time.Hour))
		if got, err := readRange(t, s, key, 0, -1); !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("a damaged blob was served: %q, %v", got, err)
		}
		if _, err := s.PutFile(t.Context(), strings.NewReader("hello"), 5); err != nil {
			t.Fatal(err)
		}
		if got, err := readRange(t, s, key, 0, -1); err != nil || got != "hello" {
			t.Errorf("stored again: %q, %v", got, err)
		}
	}
}

// TestReplacedFileIsNoticed replaces a checked file with another of the same name, size and
// time.
func TestReplacedFileIsNoticed(t *testing.T) {
	s, dir := open(t)
	key, err := s.PutFile(t.Context(), strings.NewReader("hello"), 5)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := readRange(t, s, key, 0, -1); err != nil || got != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	file := filepath.Join(dir, key[:2], key)
	was, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	other := file + ".other"
	if err := errors.Join(os.WriteFile(other, []byte("hellO"), 0o600), os.Chtimes(other, was.ModTime(), was.ModTime()),
		os.Rename(other, file)); err != nil {
		t.Fatal(err)
	}
	if got, err := readRange(t, s, key, 0, -1); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("the file in its place was served: %q, %v", got, err)
	}
}

func TestManyFirstReadingsCheckOnce(t *testing.T) {
	s, _ := open(t)
	data := bytes.Repeat([]byte("x"), 8<<20)
	key, err := s.PutFile(t.Context(), bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if got, err := readRange(t, s, key, int64(len(data))-3, -1); err != nil || got != "xxx" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	wg.Wait()
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 {
		t.Errorf("50 openings of an 8 MiB blob allocated %d KiB", grown>>10)
	}
}

func TestSweepTakesWhatIsOld(t *testing.T) {
	s, dir := open(t)
	for name, age := range map[string]time.Duration{"OLD": 25 * time.Hour, "NEW": time.Hour} {
		file, at := filepath.Join(dir, incoming, name), time.Now().Add(-age)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600),
			os.Chtimes(file, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	key, err := s.Put(t.Context(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if left := files(t, dir); len(left) != 2 || !strings.HasSuffix(left[0]+left[1], filepath.Join(incoming, "NEW")) {
		t.Errorf("left: %v", left)
	}
	if got, err := readRange(t, again, key, 0, -1); err != nil || got != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

// A missing mount leaves an empty directory.
func TestNothingIsStoredInAnotherDirectory(t *testing.T) {
	s, dir := open(t)
	key, err := s.Put(t.Context(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	away := dir + ".away"
	if err := os.Rename(dir, away); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"gone", "empty", "of another store"} {
		switch what {
		case "empty":
			err = os.Mkdir(dir, 0o750)
		case "of another store":
			_, err = OpenDir(dir)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, put := s.Put(t.Context(), []byte("world"))
		_, putFile := s.PutFile(t.Context(), strings.NewReader("world"), 5)
		_, get := s.Get(t.Context(), key)
		_, read := readRange(t, s, key, 0, -1)
		for act, err := range map[string]error{"Put": put, "PutFile": putFile, "Get": get, "OpenRange": read,
			"DeleteFile": s.DeleteFile(t.Context(), key)} {
			if !errors.Is(err, fleet.ErrUnavailable) || err.Error() != "blob_store.elsewhere" {
				t.Errorf("the directory is %s: %s: %v", what, act, err)
			}
		}
		if got := files(t, dir); len(got) != 0 {
			t.Errorf("the directory is %s: files %v", what, got)
		}
	}
	if err := errors.Join(os.RemoveAll(dir), os.Rename(away, dir)); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(t.Context(), key); err != nil || string(got) != "hello" {
		t.Errorf("once the directory is back: %q, %v", got, err)
	}
	if _, err := s.PutFile(t.Context(), strings.NewReader("world"), 5); err != nil {
		t.Error(err)
	}
}
