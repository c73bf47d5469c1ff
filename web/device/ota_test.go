package device_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"pgregory.net/rapid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/device"
)

type pollVector struct {
	Name    string
	Headers map[string]string
	Body    string
	Expect  struct {
		DeviceID      string `json:"device_id"`
		ClientID      string `json:"client_id"`
		Version       string
		Chip          string
		Board         string
		RunningSlot   string `json:"running_slot"`
		ELFSHA256     string `json:"elf_sha256"`
		Carrier       string
		SerialPresent bool  `json:"serial_present"`
		JSONValid     *bool `json:"json_valid"`
		OTASlots      *int  `json:"ota_slots"`
		Reject        bool
		Suspicious    bool
	}
}

func pollVectors(t testing.TB) []pollVector {
	t.Helper()
	var file struct{ Requests []pollVector }
	text, err := os.ReadFile("testdata/ota_check.json")
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil || len(file.Requests) < 8 {
		t.Fatalf("%d requests: %v", len(file.Requests), err)
	}
	return file.Requests
}

// send sends a device's request and returns status, headers and body.
func (s *site) send(t testing.TB, method, path string, headers map[string]string, body io.Reader) (*http.Response,
	string) {
	t.Helper()
	r, err := http.NewRequest(method, s.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range headers {
		r.Header.Set(k, v)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// checkBearable fails unless a device can read the response.
func checkBearable(t testing.TB, resp *http.Response, body string) {
	t.Helper()
	if resp.StatusCode != 200 || resp.ContentLength != int64(len(body)) || len(resp.TransferEncoding) != 0 {
		t.Errorf("status %d, length %d of %d, coding %v: %s", resp.StatusCode, resp.ContentLength, len(body),
			resp.TransferEncoding, body)
	}
	if err := enrolment.CheckPollAnswer([]byte(body)); err != nil {
		t.Errorf("%v in %s", err, body)
	}
}

func TestPollVectors(t *testing.T) {
	for _, v := range pollVectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			s := newSite(t, fleet.EnrolOpen)
			resp, body := s.send(t, "POST", "/xiaozhi/ota/", v.Headers, strings.NewReader(v.Body))
			if v.Expect.Reject {
				if resp.StatusCode != 400 || !json.Valid([]byte(body)) {
					t.Errorf("status %d: %s", resp.StatusCode, body)
				}
				return
			}
			checkBearable(t, resp, body)
			if !strings.Contains(body, `"endpoint":"fleet.example.org:1883"`) || strings.Contains(body, "firmware") {
				t.Errorf("answer %s", body)
			}
			s.flush(t)
			checkPollVector(t, v, s)
		})
	}
}

func checkPollVector(t *testing.T, v pollVector, s *site) {
	id, err := fleet.ParseDeviceID(v.Headers["Device-Id"])
	if err != nil {
		t.Fatal(err)
	}
	p := s.stored(id).Poll
	want := func(what, got, expected string) {
		if expected != "" && got != expected {
			t.Errorf("%s is %q, want %q", what, got, expected)
		}
	}
	want("device", p.Device.MAC(), v.Expect.DeviceID)
	want("Client-Id", p.ClientID, v.Expect.ClientID)
	want("version", p.Version, v.Expect.Version)
	want("chip", p.Chip, v.Expect.Chip)
	want("board", p.Board, v.Expect.Board)
	want("slot", p.Slot, v.Expect.RunningSlot)
	want("build", p.ELFSHA256, v.Expect.ELFSHA256)
	if (p.SerialNumber != "") != v.Expect.SerialPresent {
		t.Errorf("serial number %q", p.SerialNumber)
	}
	if broken := v.Expect.JSONValid != nil && !*v.Expect.JSONValid; p.Broken != broken || p.Facts == nil {
		t.Errorf("broken: %v, facts %s", p.Broken, p.Facts)
	}
	if v.Expect.Carrier != "" && !strings.Contains(string(p.Facts), v.Expect.Carrier) {
		t.Errorf("no carrier in %s", p.Facts)
	}
	if suspicious := p.BodyMAC != "" && p.BodyMAC != p.Device.MAC(); suspicious != v.Expect.Suspicious {
		t.Errorf("body mac %q of device %s", p.BodyMAC, p.Device)
	}
	if p.Broken { // read from the headers alone
		want("board", p.Board, "bread-compact-wifi")
		want("version", p.Version, "2.4.2")
	}
	if p.Broken && len(p.Salvaged) == 0 {
		t.Error("nothing was salvaged")
	}
}

func TestActivationOverHTTP(t *testing.T) {
	s := newSite(t, fleet.EnrolByCode)
	v := pollVectors(t)[0]
	for _, path := range []string{"/xiaozhi/ota", "/xiaozhi/ota/"} {
		resp, body := s.send(t, "POST", path, v.Headers, strings.NewReader(v.Body))
		checkBearable(t, resp, body)
		if !strings.Contains(body, `"activation"`) || strings.Contains(body, `"mqtt"`) {
			t.Errorf("an unknown device got %s", body)
		}
	}
	activate := func() int {
		resp, _ := s.send(t, "POST", "/xiaozhi/ota/activate", v.Headers, strings.NewReader("{}"))
		return resp.StatusCode
	}
	if got := activate(); got != 202 {
		t.Errorf("before the claim: %d", got)
	}
	ann := fleet.Principal{Kind: fleet.KindOperator, Name: "ann", Role: fleet.RoleOperator}
	if err := s.enrolments.Approve(t.Context(), ann, unit, ""); err != nil {
		t.Fatal(err)
	}
	if got := activate(); got != 200 {
		t.Errorf("after the claim: %d", got)
	}
	seen, stop := s.presences.Watch(unit)
	defer stop()
	resp, body := s.send(t, "POST", "/xiaozhi/ota/", v.Headers, strings.NewReader(v.Body))
	checkBearable(t, resp, body)
	if strings.Contains(body, "activation") || !strings.Contains(body, `"mqtt"`) {
		t.Errorf("an enrolled device got %s", body)
	}
	if len(seen) != 1 {
		t.Error("the boot poll is no evidence")
	}
	// A stranger who knows the Device-Id creates no evidence.
	v.Headers["Client-Id"] = "00000000-6f0a-4c7e-9d0e-2d6f1f7a9b10"
	s.send(t, "POST", "/xiaozhi/ota/", v.Headers, strings.NewReader(v.Body))
	if len(seen) != 1 {
		t.Error("a poll with another Client-Id is evidence")
	}
}

// oddBodies are bodies that a device, or an impostor, could send.
func oddBodies(t testing.TB) map[string]string {
	good := pollVectors(t)[0].Body
	return map[string]string{
		"empty":             "",
		"null":              "null",
		"array":             "[1]",
		"number":            "7",
		"truncated":         good[:len(good)/2],
		"two values":        "{}{}",
		"not UTF-8":         "{\"board\":{\"name\":\"\xff\xfe\"}}",
		"NUL":               `{"board":{"name":"a\u0000b","ssid":"\u0000"},"\u0000":"\ud800"}`,
		"wrong types":       `{"board":[],"application":"x","ota":7,"chip_model_name":{},"mac_address":[[]]}`,
		"wrong inner types": `{"board":{"name":1,"type":null},"application":{"version":2,"elf_sha256":[]},"ota":{"label":false}}`,
		"deep":              strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000),
		"too deep":          strings.Repeat(`[`, 30000),
		"huge number":       `{"flash_size":1e999999,"x":` + strings.Repeat("9", 5000) + `}`,
		"huge text":         `{"board":{"name":"` + strings.Repeat("x", 50000) + `"}}`,
		"70 KB":             `{"x":"` + strings.Repeat("x", 70000) + `"}`,
		"odd hash":          `{"application":{"elf_sha256":"<script>"}}`,
	}
}

func TestOddPolls(t *testing.T) {
	for name, body := range oddBodies(t) {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, fleet.EnrolOpen)
			headers := map[string]string{"Device-Id": unit.MAC(), "Client-Id": uuid1, "User-Agent": "bread-compact-wifi/2.4.2"}
			resp, answer := s.send(t, "POST", "/xiaozhi/ota/", headers, strings.NewReader(body))
			checkBearable(t, resp, answer)
			s.flush(t)
			p := s.stored(unit).Poll
			checkCleaned(t, p)
			if known := p.ELFSHA256 != ""; p.Version != "2.4.2" || known != (name == "truncated") {
				t.Errorf("version %q, build %q", p.Version, p.ELFSHA256)
			}
		})
	}
}

// checkCleaned fails on text that PostgreSQL could not store.
func checkCleaned(t interface{ Errorf(string, ...any) }, p enrolment.BootPoll) {
	for _, s := range []string{p.Board, p.BoardType, p.Chip, p.Version, p.ELFSHA256, p.Slot, p.IDFVersion, p.UserAgent,
		p.Language,
		p.SerialNumber, p.BodyMAC, p.ClientID} {
		if len(s) > 200 || fleet.CleanText(s, 200) != s {
			t.Errorf("stored text %q", s)
		}
	}
	if len(p.Facts) > 16<<10 || bytes.Contains(p.Facts, []byte(`\u0000`)) || p.Facts != nil && !json.Valid(p.Facts) {
		t.Errorf("stored facts of %d bytes: %.200q", len(p.Facts), p.Facts)
	}
}

// TestAnyPollIsBearable sends arbitrary headers and bodies.
func TestAnyPollIsBearable(t *testing.T) {
	s := newSite(t, fleet.EnrolOpen)
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ -~]{0,300}`), rapid.Just(strings.Repeat("x", 4096)))
	rapid.Check(t, func(rt *rapid.T) {
		r := httptest.NewRequest("POST", "/xiaozhi/ota/", strings.NewReader(text.Draw(rt, "body")))
		r.Header.Set("Device-Id", rapid.OneOf(text, rapid.StringMatching(`[0-9A-F]{2}([:-][0-9a-f]{2}){5}`)).Draw(rt,
			"device"))
		for _, h := range []string{"Client-Id", "User-Agent", "Serial-Number", "Accept-Language", "Activation-Version"} {
			r.Header.Set(h, text.Draw(rt, h))
		}
		w := httptest.NewRecorder()
		s.Config.Handler.ServeHTTP(w, r)
		if _, err := fleet.ParseDeviceID(r.Header.Get("Device-Id")); err != nil {
			if w.Code != 400 || !json.Valid(w.Body.Bytes()) {
				rt.Errorf("status %d: %s", w.Code, w.Body)
			}
			return
		}
		if err := enrolment.CheckPollAnswer(w.Body.Bytes()); err != nil || w.Code != 200 {
			rt.Errorf("status %d, %v: %s", w.Code, err, w.Body)
		}
	})
	s.flush(t)
	for _, record := range s.polls.records {
		checkCleaned(t, record.Poll)
	}
}

func TestBrowserAtTheOTAAddress(t *testing.T) {
	s := newSite(t, fleet.EnrolByCode)
	resp, body := s.send(t, "GET", "/xiaozhi/ota/", nil, nil)
	if resp.StatusCode != 200 || !strings.Contains(body, "xiaozhi-esp32") ||
		!strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("status %d: %s", resp.StatusCode, body)
	}
	resp, body = s.send(t, "GET", "/xiaozhi/ota/", map[string]string{"Device-Id": unit.MAC(), "Client-Id": uuid1}, nil)
	checkBearable(t, resp, body)
}

func TestUnknownDevicesAreLimitedPerAddress(t *testing.T) {
	s := newSite(t, fleet.EnrolByCode)
	answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: "h:1883"})
	if err != nil {
		t.Fatal(err)
	}
	router := chi.NewRouter()
	device.New(device.Options{Enrolments: s.enrolments, Snapshots: s.snapshots, UnknownPerMinute: 5,
		BootPolls: bootPolls(s.enrolments, s.presences, answers, nil)}).Routes(router)
	poll := func(id fleet.DeviceID, from string) int {
		r := httptest.NewRequest("POST", "/xiaozhi/ota/", strings.NewReader("{}"))
		r.Header.Set("Device-Id", string(id))
		r.Header.Set("Client-Id", uuid1)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		router.ServeHTTP(w, r)
		return w.Code
	}
	poll(unit, "127.0.0.1:9")
	if err := s.enrolments.Approve(t.Context(), fleet.Principal{Name: "ann", Role: fleet.RoleOperator}, unit,
		""); err != nil {
		t.Fatal(err)
	}
	codes := map[int]int{}
	for i := range 20 {
		codes[poll(fleet.DeviceID(fmt.Sprintf("c%011x", i)), "192.0.2.7:1000")]++
	}
	if codes[200] > 10 || codes[429] < 10 {
		t.Errorf("statuses %v", codes)
	}
	if got := poll(unit, "192.0.2.7:1000"); got != 200 {
		t.Errorf("a known device from the same address: %d", got)
	}
	if got := poll("d00000000001", "127.0.0.1:9"); got != 200 {
		t.Errorf("an unknown device over loopback: %d", got)
	}
}

// BenchmarkPoll measures boot polls of 10,000 devices, each over a new connection as real devices
// do. Client and server share the machine, and the polls are written in the background meanwhile.
func BenchmarkPoll(b *testing.B) {
	b.Run("memory", func(b *testing.B) {
		s := newSite(b, fleet.EnrolOpen)
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error)
		go func() { done <- s.enrolments.Run(ctx) }()
		defer func() { cancel(); <-done }()
		benchmarkPolls(b, s)
	})
	b.Run("postgresql", func(b *testing.B) {
		benchmarkPolls(b, newStoredSite(b, testStore(b), fleet.EnrolOpen))
	})
}

func benchmarkPolls(b *testing.B, s *site) {
	v := pollVectors(b)[0]
	b.ResetTimer()
	var next atomic.Int64
	start, cpu := time.Now(), cpuTime()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r, _ := http.NewRequest("POST", s.URL+"/xiaozhi/ota/", strings.NewReader(v.Body))
			for k, val := range v.Headers {
				r.Header.Set(k, val)
			}
			r.Header.Set("Device-Id", fmt.Sprintf("%012x", next.Add(1)%10_000))
			resp, err := client.Do(r)
			if err != nil {
				b.Error(err)
				return
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	})
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "polls/s")
	b.ReportMetric((cpuTime()-cpu).Seconds()*1e6/float64(b.N), "cpu-µs/poll") // both ends; valid on a busy machine
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
