package api

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// A program can do the same as the console with the answers of a fan-out: page through the groups,
// group by a value, download them as a file, and call the failed devices again.
func TestFanOutAnswers(t *testing.T) {
	w := newWorld(t)
	var broken atomic.Bool
	broken.Store(true)
	status := fleet.Tool{Name: "self.get_device_status", Audience: fleet.AudienceModel,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`)}
	for i, id := range []fleet.DeviceID{unit, other} {
		w.listing(t, id, []fleet.Tool{status})
		w.link.Connect(id, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			if i == 1 && broken.Load() {
				return fleet.Answer{}, errors.New("=no")
			}
			return fleettest.Text(fmt.Sprintf(`{"speaker":{"volume":50},"id":%d}`, i)), nil
		})
	}
	const ask = `{"q":"","tool":"self.get_device_status","arguments":{"n":3},"max_in_flight":7}`
	first := decode[FanOutView](t, w.post(t, "/fanouts", ask), 201)
	at := "/fanouts/" + first.ID.String()
	w.await(t, at)

	page := decode[fanOutAnswersView](t, w.get(t, at+"/answers?limit=1"), 200)
	if page.Total != 2 || len(page.Items) != 1 || page.Next == nil ||
		!slices.Equal(page.Fields, []string{"id", "speaker.volume"}) {
		t.Errorf("the first page is %+v", page)
	}
	last := decode[fanOutAnswersView](t, w.get(t, at+"/answers?limit=1&cursor="+*page.Next), 200)
	if len(last.Items) != 1 || last.Next != nil || last.Items[0].State == page.Items[0].State {
		t.Errorf("the second page is %+v", last)
	}
	by := decode[fanOutAnswersView](t, w.get(t, at+"/answers?by=speaker.volume"), 200)
	fifty := func(a fanOutAnswerView) bool { return a.Text == "50" && a.Count == 1 }
	if by.Total != 2 || !slices.ContainsFunc(by.Items, fifty) {
		t.Errorf("by the volume there are %+v", by)
	}
	none := decode[fanOutAnswersView](t, w.get(t, at+"/answers?by=no.such"), 200)
	if !slices.ContainsFunc(none.Items, func(a fanOutAnswerView) bool { return a.NoField }) {
		t.Errorf("by a value that no answer has there are %+v", none)
	}
	for _, bad := range []string{"?cursor=x", "?cursor=-1", "?limit=0", "?limit=501", "?by=" + strings.Repeat("x", 201)} {
		if p := w.get(t, at+"/answers"+bad).problem(t); p.Status != 422 {
			t.Errorf("%.40s is answered %+v", bad, p)
		}
	}

	file := w.get(t, at+"/answers.csv")
	if file.status != 200 || file.header.Get("Content-Type") != "text/csv; charset=utf-8" ||
		!strings.Contains(file.header.Get("Content-Disposition"), "answers-"+first.ID.String()+".csv") {
		t.Fatalf("the file is answered %d %v", file.status, file.header)
	}
	lines, err := csv.NewReader(strings.NewReader(string(file.body))).ReadAll()
	if err != nil || len(lines) != 3 || lines[0][0] != "device" || lines[1][0] != string(unit) ||
		lines[1][4] != `{"speaker":{"volume":50},"id":0}` || lines[2][2] == "succeeded" {
		t.Errorf("the file is %q, %v", lines, err)
	}
	for _, path := range []string{"/answers", "/answers.csv"} {
		if p := w.get(t, "/fanouts/"+uuid.NewString()+path).problem(t); p.Status != 404 || p.Code != "unknown_fanout" {
			t.Errorf("%s of no fan-out is answered %+v", path, p)
		}
	}

	p := decode[previewView](t, w.post(t, at+"/retry", `{"dry_run":true}`), 200)
	if p.Matched != 1 || p.Targets != 1 {
		t.Errorf("calling again would be %+v", p)
	}
	broken.Store(false)
	r := w.post(t, at+"/retry", "")
	again := decode[FanOutView](t, r, 201)
	if again.RetryOf == nil || *again.RetryOf != first.ID || again.Targets != 1 || again.MaxInFlight != 7 ||
		string(again.Arguments) != `{"n":3}` || r.header.Get("Location") != prefix+"/fanouts/"+again.ID.String() {
		t.Errorf("calling again is answered %s", r.body)
	}
	if done := w.await(t, "/fanouts/"+again.ID.String()); done.Counts.Succeeded != 1 {
		t.Errorf("it ended %+v", done.Counts)
	}
	if p := w.post(t, "/fanouts/"+again.ID.String()+"/retry", "").problem(t); p.Status != 422 || p.Code != "empty_audience" {
		t.Errorf("calling again where all succeeded is answered %+v", p)
	}
}

// A running fan-out may be about to call its devices itself.
func TestFanOutThatRunsIsNotRetried(t *testing.T) {
	w := newWorld(t)
	turn, err := w.link.Queue(unit, fleet.KindOperator) // the device is busy: the fan-out waits
	if err != nil {
		t.Fatal(err)
	}
	defer turn.Done()
	f := decode[FanOutView](t, w.post(t, "/fanouts", `{"q":"","tool":"self.get_device_status"}`), 201)
	if p := w.post(t, "/fanouts/"+f.ID.String()+"/retry", "").problem(t); p.Status != 409 || p.Code != "fanout_open" {
		t.Errorf("calling again is answered %+v", p)
	}
}
