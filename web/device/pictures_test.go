package device_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/device"
)

const screenBoundary = "----ESP32_SCREEN_SNAPSHOT_BOUNDARY"

// form is the body of an upload as the stock device writes it.
func form(field string, picture []byte) []byte {
	var b bytes.Buffer
	b.WriteString("--" + screenBoundary + "\r\nContent-Disposition: form-data; name=\"" + field +
		"\"; filename=\"screenshot.jpg\"\r\nContent-Type: image/jpeg\r\n\r\n")
	b.Write(picture)
	b.WriteString("\r\n--" + screenBoundary + "--\r\n")
	return b.Bytes()
}

// upload posts a chunked body, identified by its address alone.
func upload(t *testing.T, url string, body []byte) (int, string) {
	t.Helper()
	r, err := http.NewRequest("POST", url, struct{ io.Reader }{bytes.NewReader(body)}) // length unknown: chunked
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "multipart/form-data; boundary="+screenBoundary)
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.ContentLength != int64(len(text)) || len(text) == 0 {
		t.Errorf("answer of %d bytes, Content-Length %d: %v", len(text), resp.ContentLength, err)
	}
	return resp.StatusCode, string(text)
}

func (s *site) uploadURL(t *testing.T, ttl time.Duration) (url string, call uuid.UUID) {
	t.Helper()
	call = uuid.Must(uuid.NewV7())
	url, err := s.snapshots.UploadURL(t.Context(), unit, call, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return url, call
}

func TestSnapshotUpload(t *testing.T) {
	for name, picture := range map[string][]byte{"image/jpeg": jpegOf(drawing(320, 240)),
		"image/png": pngOf(drawing(320, 240))} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, fleet.EnrolOpen)
			events := s.events.Subscribe(4, nil)
			defer events.Close()
			seen, stop := s.presences.Watch(unit)
			defer stop()
			url, call := s.uploadURL(t, time.Minute)
			if status, body := upload(t, url, form("file", picture)); status != 200 {
				t.Fatalf("status %d: %s", status, body)
			}
			e := <-events.C
			shot, data, err := s.snapshots.Picture(t.Context(), uuid.MustParse(e.Subject))
			if err != nil || !bytes.Equal(data, picture) || e.Kind != fleet.EventSnapshot {
				t.Fatalf("%d bytes kept, %v: %v", len(data), e, err)
			}
			if shot.Device != unit || shot.Call != call || shot.MediaType != name || shot.Width != 320 || shot.Height != 240 {
				t.Errorf("snapshot %+v", shot)
			}
			if len(seen) != 1 || (<-seen).Kind != fleet.EvidenceUpload {
				t.Error("the upload is no evidence")
			}
		})
	}
}

func TestUploadVectors(t *testing.T) {
	var file struct {
		Cases []struct {
			Name    string
			Headers map[string]string
			Body    string `json:"body_base64"`
			Expect  struct {
				FileField string `json:"file_field"`
				JPEGBytes int    `json:"jpeg_bytes"`
				Status    int    `json:"answer_status"`
			}
		}
	}
	text, err := os.ReadFile("testdata/http_uploads.json")
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, c := range file.Cases {
		body, err := base64.StdEncoding.DecodeString(c.Body)
		if err != nil || c.Expect.FileField == "" {
			continue
		}
		tried++
		s := newSite(t, fleet.EnrolOpen)
		// The vectors' picture is a frame of 22 bytes without an image: the server refuses it ...
		stub := body[bytes.Index(body, []byte{0xff, 0xd8}) : bytes.Index(body, []byte{0xff, 0xd9})+2]
		if want := c.Expect.JPEGBytes; want != 0 && len(stub) != want {
			t.Fatalf("%s: picture of %d bytes, want %d", c.Name, len(stub), want)
		}
		for _, real := range []bool{false, true} {
			sent, want := body, 415
			if real { // ... and accepts it with an image in the same frame.
				sent, want = bytes.Replace(body, stub, jpegOf(drawing(64, 48)), 1), c.Expect.Status
			}
			url, _ := s.uploadURL(t, time.Minute)
			r, _ := http.NewRequest("POST", url, struct{ io.Reader }{bytes.NewReader(sent)})
			r.Header.Set("Content-Type", c.Headers["Content-Type"])
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s, with an image %v: status %d, want %d", c.Name, real, resp.StatusCode, want)
			}
		}
	}
	if tried != 2 {
		t.Errorf("%d vectors tried, want 2", tried)
	}
}

// pngBomb is a PNG of few bytes that declares a huge picture.
func pngBomb(w, h uint32) []byte {
	b := pngOf(drawing(8, 8))
	binary.BigEndian.PutUint32(b[16:], w)
	binary.BigEndian.PutUint32(b[20:], h)
	binary.BigEndian.PutUint32(b[29:], crc32.ChecksumIEEE(b[12:29]))
	return b
}

// scanBomb is a JPEG header followed by many starts of scans.
func scanBomb() []byte {
	good := jpegOf(drawing(64, 64))
	return append(good[:len(good)-2], bytes.Repeat([]byte{0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0}, 1000)...)
}

func TestHostileUploads(t *testing.T) {
	good := jpegOf(drawing(64, 48))
	tests := []struct {
		name string
		body []byte
		want int
	}{
		{"a picture", form("file", good), 200},
		{"no form", good, 400},
		{"nothing", nil, 400},
		{"another field", form("picture", good), 400},
		{"empty file", form("file", nil), 415},
		{"truncated form", form("file", good)[:300], 400},
		{"truncated picture", form("file", good[:len(good)/2]), 415},
		{"text", form("file", []byte("<script>alert(1)</script>")), 415},
		{"GIF", form("file", []byte("GIF89a\x01\x00\x01\x00\x00\x00\x00;")), 415},
		{"JPEG in name only", form("file", append([]byte{0xff, 0xd8, 0xff, 0xe0}, make([]byte, 5000)...)), 415},
		{"PNG bomb", form("file", pngBomb(60000, 60000)), 413},
		{"PNG that lies within bounds", form("file", pngBomb(4096, 4096)), 415},
		{"wide", form("file", pngBomb(4097, 1)), 413},
		{"scan bomb", form("file", scanBomb()), 415},
		{"5 MB", form("file", append(bytes.Clone(good), make([]byte, 5<<20)...)), 413},
		{"5 MB before the file", append(form("other", make([]byte, 5<<20))[:5<<20], form("file", good)...), 413},
		{"a hundred parts", bytes.Repeat([]byte("--"+screenBoundary+
			"\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\nx\r\n"), 100), 400},
	}
	s := newSite(t, fleet.EnrolOpen)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := len(s.pictures.shots)
			url, _ := s.uploadURL(t, time.Minute)
			status, text := upload(t, url, tt.body)
			if status != tt.want || len(text) > 200 {
				t.Errorf("status %d, want %d: %s", status, tt.want, text)
			}
			if kept := len(s.pictures.shots) - before; kept != 0 != (tt.want == 200) {
				t.Errorf("%d snapshots kept", kept)
			}
			if again, _ := upload(t, url, form("file", good)); again != 403 {
				t.Errorf("a second use: status %d", again)
			}
		})
	}
}

func TestDeadLinks(t *testing.T) {
	s := newSite(t, fleet.EnrolOpen)
	good := form("file", jpegOf(drawing(64, 48)))
	expired, _ := s.uploadURL(t, -time.Second)
	preview, err := s.snapshots.PreviewURL(t.Context(), unit, uuid.New(), strings.Repeat("0", 64), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	token := strings.Split(preview, "/")[4]
	for name, url := range map[string]string{
		"expired":       expired,
		"unknown":       s.URL + "/u/" + strings.Repeat("A", 43),
		"short":         s.URL + "/u/x",
		"other purpose": s.URL + "/u/" + token,
	} {
		if status, text := upload(t, url, good); status != 403 {
			t.Errorf("%s: status %d: %s", name, status, text)
		}
	}
	if len(s.pictures.shots) != 0 {
		t.Errorf("%d snapshots kept", len(s.pictures.shots))
	}
}

func TestPreview(t *testing.T) {
	s := newSite(t, fleet.EnrolOpen)
	// The left half is red, the right half transparent: that becomes white.
	picture := image.NewNRGBA(image.Rect(0, 0, 1200, 900))
	draw.Draw(picture, image.Rect(0, 0, 600, 900), image.NewUniform(color.NRGBA{255, 0, 0, 255}), image.Point{}, draw.Src)
	key, err := s.snapshots.Preview(t.Context(), bytes.NewReader(pngOf(picture)), image.Pt(240, 240))
	if err != nil {
		t.Fatal(err)
	}
	url, err := s.snapshots.PreviewURL(t.Context(), unit, uuid.New(), key, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	path := strings.TrimPrefix(url, s.URL)
	resp, body := s.send(t, "GET", path, nil, nil)
	if resp.StatusCode != 200 || resp.ContentLength != int64(len(body)) ||
		resp.Header.Get("Content-Type") != "image/jpeg" {
		t.Fatalf("status %d, length %d of %d", resp.StatusCode, resp.ContentLength, len(body))
	}
	img, err := jpeg.Decode(strings.NewReader(body))
	if err != nil || img.Bounds().Size() != image.Pt(240, 180) || len(body) > 200<<10 {
		t.Errorf("picture of %v, %d bytes: %v", img.Bounds(), len(body), err)
	}
	left, leftGreen, _, _ := img.At(10, 90).RGBA()
	_, rightGreen, _, _ := img.At(230, 90).RGBA()
	if left>>8 < 240 || leftGreen>>8 > 15 || rightGreen>>8 < 240 {
		t.Errorf("colours: left red %d, green %d; right green %d", left>>8, leftGreen>>8, rightGreen>>8)
	}
	if resp, _ := s.send(t, "GET", path, nil, nil); resp.StatusCode != 403 {
		t.Errorf("a second fetch: status %d", resp.StatusCode)
	}
	if _, err := s.snapshots.Preview(t.Context(), strings.NewReader("no picture"), image.Point{}); err == nil {
		t.Error("text was taken for a picture")
	}
}

func TestUploadWhileBlobsAreAway(t *testing.T) {
	s := newSite(t, fleet.EnrolOpen)
	// A file in place of the blobs' directory stops even root.
	if err := os.RemoveAll(s.blobDir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.blobDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	url, _ := s.uploadURL(t, time.Minute)
	status, text := upload(t, url, form("file", jpegOf(drawing(64, 48))))
	if status != 503 || strings.Contains(text, filepath.Base(s.blobDir)) || len(s.pictures.shots) != 0 {
		t.Errorf("status %d: %s", status, text)
	}
}

// A device that sends its picture byte by byte is cut off by the server's own deadline, and delays
// no other request meanwhile.
func TestSlowUploadIsBounded(t *testing.T) {
	s := newSite(t, fleet.EnrolOpen)
	answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: "h:1883"})
	if err != nil {
		t.Fatal(err)
	}
	router := chi.NewRouter()
	device.New(device.Options{Enrolments: s.enrolments, Snapshots: s.snapshots,
		BootPolls: bootPolls(s.enrolments, s.presences, answers, nil)}).Routes(router)
	slow := httptest.NewUnstartedServer(router)
	slow.Config.ReadTimeout = 300 * time.Millisecond
	slow.Start()
	defer slow.Close()
	url, _ := s.uploadURL(t, time.Minute)
	body, feed := io.Pipe()
	defer feed.Close()
	go feed.Write(form("file", jpegOf(drawing(64, 48)))[:200])
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "POST", slow.URL+strings.TrimPrefix(url, s.URL), body)
	r.Header.Set("Content-Type", "multipart/form-data; boundary="+screenBoundary)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := client.Do(r); err == nil {
			resp.Body.Close()
			if resp.StatusCode != 400 {
				t.Errorf("the slow upload: status %d", resp.StatusCode)
			}
		}
	}()
	other, _ := s.uploadURL(t, time.Minute)
	if status, text := upload(t, other, form("file", jpegOf(drawing(64, 48)))); status != 200 {
		t.Errorf("an upload during the slow one: status %d: %s", status, text)
	}
	<-done
	if ctx.Err() != nil {
		t.Error("the slow upload was not cut off")
	}
}
