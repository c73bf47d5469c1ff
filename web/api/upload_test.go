package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/espimage/esptest"
	"fleetd/fleet/firmware"
	"fleetd/fleet/operator"
)

// upload sends a body unchanged.
func (w *world) upload(t testing.TB, path, mediaType string, body io.Reader) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL+prefix+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.tokens[fleet.RoleOperator])
	req.Header.Set("Content-Type", mediaType)
	resp, err := w.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	w.conforms(t, http.MethodPost, path, resp, data)
	return reply{resp.StatusCode, resp.Header, data}
}

func (w *world) push(t testing.TB, app esptest.App) imageView {
	t.Helper()
	r := w.upload(t, "/images", "application/octet-stream", bytes.NewReader(app.Bytes()))
	return decode[imageView](t, r, min(max(r.status, 200), 201)) // it may already exist
}

func TestUpload(t *testing.T) {
	w := newWorld(t)
	app := esptest.App{Version: "2.4.3", Size: 300_000}
	r := w.upload(t, "/images?board=bread-compact-wifi&notes=a%0Ab&file_name=app.bin", "", bytes.NewReader(app.Bytes()))
	i := decode[imageView](t, r, 201)
	if i.Version != "2.4.3" || i.Chip != "esp32s3" || i.Board != "bread-compact-wifi" || i.Notes != "a\nb" ||
		i.FileName != "app.bin" ||
		i.Size != int64(len(app.Bytes())) || i.ELFSHA256 != fmt.Sprintf("%x", app.ELFSHA256()) ||
		i.UploadedBy.Name != "operator-script" ||
		r.header.Get("Location") != prefix+"/images/"+i.SHA256 {
		t.Errorf("answered %v %s", r.header, r.body)
	}
	again := w.upload(t, "/images?board=esp-box-3", "application/x-www-form-urlencoded", bytes.NewReader(app.Bytes()))
	if second := decode[imageView](t, again, 200); second.Board != "bread-compact-wifi" || second.SHA256 != i.SHA256 {
		t.Errorf("the same image again is answered %s", again.body)
	}
	if got := w.get(t, "/images/"+strings.ToUpper(i.SHA256)); string(got.body) != string(r.body) {
		t.Errorf("the record is\n%s, the answer was\n%s", got.body, r.body)
	}
}

// A dry run reads the file as an upload does, and stores nothing.
func TestUploadDryRun(t *testing.T) {
	w := newWorld(t)
	app := esptest.App{Version: "v1.0"}
	r := w.upload(t, "/images?dry_run=true&board=esp-box-3", "", bytes.NewReader(app.Bytes()))
	i := decode[imageView](t, r, 200)
	if i.Version != "v1.0" || i.Board != "esp-box-3" || len(i.SHA256) != 64 || len(i.Warnings) == 0 {
		t.Errorf("answered %s", r.body)
	}
	if got := w.get(t, "/images/"+i.SHA256); got.status != 404 {
		t.Errorf("after a dry run the image is answered %d %s", got.status, got.body)
	}
	bad := app.Bytes()
	bad[len(bad)-1] ^= 1
	if r := w.upload(t, "/images?dry_run=true", "", bytes.NewReader(bad)); r.status != 422 {
		t.Errorf("a damaged file is answered %d %s", r.status, r.body)
	}
	stored := decode[imageView](t, w.upload(t, "/images", "", bytes.NewReader(app.Bytes())), 201)
	if stored.SHA256 != i.SHA256 {
		t.Errorf("stored as %s, the dry run said %s", stored.SHA256, i.SHA256)
	}
}

// A form may name the board after the file, as curl -F does.
func TestUploadForm(t *testing.T) {
	w := newWorld(t)
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	file, _ := form.CreateFormFile("file", "../../xiaozhi.bin")
	_, _ = file.Write(esptest.App{Size: 3 << 20}.Bytes()) // more than the memory for forms
	_ = form.WriteField("board", "bread-compact-wifi")
	_ = form.WriteField("notes", "from a form")
	_ = form.Close()
	i := decode[imageView](t, w.upload(t, "/images", form.FormDataContentType(), &body), 201)
	if i.Board != "bread-compact-wifi" || i.Notes != "from a form" || i.FileName != "xiaozhi.bin" || i.Size < 3_000_000 {
		t.Errorf("answered %+v", i)
	}
}

func TestBadUploads(t *testing.T) {
	w := newWorld(t)
	good := esptest.App{}.Bytes()
	broken := bytes.Clone(good)
	broken[len(broken)-100] ^= 1
	form := func(field string) (string, io.Reader) {
		var body bytes.Buffer
		f := multipart.NewWriter(&body)
		file, _ := f.CreateFormFile(field, "x.bin")
		_, _ = file.Write(good)
		_ = f.Close()
		return f.FormDataContentType(), &body
	}
	otherField, otherForm := form("firmware")
	tests := []struct {
		name, mediaType string
		body            io.Reader
		status          int
		code            string // "" accepts any: package espimage names the fault
	}{
		{"nothing", "application/octet-stream", http.NoBody, 422, ""},
		{"a text", "application/octet-stream", strings.NewReader("hello"), 422, ""},
		{"half an image", "application/octet-stream", bytes.NewReader(good[:len(good)/2]), 422, ""},
		{"a bit flipped", "application/octet-stream", bytes.NewReader(broken), 422, ""},
		{"noise of 2 MB", "application/octet-stream", bytes.NewReader(bytes.Repeat([]byte{0xE9, 1}, 1<<20)), 422, ""},
		{"a form without a file", otherField, otherForm, 422, "file_missing"},
		{"a form without a boundary", "multipart/form-data", bytes.NewReader(good), 400, "broken_body"},
		{"no form", "multipart/form-data; boundary=x", bytes.NewReader(good), 400, "broken_body"},
	}
	for _, tt := range tests {
		r := w.upload(t, "/images", tt.mediaType, tt.body)
		if p := r.problem(t); p.Status != tt.status || (tt.code != "" && p.Code != tt.code) || p.Code == "invalid_request" {
			t.Errorf("%s: answered %s", tt.name, r.body)
		}
	}
	if all := decode[list[imageView]](t, w.get(t, "/images"), 200); len(all.Items) != 0 {
		t.Errorf("bad uploads left %+v", all.Items)
	}
	if log := w.log.String(); strings.Contains(log, "request failed") {
		t.Errorf("bad input was logged as a failure: %s", log)
	}
}

// zeros is an infinite file that begins like an image. The counter is atomic: net/http may still
// read the body after the response has arrived.
type zeros struct{ sent atomic.Int64 }

func (z *zeros) Read(p []byte) (int, error) {
	clear(p)
	if z.sent.Add(int64(len(p))) == int64(len(p)) && len(p) > 0 {
		p[0] = 0xE9
	}
	return len(p), nil
}

// A declared length of 2 GB is refused before a byte of it is read.
func TestUploadClaimsTooMuch(t *testing.T) {
	w := newWorld(t)
	conn, err := net.Dial("tcp", w.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
	fmt.Fprintf(conn, "POST %s/images HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n\xe9\x01", prefix, w.tokens[fleet.RoleOperator], 2<<30)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var p problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != 413 || p.Code != "image_too_large" ||
		!resp.Close {
		t.Errorf("answered %d %+v, closing %t (%v)", resp.StatusCode, p, resp.Close, err)
	}
}

// 2 GB without a Content-Length end at the limit, a form's file too.
func TestUploadStreamsTooMuch(t *testing.T) {
	w := newWorld(t)
	formHead := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x.bin\"\r\n\r\n"
	for mediaType, head := range map[string]string{"application/octet-stream": "",
		"multipart/form-data; boundary=b": formHead} {
		file := &zeros{}
		r := w.upload(t, "/images", mediaType, io.MultiReader(strings.NewReader(head), io.LimitReader(file, 2<<30)))
		if p := r.problem(t); p.Status != 413 || p.Code != "image_too_large" {
			t.Errorf("%s: answered %s", mediaType, r.body)
		}
		if sent := file.sent.Load(); sent > 100<<20 {
			t.Errorf("%s: %d MiB were taken", mediaType, sent>>20)
		}
	}
	if all := decode[list[imageView]](t, w.get(t, "/images"), 200); len(all.Items) != 0 {
		t.Errorf("what was too large left %+v", all.Items)
	}
}

// No upload is wholly in memory. The test does not run in parallel with others, whose memory it
// would count.
func TestUploadMemory(t *testing.T) {
	a := newAPI(Options{Operators: operator.New(tokenStore{}), Firmware: firmware.New(firmware.Options{})})
	server := httptest.NewServer(mounted(a))
	defer server.Close()
	formHead := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x.bin\"\r\n\r\n"
	for mediaType, form := range map[string][2]string{"application/octet-stream": {},
		"multipart/form-data; boundary=b": {formHead, "\r\n--b--\r\n"}} {
		body := io.MultiReader(strings.NewReader(form[0]), io.LimitReader(&zeros{}, 60<<20), strings.NewReader(form[1]))
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+prefix+"/images", body)
		req.Header.Set("Authorization", "Bearer flt_bench")
		req.Header.Set("Content-Type", mediaType)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		resp.Body.Close()
		if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; resp.StatusCode != 422 || grown > 8 {
			t.Errorf("%s: answered %d, and allocated %d MiB", mediaType, resp.StatusCode, grown)
		}
	}
}

// An upload may take longer than any other request, as long as bytes arrive: here the time of other
// requests is over before its body is read.
func TestSlowUpload(t *testing.T) {
	w := newWorld(t)
	slow := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(rw)
		if err := errors.Join(c.SetReadDeadline(time.Now()), c.SetWriteDeadline(time.Now())); err != nil {
			t.Error(err)
		}
		mounted(w.api).ServeHTTP(rw, r)
	}))
	defer slow.Close()
	w.URL = slow.URL
	decode[imageView](t, w.upload(t, "/images", "", bytes.NewReader(esptest.App{Size: 200_000}.Bytes())), 201)
}

// A client that disconnects in the middle leaves nothing behind.
func TestUploadBreaksOff(t *testing.T) {
	w := newWorld(t)
	app := esptest.App{Size: 500_000}.Bytes()
	conn, err := net.Dial("tcp", w.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s/images HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n",
		prefix, w.tokens[fleet.RoleOperator], len(app))
	_, _ = conn.Write(app[:250_000])
	_ = conn.(*net.TCPConn).CloseWrite()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var p problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || p.Code != "broken_body" || p.Status != 400 {
		t.Errorf("answered %+v (%v)", p, err)
	}
	if all := decode[list[imageView]](t, w.get(t, "/images"), 200); len(all.Items) != 0 {
		t.Errorf("half an upload left %+v", all.Items)
	}
	if log := w.log.String(); strings.Contains(log, "request failed") {
		t.Errorf("a client that left was logged as a failure: %s", log)
	}
}

// A role that may not upload is refused before the body is read.
func TestUploadNeedsARole(t *testing.T) {
	w := newWorld(t)
	r := w.as(t, fleet.RoleViewer, http.MethodPost, "/images", strings.Repeat("x", 100_000))
	if p := r.problem(t); p.Status != 403 {
		t.Errorf("a viewer is answered %s", r.body)
	}
}
