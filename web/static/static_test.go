package static

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestVendorSums(t *testing.T) {
	f, err := os.Open("vendor/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	listed := map[string]bool{"SHA256SUMS": true, "README.md": true}
	for s := bufio.NewScanner(f); s.Scan(); {
		sum, name, _ := strings.Cut(s.Text(), "  ")
		listed[name] = true
		b, err := os.ReadFile(filepath.Join("vendor", name))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := sha256.Sum256(b); hex.EncodeToString(got[:]) != sum {
			t.Errorf("vendor/%s is not the file it was: sum %x, want %s", name, got, sum)
		}
	}
	entries, err := os.ReadDir("vendor")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !listed[e.Name()] {
			t.Errorf("vendor/%s is not in SHA256SUMS", e.Name())
		}
	}
}

func TestHandler(t *testing.T) {
	get := func(target, encoding string) *http.Response {
		r := httptest.NewRequest("GET", target, nil)
		r.Header.Set("Accept-Encoding", encoding)
		w := httptest.NewRecorder()
		Handler().ServeHTTP(w, r)
		return w.Result()
	}
	var want []byte
	for _, name := range glob("assets/css/*.css") {
		want = append(want, read(name)...)
	}

	plain := get(Path("app.css"), "")
	if got, _ := io.ReadAll(plain.Body); string(got) != string(want) {
		t.Error("plain body differs from the file")
	}
	if got := plain.Header.Get("Cache-Control"); !strings.Contains(got, "immutable") {
		t.Errorf("Cache-Control = %q, want immutable", got)
	}
	if got := plain.Header.Get("Content-Type"); got != "text/css; charset=utf-8" {
		t.Errorf("Content-Type = %q", got)
	}

	zipped := get(Path("app.css"), "gzip, br")
	zr, err := gzip.NewReader(zipped.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(zr); string(got) != string(want) {
		t.Error("unzipped body differs from the file")
	}

	if got := get("/static/app.css", "").StatusCode; got != http.StatusNotFound {
		t.Errorf("a name without its hash answers %d, want 404", got)
	}
	if got := get("/static/../static.go", "").StatusCode; got != http.StatusNotFound {
		t.Errorf("a path outside answers %d, want 404", got)
	}
}
