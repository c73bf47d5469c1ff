package sim

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A script answers requests in turn and records when they came.
type script struct {
	start   time.Time
	answers []string // "<status> <body>"; the last one repeats
	at      []int    // seconds since the start, by path
	paths   []string
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	s.at = append(s.at, int(time.Since(s.start).Seconds()))
	s.paths = append(s.paths, strings.TrimPrefix(r.URL.Path, "/xiaozhi"))
	next := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	status, body, _ := strings.Cut(next, " ")
	code := map[string]int{"200": 200, "202": 202, "404": 404, "500": 500}[status]
	return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// play runs d against the script for the given time.
func play(t *testing.T, d *Device, length time.Duration, answers ...string) *script {
	s := &script{start: time.Now(), answers: answers}
	d.fleet.http.Transport = s
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	if err := d.fleet.Run(ctx); err != nil {
		t.Error(err)
	}
	return s
}

func TestPollBackOff(t *testing.T) {
	tests := []struct {
		name    string
		answers []string
		want    []int
	}{
		{"ten failures, then it gives up", []string{"500 "}, []int{0, 10, 30, 70, 150, 310, 630, 1270, 2550, 5110}},
		{"not JSON is a failure", []string{"200 <html>", "200 {}"}, []int{0, 10}},
		{"success ends it", []string{"404 ", "500 ", "200 {}"}, []int{0, 10, 30}},
		{"not an object is fine", []string{"200 []"}, []int{0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := vectorDevice(t)
				s := play(t, d, 10*time.Hour, tt.answers...)
				if diff := cmp.Diff(tt.want, s.at); diff != "" {
					t.Error(diff)
				}
				if got := d.fleet.Stats().Booted; got != 1 {
					t.Errorf("booted %d times", got)
				}
			})
		})
	}
}

func TestActivationSchedule(t *testing.T) {
	const code = `200 {"activation":{"code":"482913","message":"x","challenge":"c"}}`
	ten := func(answer string) (list []string) {
		for range 10 {
			list = append(list, answer)
		}
		return list
	}
	tests := []struct {
		name    string
		answers []string
		want    []int
	}{
		{"claimed while it waits", []string{code, "202 ", "202 ", "200 ", "200 {}"}, []int{0, 0, 3, 6, 6}},
		{"an error waits longer", []string{code, "500 ", "200 ", "200 {}"}, []int{0, 0, 10, 10}},
		{"ten tries, then a check", append(append([]string{code}, ten("202 ")...), "200 {}"), []int{0, 0, 3, 6, 9, 12, 15, 18,
			21, 24, 27, 30}},
		{"no challenge, no request", []string{`200 {"activation":{"code":"482913"}}`, "200 {}"}, []int{0, 100}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := vectorDevice(t)
				s := play(t, d, time.Hour, tt.answers...)
				if diff := cmp.Diff(tt.want, s.at); diff != "" {
					t.Errorf("%s\npaths %v", diff, s.paths)
				}
				if code := d.Code(); code != "" {
					t.Errorf("the screen still shows %s", code)
				}
			})
		})
	}
}

func TestActivationPath(t *testing.T) {
	for _, url := range []string{"http://h/xiaozhi/ota/", "http://h/xiaozhi/ota"} {
		synctest.Test(t, func(t *testing.T) {
			d := oneDevice(t, Options{OTAURL: url})
			s := play(t, d, time.Minute, `200 {"activation":{"code":"1","challenge":"c"}}`, "200 ", "200 {}")
			if s.paths[1] != "/ota/activate" {
				t.Errorf("%s: activates at %v", url, s.paths)
			}
		})
	}
}

// TestCrashes serves the answers of protocol 1.6. A crash is a restart, three seconds later, into
// the same answer.
func TestCrashes(t *testing.T) {
	tests := []struct {
		name, body string
		polls      int
		crashes    int64
	}{
		{"version with a v", `{"firmware":{"version":"v2.4.3","url":"u"}}`, 4, 4},
		{"version without url is not looked at", `{"firmware":{"version":"v2.4.3"}}`, 1, 0},
		{"endpoint with scheme", `{"mqtt":{"endpoint":"mqtt://h:1883"}}`, 4, 4},
		{"endpoint IPv6", `{"mqtt":{"endpoint":"[::1]:1883"}}`, 4, 4},
		{"long key", `{"mqtt":{"telemetry_interval":60}}`, 4, 4},
		{"long key in websocket", `{"websocket":{"telemetry_interval":"60"}}`, 4, 4},
		{"long key that is not copied", `{"mqtt":{"telemetry_interval":true}}`, 1, 0},
		{"long value", `{"mqtt":{"password":"` + strings.Repeat("x", 4000) + `"}}`, 4, 4},
		{"long body", `{"x":"` + strings.Repeat("x", 8192) + `"}`, 1, 1},
		{"two long values fit", `{"mqtt":{"a":"` + strings.Repeat("x", 3900) + `","b":"` + strings.Repeat("x", 3900) + `"}}`,
			1, 0},
		{"NVS full", `{"mqtt":{` + manyKeys(400) + `}}`, 4, 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := vectorDevice(t)
				s := play(t, d, 10*time.Second, "200 "+tt.body)
				if len(s.at) != tt.polls || d.fleet.Stats().Crashes != tt.crashes {
					t.Errorf("%d polls and %d crashes, want %d and %d", len(s.at), d.fleet.Stats().Crashes, tt.polls, tt.crashes)
				}
			})
		})
	}
}

func manyKeys(n int) string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf(`"k%d":1`, i)
	}
	return strings.Join(keys, ",")
}

func TestNVSKeepsWhatIsNotNamed(t *testing.T) {
	d := vectorDevice(t)
	for _, body := range []string{
		`{"mqtt":{"endpoint":"a:1","client_id":"c","username":"u","password":"p","publish_topic":"t","keepalive":60}}`,
		`{"mqtt":{"endpoint":"b:2","username":"","keepalive":"90"}}`,
		`{}`,
	} {
		if _, err := d.take(value(body)); err != nil {
			t.Fatal(err)
		}
	}
	want := nvs{endpoint: "b:2", clientID: "c", password: "p", topic: "t"}
	if d.nvs != want {
		t.Errorf("NVS holds %+v, want %+v", d.nvs, want)
	}
}
