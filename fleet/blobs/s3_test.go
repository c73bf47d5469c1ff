package blobs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"fleetd/fleet"
)

// Pauses between attempts would only slow the tests.
func init() { minio.DefaultRetryUnit = time.Millisecond }

// acts tries every operation of a store on a blob that it holds.
func acts(t *testing.T, s *Store, key string) map[string]error {
	_, put := s.Put(t.Context(), []byte("world"))
	_, putFile := s.PutFile(t.Context(), strings.NewReader(strings.Repeat("world", 100_000)), 500_000)
	_, get := s.Get(t.Context(), key)
	_, open := readRange(t, s, key, 0, -1)
	_, ranged := readRange(t, s, key, 1, 2)
	_, stat := readRange(t, s, key, 0, 0)
	return map[string]error{"Put": put, "PutFile": putFile, "Get": get, "OpenRange": open, "a range": ranged,
		"a range of no bytes": stat, "DeleteFile": s.DeleteFile(t.Context(), key)}
}

// detail returns the part of a store's failure that people see.
func detail(err error) string {
	e, ok := errors.AsType[*fleet.Error](err)
	if !ok {
		return ""
	}
	return fmt.Sprint(e.Reason())
}

func TestS3Failures(t *testing.T) {
	var hang chan struct{} // closed when the test ends
	for _, tt := range []struct {
		name, detail string
		fault        func(f *fakeS3, w http.ResponseWriter, r *http.Request) bool
	}{
		{"500", "500", func(_ *fakeS3, w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}},
		{"503 SlowDown", "S", func(_ *fakeS3, w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, `<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>`)
			return true
		}},
		{"403", "AccessDenied", func(_ *fakeS3, w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusForbidden)
			return true
		}},
		{"no answer", "timed out", func(_ *fakeS3, w http.ResponseWriter, r *http.Request) bool {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
			return true
		}},
		{"garbage", "", func(_ *fakeS3, w http.ResponseWriter, r *http.Request) bool {
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n")
				c.Close()
			}
			return true
		}},
		{"hangs up", "", func(_ *fakeS3, w http.ResponseWriter, r *http.Request) bool {
			panic(http.ErrAbortHandler)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeS3(t)
			hang = make(chan struct{})
			t.Cleanup(func() { close(hang) })
			s := f.open(t, 200*time.Millisecond)
			key, err := s.PutFile(t.Context(), strings.NewReader("hello"), 5)
			if err != nil {
				t.Fatal(err)
			}
			f.fail(func(w http.ResponseWriter, r *http.Request) bool { return tt.fault(f, w, r) })
			begin := time.Now()
			for act, err := range acts(t, s, key) {
				if !errors.Is(err, fleet.ErrUnavailable) {
					t.Errorf("%s: %v", act, err)
					continue
				}
				if text := detail(err); !strings.Contains(text, tt.detail) || strings.Contains(text, "127.0.0.1") {
					t.Errorf("%s: people are shown %q", act, text)
				}
				if strings.Contains(err.Error(), testSecretKey) {
					t.Errorf("%s: the error holds the secret: %v", act, err)
				}
			}
			if took := time.Since(begin); took > 60*time.Second {
				t.Errorf("it took %v to give up", took)
			}
			f.heal()
			if got, err := readRange(t, s, key, 0, -1); err != nil || got != "hello" {
				t.Errorf("once the server is well: %q, %v", got, err)
			}
			if _, err := s.Put(t.Context(), []byte("world")); err != nil {
				t.Errorf("once the server is well: %v", err)
			}
		})
	}
}

func TestS3IsAway(t *testing.T) {
	f := newFakeS3(t)
	s := f.open(t, time.Second)
	key, err := s.PutFile(t.Context(), strings.NewReader("hello"), 5)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	for act, err := range acts(t, s, key) {
		if !errors.Is(err, fleet.ErrUnavailable) || !strings.Contains(detail(err), "connection refused") {
			t.Errorf("%s: %v; people are shown %q", act, err, detail(err))
		}
	}
}

// A deleted bucket holds no blobs, but its blobs do not count as missing.
func TestS3BucketIsGone(t *testing.T) {
	f := newFakeS3(t)
	s := f.open(t, time.Second)
	key, err := s.PutFile(t.Context(), strings.NewReader("hello"), 5)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.memory.ForceDeleteBucket("blobs"); err != nil {
		t.Fatal(err)
	}
	for act, err := range acts(t, s, key) {
		if !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("%s: %v", act, err)
		}
	}
	if _, err := s.Get(t.Context(), key); err == nil || err.Error() != "blob_store.other_bucket" {
		t.Errorf("Get: %v", err)
	}
	f.make(t) // an empty bucket of the same name
	if _, err := s.Get(t.Context(), key); err == nil || err.Error() != "blob_store.other_bucket" {
		t.Errorf("Get from a new bucket: %v", err)
	}
}

// cut answers a request and breaks the connection after send bytes of the body.
func cut(w http.ResponseWriter, r *http.Request, body []byte, from, send int) {
	w.Header().Set("Content-Length", fmt.Sprint(len(body)-from))
	w.Header().Set("ETag", `"e"`)
	w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
	if r.Header.Get("Range") != "" {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(body)-1, len(body)))
		w.WriteHeader(http.StatusPartialContent)
	}
	w.Write(body[from:min(len(body), from+send)])
	if from+send < len(body) {
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

// Devices read slowly, and the server may close a connection in the meantime.
func TestS3ReadingGoesOnAfterABreak(t *testing.T) {
	f := newFakeS3(t)
	s := f.open(t, time.Second)
	data := bytes.Repeat([]byte("0123456789"), 30_000)
	var requests atomic.Int32
	f.fail(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, keyOf(data)) {
			return false
		}
		requests.Add(1)
		var from int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
		cut(w, r, data, from, 100_000)
		return true
	})
	if got, err := readRange(t, s, keyOf(data), 5, -1); err != nil || got != string(data[5:]) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(data)-5)
	}
	if n := requests.Load(); n != 3+3 {
		t.Errorf("%d requests, want three to check the blob and three to read it", n)
	}
	f.fail(func(w http.ResponseWriter, r *http.Request) bool {
		var from int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
		if from > 0 { // it breaks the connection, then never sends another byte
			cut(w, r, data, from, 0)
		}
		cut(w, r, data, from, 1000)
		return true
	})
	if got, err := readRange(t, s, keyOf(data), 0, -1); err == nil {
		t.Errorf("a body that breaks off for good gave %d bytes and no error", len(got))
	}
}

func TestS3BodyThatStalls(t *testing.T) {
	f := newFakeS3(t)
	s := f.open(t, 200*time.Millisecond)
	key := keyOf([]byte("hello"))
	f.fail(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Length", "5")
		w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
		io.WriteString(w, "he")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	})
	begin := time.Now()
	_, err := s.Get(t.Context(), key)
	if !errors.Is(err, fleet.ErrUnavailable) || !strings.Contains(detail(err), "timed out") {
		t.Errorf("Get: %v", err)
	}
	if got, err := readRange(t, s, key, 0, -1); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("OpenRange: %q, %v", got, err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("it took %v to give up", took)
	}
}

// A device that waits between two reads does not count as a stalled server.
func TestS3SlowReader(t *testing.T) {
	f := newFakeS3(t)
	s := f.open(t, 400*time.Millisecond)
	data := bytes.Repeat([]byte("0123456789"), 1_000_000) // more than the sockets hold
	key, err := f.open(t, time.Minute).PutFile(t.Context(), bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.OpenRange(t.Context(), key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	half := make([]byte, len(data)/2)
	_, err = io.ReadFull(r, half)
	time.Sleep(time.Second)
	rest, err2 := io.ReadAll(r)
	if err := errors.Join(err, err2); err != nil || !bytes.Equal(append(half, rest...), data) {
		t.Errorf("%d bytes, %v", len(half)+len(rest), err)
	}
}

func TestS3ServerWithoutRanges(t *testing.T) {
	f := newFakeS3(t)
	s := f.open(t, time.Second)
	key, err := s.PutFile(t.Context(), strings.NewReader("hello"), 5)
	if err != nil {
		t.Fatal(err)
	}
	f.fail(func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Del("Range")
		return false
	})
	if got, err := readRange(t, s, key, 1, 3); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("bytes of another range: %q, %v", got, err)
	}
}

// If the server answers before it has read the body, the reader must not be used any longer.
func TestS3UploadIsRefusedEarly(t *testing.T) {
	f := newFakeS3(t)
	s := f.open(t, time.Second)
	f.fail(func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(http.StatusInsufficientStorage)
		w.(http.Flusher).Flush()
		return true
	})
	var over atomic.Bool
	_, err := s.PutFile(t.Context(), readerFunc(func(p []byte) (int, error) {
		if over.Load() {
			t.Error("read after PutFile returned")
		}
		time.Sleep(time.Millisecond)
		return len(p), nil
	}), 64<<20)
	over.Store(true)
	if !errors.Is(err, fleet.ErrUnavailable) {
		t.Error(err)
	}
	f.heal()
	time.Sleep(20 * time.Millisecond)
}

// sink is a server that discards what it receives; a server with storage would use this
// process's memory.
func sink(t *testing.T) string {
	var mu sync.Mutex
	small := make(map[string][]byte)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("ETag", `"e"`)
		w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
		switch {
		case r.Method == http.MethodPut && r.Header.Get("X-Amz-Copy-Source") != "":
			io.WriteString(w, `<CopyObjectResult><ETag>"e"</ETag><LastModified>2026-01-01T00:00:00Z</LastModified></CopyObjectResult>`)
		case r.Method == http.MethodPut && r.ContentLength < 1000:
			small[r.URL.Path], _ = io.ReadAll(r.Body)
		case r.Method == http.MethodPut:
			io.Copy(io.Discard, r.Body)
		case r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		case r.URL.Query().Get("list-type") != "":
			io.WriteString(w, `<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>`)
		case small[r.URL.Path] != nil:
			w.Write(small[r.URL.Path])
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// zeros returns an image that needs no memory.
func zeros(size int64) io.Reader {
	return io.LimitReader(readerFunc(func(p []byte) (int, error) {
		clear(p)
		return len(p), nil
	}), size)
}

func TestUploadsTakeLittleMemory(t *testing.T) {
	withCredentials(t)
	dir, _ := open(t)
	s3, err := openS3(t.Context(), s3URL(sink(t)), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer s3.Close()
	const size = 64 << 20
	for name, s := range map[string]*Store{"directory": dir, "s3": s3} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := s.PutFile(t.Context(), zeros(size), size); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		runtime.ReadMemStats(&after)
		grown := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s: %d KiB allocated for an upload of %d MiB", name, grown>>10, size>>20)
		if grown > size/8 { // total allocation; little of it is live at a time
			t.Errorf("%s: %d KiB allocated for an upload of %d MiB", name, grown>>10, size>>20)
		}
	}
}

func TestOpenS3Refuses(t *testing.T) {
	f := newFakeS3(t)
	refuse := func(code string, status int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>no</Message></Error>`, code)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	for _, tt := range []struct{ address, want string }{
		{"s3://", "s3://bucket/prefix"},
		{"s3:blobs", "s3://bucket/prefix"},
		{"s3:///prefix", "s3://bucket/prefix"},
		{"s3://AB", "s3://bucket/prefix"},
		{"s3://blobs:9000/x", "s3://bucket/prefix"},
		{"s3://../x", "s3://bucket/prefix"},
		{"s3://blobs/../x", "relative part"},
		{"s3://blobs/a//b", "relative part"},
		{"s3://blobs/a%2f..%2fb", "relative part"},
		{"s3://blobs/%zz", "s3://bucket/prefix"},
		{"s3://blobs/x#y", "s3://bucket/prefix"},
		{"s3://blobs?region=%zz", "s3://bucket/prefix"},
		{"s3://key:hunter2@blobs/x", "AWS_SECRET_ACCESS_KEY"},
		{"s3://key:hunter2/%@blobs/x", "s3://bucket/prefix"},
		{"s3://blobs?secret=hunter2", "use endpoint or region"},
		{"s3://blobs?hunter2", "use endpoint or region"},
		{"s3://blobs?region=a&region=b", "region twice"},
		{"s3://blobs?endpoint=ftp://h", "https://host"},
		{"s3://blobs?endpoint=http://key:hunter2@h", "https://host"},
		{"s3://blobs?endpoint=http://h/path", "https://host"},
		{"s3://blobs?endpoint=http://h?secret=hunter2", "https://host"},
		{"s3://blobs?endpoint=http://", "https://host"},
		{"s3://absent?region=x&endpoint=" + f.URL, "create the bucket"},
		{"s3://blobs?region=x&endpoint=http://" + gone.Addr().String(), "check the endpoint"},
		{"s3://blobs?region=x&endpoint=http://" + silent.Addr().String(), "check the endpoint"},
		{"s3://blobs?region=x&endpoint=" + strings.Replace(f.URL, "http:", "https:", 1), "check the endpoint"},
		{"s3://blobs?region=x&endpoint=" + refuse("AccessDenied", 403), "s3:PutObject"},
		{"s3://blobs?region=x&endpoint=" + refuse("SignatureDoesNotMatch", 403), "correct AWS_ACCESS_KEY_ID"},
		{"s3://blobs?region=x&endpoint=" + refuse("InvalidAccessKeyId", 403), "correct AWS_ACCESS_KEY_ID"},
		{"s3://blobs?region=x&endpoint=" + refuse("RequestTimeTooSkewed", 403), "clock"},
		{"s3://blobs?region=x&endpoint=" + refuse("AuthorizationHeaderMalformed", 400), "region"},
		{"s3://blobs?region=x&endpoint=" + refuse("InternalError", 500), "check the endpoint"},
	} {
		s, err := openS3(t.Context(), tt.address, 200*time.Millisecond)
		if err == nil {
			s.Close()
			t.Errorf("%s was opened", tt.address)
			continue
		}
		if !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want text with %q, and no secret", tt.address, err, tt.want)
		}
	}
}

// A bucket that can be read but not written is refused at the start, even if its marker
// exists.
func TestOpenS3TriesToWrite(t *testing.T) {
	f := newFakeS3(t)
	f.open(t, time.Second)
	for method, want := range map[string]string{http.MethodPut: "written", http.MethodDelete: "written", "list": "listed"} {
		f.fail(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != method && (method != "list" || r.URL.Query().Get("list-type") == "") {
				return false
			}
			w.WriteHeader(http.StatusForbidden)
			return true
		})
		if _, err := openS3(t.Context(), s3URL(f.URL), time.Second); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "s3:ListBucket") {
			t.Errorf("%s is refused: %v", method, err)
		}
	}
}

func TestCredentialsOfS3(t *testing.T) {
	f := newFakeS3(t)
	withoutCredentials(t)
	if _, err := Open(t.Context(), s3URL(f.URL)); err == nil || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
		t.Errorf("without credentials: %v", err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "half")
	if _, err := Open(t.Context(), s3URL(f.URL)); err == nil || !strings.Contains(err.Error(), "AWS_SECRET_ACCESS_KEY") {
		t.Errorf("with half of them: %v", err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	file := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(file, []byte("[default]\naws_access_key_id = from-file\naws_secret_access_key = "+testSecretKey+"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	var signed atomic.Int32
	f.fail(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.Header.Get("Authorization"), "Credential=from-file/") {
			signed.Add(1)
		}
		return false
	})
	s, err := Open(t.Context(), s3URL(f.URL))
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if signed.Load() == 0 {
		t.Error("no request was signed with the credentials of the file")
	}
}
