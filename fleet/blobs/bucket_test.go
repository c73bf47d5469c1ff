package blobs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

const (
	testAccessKey = "fleetd-test"
	testSecretKey = "hunter2-hunter2-hunter2"
)

// withoutCredentials hides the credentials of the person who runs the tests.
func withoutCredentials(t *testing.T) {
	t.Helper()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY",
		"AWS_SESSION_TOKEN", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	none := filepath.Join(t.TempDir(), "none")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", none)
	t.Setenv("AWS_CONFIG_FILE", none)
}

func withCredentials(t *testing.T) {
	t.Helper()
	withoutCredentials(t)
	t.Setenv("AWS_ACCESS_KEY_ID", testAccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", testSecretKey)
}

// A fakeS3 is an S3 server in this process. A fault makes it answer a request differently
// from S3.
type fakeS3 struct {
	*httptest.Server
	fault  atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
	memory *s3mem.Backend
}

func newFakeS3(t *testing.T) *fakeS3 {
	t.Helper()
	withCredentials(t)
	f := &fakeS3{memory: s3mem.New()}
	f.make(t)
	s3 := gofakes3.New(f.memory).Server()
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault := f.fault.Load(); fault == nil || !(*fault)(w, r) {
			s3.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *fakeS3) make(t *testing.T) {
	t.Helper()
	if err := f.memory.CreateBucket("blobs"); err != nil {
		t.Fatal(err)
	}
}

// fail makes the server answer with fault while fault returns true.
func (f *fakeS3) fail(fault func(http.ResponseWriter, *http.Request) bool) { f.fault.Store(&fault) }

func (f *fakeS3) heal() { f.fault.Store(nil) }

func s3URL(endpoint string) string {
	return "s3://blobs/some/prefix?region=eu-central-1&endpoint=" + url.QueryEscape(endpoint)
}

func (f *fakeS3) open(t *testing.T, timeout time.Duration) *Store {
	t.Helper()
	s, err := openS3(t.Context(), s3URL(f.URL), timeout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// A place is a bucket of one kind. Its functions bypass the store.
type place struct {
	store *Store
	again func() (*Store, error) // opens it again
	write func(name string, data []byte)
	names func() []string // names of all objects except the marker
	swap  func()          // puts another bucket in its place
}

var places = []struct {
	name string
	open func(t *testing.T) place
}{
	{"directory", inDirectory},
	{"s3", func(t *testing.T) place {
		f := newFakeS3(t)
		return inS3(t, s3URL(f.URL))
	}},
}

// FLEETD_VERSITYGW is the path of a real S3 server, see scripts/test.
func init() {
	if server := os.Getenv("FLEETD_VERSITYGW"); server != "" {
		places = append(places, struct {
			name string
			open func(t *testing.T) place
		}{"versitygw", func(t *testing.T) place { return inS3(t, s3URL(startVersity(t, server))) }})
	}
}

func startVersity(t *testing.T, server string) string {
	t.Helper()
	withCredentials(t)
	root, meta := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "blobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	at, err := fleettest.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(server, "--port", at, "--access", testAccessKey, "--secret", testSecretKey,
		"--region", "eu-central-1", "posix", "--sidecar", meta, root)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%s", log.String())
		}
	})
	fleettest.Eventually(t, "versitygw answers", func() bool {
		resp, err := http.Get("http://" + at)
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	return "http://" + at
}

func inDirectory(t *testing.T) place {
	s, dir := open(t)
	return place{
		store: s,
		again: func() (*Store, error) { return OpenDir(dir) },
		write: func(name string, data []byte) {
			file := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), os.WriteFile(file, data, 0o600)); err != nil {
				t.Fatal(err)
			}
		},
		names: func() (names []string) {
			for _, file := range files(t, dir) {
				name, _ := filepath.Rel(dir, file)
				names = append(names, filepath.ToSlash(name))
			}
			return names
		},
		swap: func() {
			if err := os.Rename(dir, dir+".away"); err != nil {
				t.Fatal(err)
			}
			if other, err := OpenDir(dir); err != nil {
				t.Fatal(err)
			} else {
				other.Close()
			}
		},
	}
}

func inS3(t *testing.T, address string) place {
	s, err := Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	b := s.bucket.(*s3Bucket)
	p := place{store: s, again: func() (*Store, error) { return Open(t.Context(), address) }}
	p.write = func(name string, data []byte) {
		if _, err := b.core.PutObject(t.Context(), b.bucket, b.prefix+name, bytes.NewReader(data), int64(len(data)), "", "",
			minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p.names = func() (names []string) {
		for o := range b.core.Client.ListObjects(t.Context(), b.bucket, minio.ListObjectsOptions{Recursive: true}) {
			if o.Err != nil {
				t.Fatal(o.Err)
			}
			if name, below := strings.CutPrefix(o.Key, b.prefix); !below {
				t.Errorf("object %s is not below the prefix", o.Key)
			} else if name != marker {
				names = append(names, name)
			}
		}
		return names
	}
	p.swap = func() {
		for _, name := range p.names() {
			if err := b.remove(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		p.write(marker, []byte("ANOTHER"))
	}
	return p
}

// TestBuckets checks that all kinds of bucket behave alike.
func TestBuckets(t *testing.T) {
	for _, kind := range places {
		for _, tt := range []struct {
			name string
			run  func(*testing.T, place)
		}{
			{"put and get", testPutAndGet},
			{"ranges", testRanges},
			{"hostile keys", testHostileKeys},
			{"addresses", testAddresses},
			{"broken uploads", testBrokenUploads},
			{"damage", testDamage},
			{"replaced between two readings", testReplaced},
			{"deletion", testDeletion},
			{"sweeping", testSweeping},
			{"unnamed", testUnnamed},
			{"another bucket in its place", testSwapped},
			{"opened again", testOpenedAgain},
			{"many at once", testManyAtOnce},
		} {
			t.Run(kind.name+"/"+tt.name, func(t *testing.T) { tt.run(t, kind.open(t)) })
		}
	}
}

func testPutAndGet(t *testing.T, p place) {
	var want []string
	for _, data := range [][]byte{{}, []byte("hello"), bytes.Repeat([]byte{7}, 1<<20)} {
		want = append(want, path(keyOf(data)))
		for range 2 { // equal bytes are stored once
			key, err := p.store.Put(t.Context(), data)
			if err != nil || key != keyOf(data) {
				t.Fatalf("%d bytes stored as %s, %v", len(data), key, err)
			}
			key, err = p.store.PutFile(t.Context(), bytes.NewReader(data), int64(len(data)))
			if err != nil || key != keyOf(data) {
				t.Fatalf("file of %d bytes stored as %s, %v", len(data), key, err)
			}
		}
		got, err := p.store.Get(t.Context(), keyOf(data))
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes came back as %d: %v", len(data), len(got), err)
		}
		if text, err := readRange(t, p.store, keyOf(data), 0, -1); err != nil || text != string(data) {
			t.Errorf("file of %d bytes came back as %d: %v", len(data), len(text), err)
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, p.names()); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

func testRanges(t *testing.T, p place) {
	key, err := p.store.PutFile(t.Context(), iotest.OneByteReader(strings.NewReader("hello")), 5)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		offset, length int64
		want           string
	}{{0, -1, "hello"}, {0, 5, "hello"}, {1, 3, "ell"}, {0, 1, "h"}, {4, -1, "o"}, {4, 1, "o"}, {3, 99, "lo"}, {5, -1, ""},
		{5, 3, ""}, {9, -1, ""}, {0, 0, ""}, {2, 0, ""}} {
		if got, err := readRange(t, p.store, key, tt.offset, tt.length); err != nil || got != tt.want {
			t.Errorf("%d bytes from %d: %q, %v; want %q", tt.length, tt.offset, got, err, tt.want)
		}
	}
}

// A client without credentials reads a blob at its address, and nothing else, until it expires.
func testAddresses(t *testing.T, p place) {
	key, err := p.store.PutFile(t.Context(), strings.NewReader("hello"), 5)
	if err != nil {
		t.Fatal(err)
	}
	at, err := p.store.Address(t.Context(), key, time.Hour)
	if _, s3 := p.store.bucket.(*s3Bucket); !s3 {
		if err != nil || at.URL != "" {
			t.Errorf("address %q in a directory, %v", at.URL, err)
		}
		return
	}
	short, err2 := p.store.Address(t.Context(), key, time.Second)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	read := func(method, address, part string) (status int, body, etag string) {
		t.Helper()
		r, err := http.NewRequest(method, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		if part != "" {
			r.Header.Set("Range", part)
			r.Header.Set("If-Match", `"`+at.ETag+`"`)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text), resp.Header.Get("ETag")
	}
	if status, body, etag := read("GET", at.URL, ""); status != 200 || body != "hello" || etag != `"`+at.ETag+`"` {
		t.Errorf("%d %q %s", status, body, etag)
	}
	if status, body, _ := read("GET", at.URL, "bytes=1-3"); status != 206 || body != "ell" {
		t.Errorf("a part: %d %q", status, body)
	}
	if _, err := p.store.Address(t.Context(), strings.Repeat("a", 64), time.Hour); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("of no blob: %v", err)
	}
	if _, err := p.store.Address(t.Context(), "../"+marker, time.Hour); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("of another object: %v", err)
	}
	p.write(path(key), []byte("jello"))
	if _, _, etag := read("GET", at.URL, ""); etag == `"`+at.ETag+`"` {
		t.Error("a damaged blob has the ETag of the address")
	}
	if other, err := p.again(); err != nil {
		t.Error(err)
	} else if _, err := other.Address(t.Context(), key, time.Hour); err == nil {
		t.Error("a damaged blob has an address")
	}
	if os.Getenv("FLEETD_VERSITYGW") == "" || !strings.Contains(t.Name(), "versitygw") {
		return // the server in this process checks no signatures
	}
	time.Sleep(2 * time.Second)
	for name, address := range map[string]string{"expired": short.URL, "no signature": strings.Split(at.URL, "?")[0],
		"marker": strings.Replace(at.URL, path(key), marker, 1)} {
		if status, body, _ := read("GET", address, ""); status != 403 && status != 400 {
			t.Errorf("%s: %d %q", name, status, body)
		}
	}
	if status, _, _ := read("DELETE", at.URL, ""); status < 400 {
		t.Errorf("the address deletes: %d", status)
	}
}

func testHostileKeys(t *testing.T, p place) {
	whole, err := p.store.Put(t.Context(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	p.write("secret", []byte("secret"))
	before := p.names()
	for _, key := range []string{"", ".", "..", "x", "secret", marker, "incoming/X", "../secret", "../../etc/passwd",
		"/etc/passwd", "%2e%2e%2fsecret", whole + "/", whole + "/..", whole + "/../../secret", whole + "\x00",
		whole + "\n", strings.ToUpper(whole), whole[:63], whole + "0", path(whole), strings.Repeat("a", 64),
		strings.Repeat("../", 21) + "a"} {
		if _, err := p.store.Get(t.Context(), key); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("Get(%q): %v", key, err)
		}
		if _, err := readRange(t, p.store, key, 0, -1); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("OpenRange(%q): %v", key, err)
		}
		if err := p.store.DeleteFile(t.Context(), key); err != nil {
			t.Errorf("DeleteFile(%q): %v", key, err)
		}
	}
	if diff := cmp.Diff(before, p.names()); diff != "" {
		t.Errorf("objects before and after (-before +after):\n%s", diff)
	}
}

func testBrokenUploads(t *testing.T, p place) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	half, cancelHalf := context.WithCancel(t.Context())
	large := strings.Repeat("x", 1<<20)
	for name, tt := range map[string]struct {
		ctx  context.Context
		r    io.Reader
		size int64
		kind error
	}{
		"too short":       {t.Context(), strings.NewReader("hell"), 5, fleet.ErrInvalid},
		"empty":           {t.Context(), strings.NewReader(""), 5, fleet.ErrInvalid},
		"too long":        {t.Context(), strings.NewReader("hello!"), 5, fleet.ErrInvalid},
		"more than none":  {t.Context(), strings.NewReader("!"), 0, fleet.ErrInvalid},
		"large, too long": {t.Context(), strings.NewReader(large + "!"), 1 << 20, fleet.ErrInvalid},
		"breaks off": {t.Context(), io.MultiReader(strings.NewReader("he"), iotest.ErrReader(io.ErrUnexpectedEOF)), 5,
			fleet.ErrInvalid},
		"breaks off half way": {t.Context(), io.MultiReader(strings.NewReader(large), iotest.ErrReader(fs.ErrClosed)), 2 << 20,
			fleet.ErrInvalid},
		"breaks off at its end": {t.Context(), io.MultiReader(strings.NewReader("hello"), iotest.ErrReader(fs.ErrClosed)), 5,
			fleet.ErrInvalid},
		"canceled": {canceled, strings.NewReader("hello"), 5, fleet.ErrUnavailable},
		"canceled half way": {half, io.MultiReader(strings.NewReader(large), readerFunc(func(b []byte) (int, error) {
			cancelHalf()
			return copy(b, "x"), nil
		})), 2 << 20, fleet.ErrUnavailable},
	} {
		if key, err := p.store.PutFile(tt.ctx, tt.r, tt.size); !errors.Is(err, tt.kind) {
			t.Errorf("%s: stored as %q, %v; want %v", name, key, err, tt.kind)
		}
	}
	if _, err := p.store.Put(canceled, []byte("hello")); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("Put, canceled: %v", err)
	}
	if left := p.names(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func testDamage(t *testing.T, p place) {
	key := keyOf([]byte("hello"))
	p.write(path(key), []byte("hellO"))
	for range 2 {
		if _, err := p.store.Get(t.Context(), key); !isDamaged(err) {
			t.Errorf("a damaged blob: %v", err)
		}
		if got, err := readRange(t, p.store, key, 4, 1); !isDamaged(err) {
			t.Errorf("a damaged blob was served: %q, %v", got, err)
		}
	}
	if _, err := p.store.Put(t.Context(), []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if got, err := readRange(t, p.store, key, 4, 1); err != nil || got != "o" {
		t.Errorf("stored again: %q, %v", got, err)
	}
}

func isDamaged(err error) bool {
	e, ok := errors.AsType[*fleet.Error](err)
	return ok && e.Code == "blob_damaged" && errors.Is(err, fleet.ErrUnavailable)
}

// S3 times are in whole seconds, but other bytes have another ETag.
func testReplaced(t *testing.T, p place) {
	key, err := p.store.PutFile(t.Context(), strings.NewReader("hello"), 5)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := readRange(t, p.store, key, 0, -1); err != nil || got != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	p.write(path(key), []byte("hellO"))
	for _, length := range []int64{-1, 3, 0} {
		if got, err := readRange(t, p.store, key, 0, length); !isDamaged(err) {
			t.Errorf("what replaced it was served: %q, %v", got, err)
		}
	}
	p.write(path(key), []byte("hello"))
	if got, err := readRange(t, p.store, key, 0, -1); err != nil || got != "hello" {
		t.Errorf("once it is whole again: %q, %v", got, err)
	}
}

func testDeletion(t *testing.T, p place) {
	keep, err := p.store.Put(t.Context(), []byte("keep"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := p.store.Put(t.Context(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readRange(t, p.store, key, 0, -1); err != nil {
		t.Fatal(err)
	}
	for range 2 { // deleting a missing blob is not an error
		if err := p.store.DeleteFile(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
	for _, length := range []int64{-1, 2, 0} {
		if _, err := readRange(t, p.store, key, 0, length); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("a deleted blob: %v", err)
		}
	}
	if diff := cmp.Diff([]string{path(keep)}, p.names()); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

func testSweeping(t *testing.T, p place) {
	key, err := p.store.Put(t.Context(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	p.write(incoming+"DRAFT", []byte("hell"))
	p.write(incoming+"DRAFT.18a.tmp", []byte("hell"))
	if err := p.store.bucket.sweep(t.Context(), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got := p.names(); len(got) != 3 {
		t.Errorf("objects %v: a young draft is swept, though it may be written now", got)
	}
	if err := p.store.bucket.sweep(t.Context(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{path(key)}, p.names()); diff != "" {
		t.Errorf("objects after the sweep (-want +got):\n%s", diff)
	}
}

func testSwapped(t *testing.T, p place) {
	key, err := p.store.Put(t.Context(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	p.swap()
	_, get := p.store.Get(t.Context(), key)
	_, read := readRange(t, p.store, key, 0, -1)
	for act, err := range map[string]error{"Get": get, "OpenRange": read} {
		if !errors.Is(err, fleet.ErrUnavailable) || !strings.HasPrefix(err.Error(), "blob_store.") {
			t.Errorf("%s: %v", act, err)
		}
	}
}

func testOpenedAgain(t *testing.T, p place) {
	key, err := p.store.PutFile(t.Context(), strings.NewReader("hello"), 5)
	if err != nil {
		t.Fatal(err)
	}
	before := p.names()
	again, err := p.again()
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got, err := readRange(t, again, key, 1, 3); err != nil || got != "ell" {
		t.Errorf("%q, %v", got, err)
	}
	if err := p.store.bucket.there(t.Context()); err != nil {
		t.Errorf("another process opened the bucket: %v", err)
	}
	if diff := cmp.Diff(before, p.names()); diff != "" {
		t.Errorf("objects before and after (-before +after):\n%s", diff)
	}
}

func testManyAtOnce(t *testing.T, p place) {
	data := strings.Repeat("x", 100_000)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			key, err := p.store.PutFile(t.Context(), strings.NewReader(data), int64(len(data)))
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := readRange(t, p.store, key, 99_998, -1); err != nil || got != "xx" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	wg.Wait()
	if got := p.names(); len(got) != 1 {
		t.Errorf("objects %v, want the blob alone", got)
	}
}

// Older versions wrote directories with another library: escaped names, attributes next to a
// blob, and temporary files.
func TestDirectoryOfOlderVersions(t *testing.T) {
	dir := t.TempDir()
	data := []byte("hello")
	key := keyOf(data)
	sum := sha256.Sum256(data)
	if hex.EncodeToString(sum[:]) != key {
		t.Fatal("the key is not the hash")
	}
	at := filepath.Join(dir, key[:2])
	old := time.Now().Add(-25 * time.Hour)
	for name, content := range map[string]string{
		filepath.Join(at, key): "hello",
		filepath.Join(at, key+".attrs"): `{"user.cache_control":"","user.content_disposition":"","user.content_encoding":"",` +
			`"user.content_language":"","user.content_type":"text/plain; charset=utf-8","user.metadata":null,"md5":"XUFAKrxLKna5cZ2REBfFkg=="}` + "\n",
		filepath.Join(dir, marker):                                "OLDMARK",
		filepath.Join(dir, "incoming", "DRAFT"):                   "hell",
		filepath.Join(dir, "incoming", "DRAFT.attrs"):             "{}",
		filepath.Join(dir, "incoming", "DRAFT.189a1b2c3d4e5.tmp"): "hel",
		filepath.Join(dir, "incoming", "__0x9__.tmp"):             "",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o777), os.WriteFile(name, []byte(content), 0o644),
			os.Chtimes(name, old, old)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got, err := s.Get(t.Context(), key); err != nil || string(got) != "hello" {
		t.Errorf("Get: %q, %v", got, err)
	}
	if got, err := readRange(t, s, key, 1, 3); err != nil || got != "ell" {
		t.Errorf("OpenRange: %q, %v", got, err)
	}
	if _, err := s.Put(t.Context(), data); err != nil {
		t.Error(err)
	}
	if left := files(t, dir); len(left) != 2 {
		t.Errorf("files %v: want the blob and its attributes", left)
	}
	if err := s.DeleteFile(t.Context(), key); err != nil {
		t.Error(err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if mark, err := os.ReadFile(filepath.Join(dir, marker)); err != nil || string(mark) != "OLDMARK" {
		t.Errorf("marker %q, %v", mark, err)
	}
}

// The files have the modes that the process's umask gives them, as in older versions, because
// a group may need to read them.
func TestModesFollowTheUmask(t *testing.T) {
	s, dir := open(t)
	key, err := s.Put(t.Context(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	plain, sub := filepath.Join(t.TempDir(), "plain"), filepath.Join(t.TempDir(), "sub")
	f, err := os.OpenFile(plain, os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := os.Mkdir(sub, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, pair := range [][2]string{{filepath.Join(dir, key[:2], key), plain}, {filepath.Join(dir, key[:2]), sub},
		{filepath.Join(dir, "incoming"), sub}} {
		got, err1 := os.Stat(pair[0])
		want, err2 := os.Stat(pair[1])
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if got.Mode() != want.Mode() {
			t.Errorf("%s has mode %v, want %v", pair[0], got.Mode(), want.Mode())
		}
	}
}
