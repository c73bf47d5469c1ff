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
	"path"
	"path/filepath"
	"regexp"
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
	for _, pattern := range []string{"vendor/*.*", "vendor/*/*"} {
		entries, err := filepath.Glob(pattern)
		if err != nil || len(entries) == 0 {
			t.Fatal(entries, err)
		}
		for _, e := range entries {
			if name := strings.TrimPrefix(e, "vendor/"); !listed[name] {
				t.Errorf("%s is not in SHA256SUMS", e)
			}
		}
	}
}

// Modules of a folder import each other from the same folder, whose name changes with any of them.
func TestFolderOfModules(t *testing.T) {
	seen := 0
	for name, public := range names {
		if !strings.HasPrefix(name, "esp-web-tools/") {
			continue
		}
		seen++
		r := httptest.NewRequest("GET", Path(name), nil)
		w := httptest.NewRecorder()
		Handler().ServeHTTP(w, r)
		if got := w.Header().Get("Content-Type"); w.Code != http.StatusOK || !strings.HasPrefix(got, "text/javascript") {
			t.Errorf("%s answers %d as %q", name, w.Code, got)
		}
		for _, m := range modules.FindAllStringSubmatch(w.Body.String(), -1) {
			if sibling := path.Join(path.Dir(public), m[1]); assets[sibling].plain == nil {
				t.Errorf("%s imports %s, which is not served next to it", name, m[1])
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d modules are served", seen)
	}
}

var modules = regexp.MustCompile(`(?:from|import\()"(\./[^"]+)"`)

// classes finds the classes that rules begin with.
var classes = regexp.MustCompile(`(?m)^  \.[a-z][a-z-]*`)

func TestHandler(t *testing.T) {
	get := func(target, encoding string) *http.Response {
		r := httptest.NewRequest("GET", target, nil)
		r.Header.Set("Accept-Encoding", encoding)
		w := httptest.NewRecorder()
		Handler().ServeHTTP(w, r)
		return w.Result()
	}
	want := assets[strings.TrimPrefix(Path("app.css"), Prefix)].plain
	for _, name := range glob("assets/css/*.css") {
		for _, class := range classes.FindAllString(string(read(name)), -1) {
			if class = strings.TrimSpace(class); !strings.Contains(string(want), class) {
				t.Errorf("the sheet has no rule for %s of %s", class, name)
			}
		}
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

// The sheet refers to a font by its public address, and the font is not compressed a second time.
func TestFonts(t *testing.T) {
	sheet := string(assets[strings.TrimPrefix(Path("app.css"), Prefix)].plain)
	named := regexp.MustCompile(`url\((/static/[^)]+\.woff2)\)`).FindAllStringSubmatch(sheet, -1)
	if len(named) < 2 {
		t.Fatalf("the sheet names %d fonts", len(named))
	}
	for _, m := range named {
		r := httptest.NewRequest("GET", m[1], nil)
		r.Header.Set("Accept-Encoding", "gzip")
		w := httptest.NewRecorder()
		Handler().ServeHTTP(w, r)
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "font/woff2" ||
			w.Header().Get("Content-Encoding") != "" || !strings.HasPrefix(w.Body.String(), "wOF2") {
			t.Errorf("%s answers %d, %v", m[1], w.Code, w.Header())
		}
	}
}
