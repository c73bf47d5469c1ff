package device_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/picture"
	"fleetd/web/device"
)

const (
	cameraBoundary = "----ESP32_CAMERA_BOUNDARY"
	neighbour      = fleet.DeviceID("a085e3112244")
	stranger       = fleet.DeviceID("a085e3119999")
)

// cameraSite receives the pictures of cameras.
type cameraSite struct {
	*site
	tokens *picture.VisionTokens
	camera string // its address
}

func newCameraSite(t *testing.T, explainer device.Explainer) *cameraSite {
	t.Helper()
	s := &cameraSite{site: newSite(t, fleet.EnrolOpen)}
	for _, id := range []fleet.DeviceID{unit, neighbour} {
		if _, err := s.enrolments.Poll(enrolment.BootPoll{Device: id, ClientID: uuid1, At: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	router := chi.NewRouter()
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	s.tokens = picture.NewVisionTokens(picture.VisionTokensOptions{Secret: make([]byte, 32), PublicURL: server.URL,
		Connection: func(fleet.DeviceID) (fleet.Connection, bool) { return fleet.Connection{}, false }})
	device.New(device.Options{Enrolments: s.enrolments, Snapshots: s.snapshots, VisionTokens: s.tokens,
		Explainer: explainer}).Routes(router)
	s.camera = server.URL + picture.VisionPath
	return s
}

// photoForm is the form that a stock camera writes.
func photoForm(question string, photo []byte) []byte {
	var b bytes.Buffer
	if question != "" {
		fmt.Fprintf(&b, "--%s\r\nContent-Disposition: form-data; name=\"question\"\r\n\r\n%s\r\n", cameraBoundary, question)
	}
	if photo != nil {
		fmt.Fprintf(&b, "--%s\r\nContent-Disposition: form-data; name=\"file\"; filename=\"camera.jpg\"\r\n"+
			"Content-Type: image/jpeg\r\n\r\n", cameraBoundary)
		b.Write(photo)
		b.WriteString("\r\n")
	}
	b.WriteString("--" + cameraBoundary + "--\r\n")
	return b.Bytes()
}

type explained struct {
	Success                   bool
	Action, Response, Message string
	status                    int
	body                      string
}

func (s *cameraSite) post(t *testing.T, id fleet.DeviceID, authorization string, body []byte) explained {
	t.Helper()
	r, err := http.NewRequest("POST", s.camera, struct{ io.Reader }{bytes.NewReader(body)}) // chunked
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "multipart/form-data; boundary="+cameraBoundary)
	r.Header.Set("Device-Id", id.MAC())
	r.Header.Set("Client-Id", uuid1)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.ContentLength != int64(len(text)) || len(text) == 0 || len(text) >= 8<<10 {
		t.Errorf("answer of %d bytes, Content-Length %d: %v", len(text), resp.ContentLength, err)
	}
	e := explained{status: resp.StatusCode, body: string(text)}
	if err := json.Unmarshal(text, &e); err != nil {
		t.Errorf("%d %s: %v", resp.StatusCode, text, err)
	}
	return e
}

func (s *cameraSite) bearer(id fleet.DeviceID) string {
	_, token := s.tokens.Address(id)
	return "Bearer " + token
}

func (s *cameraSite) shots() []picture.Snapshot {
	s.pictures.mu.Lock()
	defer s.pictures.mu.Unlock()
	return append([]picture.Snapshot(nil), s.pictures.shots...)
}

func TestPhotoIsKept(t *testing.T) {
	s := newCameraSite(t, nil)
	photo := jpegOf(drawing(320, 240))
	got := s.post(t, unit, s.bearer(unit), photoForm("What is\x07 this?", photo))
	shots := s.shots()
	if got.status != 200 || !got.Success || got.Action != "RESPONSE" || len(shots) != 1 ||
		!strings.Contains(got.Response, shots[0].ID.String()) {
		t.Fatalf("answered %+v, kept %+v", got, shots)
	}
	shot, data, err := s.snapshots.Picture(t.Context(), shots[0].ID)
	if err != nil || !bytes.Equal(data, photo) || shot.Kind != picture.SnapshotCamera || shot.Device != unit ||
		shot.Call != uuid.Nil || shot.Question != "What is this?" || shot.Width != 320 || shot.MediaType != "image/jpeg" {
		t.Errorf("kept %d bytes as %+v: %v", len(data), shot, err)
	}
}

func TestBadPhotos(t *testing.T) {
	s := newCameraSite(t, nil)
	good := photoForm("What is this?", jpegOf(drawing(32, 24)))
	huge := append(jpegOf(drawing(32, 24)), make([]byte, picture.MaxPhotoBytes)...)
	ours := s.bearer(unit)
	tests := []struct {
		name, authorization string
		id                  fleet.DeviceID
		body                []byte
		status              int
	}{
		{"no token", "", unit, good, 401},
		{"empty token", "Bearer ", unit, good, 401},
		{"wrong token", "Bearer x", unit, good, 401},
		{"wrong scheme", "Basic " + ours[7:], unit, good, 401},
		{"token of another device", s.bearer(neighbour), unit, good, 401},
		{"device that is not enrolled", s.bearer(stranger), stranger, good, 401},
		{"no device", ours, "", good, 400},
		{"not a form", ours, unit, []byte("hello"), 400},
		{"empty form", ours, unit, photoForm("", nil), 400},
		{"no picture", ours, unit, photoForm("What?", nil), 400},
		{"form that breaks off", ours, unit, good[:len(good)-200], 400},
		{"not a picture", ours, unit, photoForm("What?", []byte("<svg xmlns='http://www.w3.org/2000/svg'/>")), 415},
		{"picture that breaks off", ours, unit, photoForm("What?", jpegOf(drawing(320, 240))[:2000]), 415},
		{"too many pixels", ours, unit, photoForm("What?", jpegOf(drawing(4097, 1))), 413},
		{"too many bytes", ours, unit, photoForm("What?", huge), 413},
		{"giant body", ours, unit, photoForm("What?", make([]byte, 32<<20)), 413},
		{"giant question", ours, unit, photoForm(strings.Repeat("why ", 2000), []byte("x")), 413},
		{"many parts", ours, unit, append(bytes.Repeat(photoForm("a", nil)[:len(photoForm("a", nil))-
			len("--"+cameraBoundary+"--\r\n")], 20), good...), 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := s.post(t, tt.id, tt.authorization, tt.body)
			if got.status != tt.status || got.Success || got.Message == "" {
				t.Errorf("answered %d %s, want %d", got.status, got.body, tt.status)
			}
		})
	}
	if n := len(s.shots()); n != 0 {
		t.Errorf("%d pictures are kept", n)
	}
}

func TestManyPhotosOfOneDevice(t *testing.T) {
	s := newCameraSite(t, nil)
	body, ours := photoForm("What?", jpegOf(drawing(4, 4))), s.bearer(unit)
	statuses := map[int]int{}
	for range 40 { // a slot becomes free every three seconds
		statuses[s.post(t, unit, ours, body).status]++
	}
	if statuses[200] < 20 || statuses[429] == 0 || statuses[200]+statuses[429] != 40 {
		t.Errorf("answered %v", statuses)
	}
	if got := s.post(t, neighbour, s.bearer(neighbour), body); got.status != 200 {
		t.Errorf("another device is answered %+v", got)
	}
}

func TestVisionUpstream(t *testing.T) {
	photo := jpegOf(drawing(64, 48))
	var answer atomic.Value
	answer.Store(func(http.ResponseWriter) {})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts, err := r.MultipartReader()
		if err != nil {
			t.Error(err)
			return
		}
		var names []string
		contents := map[string]string{}
		for {
			part, err := parts.NextPart()
			if err != nil {
				break
			}
			data, _ := io.ReadAll(part)
			names = append(names, part.FormName()+" "+part.FileName())
			contents[part.FormName()] = string(data)
		}
		if fmt.Sprint(names) != "[question  file camera.jpg]" || contents["question"] != "What is \"this\"?" ||
			contents["file"] != string(photo) || r.Header.Get("Device-Id") != unit.MAC() ||
			r.Header.Get("Client-Id") != uuid1 || r.Header.Get("Authorization") != "Bearer up" || r.ContentLength <= 0 {
			t.Errorf("passed on %q with %v", names, r.Header)
		}
		answer.Load().(func(http.ResponseWriter))(w)
	}))
	defer upstream.Close()
	s := newCameraSite(t, device.NewVisionUpstream(upstream.URL+"/explain", "up", nil))
	post := func() explained { return s.post(t, unit, s.bearer(unit), photoForm("What is \"this\"?", photo)) }

	for _, body := range []string{`{"success":true,"action":"RESPONSE","response":"A <b>cup</b>.", "extra":[1]}`,
		` {"success":false,"message":"too dark"}`} {
		answer.Store(func(w http.ResponseWriter) { io.WriteString(w, body) })
		if got := post(); got.status != 200 || got.body != body {
			t.Errorf("%s is answered %d %s", body, got.status, got.body)
		}
	}
	bad := map[string]func(http.ResponseWriter){
		"text":    func(w http.ResponseWriter) { io.WriteString(w, "a cup") },
		"no flag": func(w http.ResponseWriter) { io.WriteString(w, `{"response":"a cup"}`) },
		"list":    func(w http.ResponseWriter) { io.WriteString(w, `[{"success":true}]`) },
		"too long": func(w http.ResponseWriter) {
			io.WriteString(w, `{"success":true,"response":"`+strings.Repeat("x", 8000)+`"}`)
		},
		"endless": func(w http.ResponseWriter) {
			for range 1 << 10 {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		},
		"status":   func(w http.ResponseWriter) { w.WriteHeader(401); io.WriteString(w, `{"success":true}`) },
		"redirect": func(w http.ResponseWriter) { w.Header().Set("Location", "http://127.0.0.1:1/"); w.WriteHeader(307) },
		"cut off":  func(w http.ResponseWriter) { panic(http.ErrAbortHandler) },
	}
	for name, f := range bad {
		answer.Store(f)
		if got := post(); got.status != 502 || got.Success || !strings.Contains(got.Message, "the picture is stored") {
			t.Errorf("%s: answered %d %s", name, got.status, got.body)
		}
	}
	if n := len(s.shots()); n != 2+len(bad) {
		t.Errorf("%d pictures are kept", n)
	}
	upstream.Close()
	if got := post(); got.status != 502 || strings.Contains(got.Message, "127.0.0.1") {
		t.Errorf("without an upstream: %d %s", got.status, got.body)
	}
}
