package blobs

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"fleetd/fleet"
)

func open(t *testing.T) (s *Store, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "a", "b")
	s, err := Open(t.Context(), "file://"+dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, dir
}

func TestPutAndGet(t *testing.T) {
	s, dir := open(t)
	for _, data := range [][]byte{nil, []byte("hello"), bytes.Repeat([]byte{7}, 1<<20)} {
		key, err := s.Put(t.Context(), data)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Get(t.Context(), key)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes came back as %d: %v", len(data), len(got), err)
		}
	}
	key, _ := s.Put(t.Context(), []byte("hello"))
	if want := "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"; key != want {
		t.Errorf("key %s", key)
	}
	if got := files(t, dir); len(got) != 3 {
		t.Errorf("files %v, want one per blob and nothing else", got)
	}
}

func TestGetRefuses(t *testing.T) {
	s, _ := open(t)
	for _, key := range []string{"", "x", "../../etc/passwd", strings.Repeat("a", 64), strings.Repeat("A", 64)} {
		if _, err := s.Get(t.Context(), key); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("key %q: %v", key, err)
		}
	}
}

func TestDamageIsFoundAndMended(t *testing.T) {
	s, dir := open(t)
	key, err := s.Put(t.Context(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, key[:2], key), []byte("hellO"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), key); err == nil || errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("a damaged blob: %v", err)
	}
	if _, err := s.Put(t.Context(), []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(t.Context(), key); err != nil || string(got) != "hello" {
		t.Errorf("after another Put: %q, %v", got, err)
	}
}

func TestSameBlobFromManySides(t *testing.T) {
	s, _ := open(t)
	data := bytes.Repeat([]byte("x"), 100_000)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			key, err := s.Put(t.Context(), data)
			if err == nil {
				_, err = s.Get(t.Context(), key)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestOpenRefuses(t *testing.T) {
	withoutCredentials(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]string{
		"s3://bucket":             "AWS_ACCESS_KEY_ID",
		"":                        "file:///",
		"data/blobs":              "file:///",
		"file://data/blobs":       "file:///",
		"http://h/x":              "file:///",
		"file://" + file:          "--blob-url",
		"file://" + file + "/sub": "--blob-url",
	} {
		s, err := Open(t.Context(), url)
		if err == nil {
			s.Close()
			t.Errorf("%q was opened", url)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want text with %s", url, err, want)
		}
	}
}
