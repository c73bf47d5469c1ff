package api

import (
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/fleet/schedule"
)

const nightly = `{"name":"nightly","cron":"0 2 * * *","time_zone":"Europe/Berlin","q":"-id:a085e3112255","tool":"self.audio_speaker.set_volume","arguments":{"volume":9},"jitter_ms":60000}`

func TestSchedules(t *testing.T) {
	w := newWorld(t)
	p := decode[schedulePreview](t, w.post(t, "/schedules/preview", nightly), 200)
	if len(p.Instants) != 10 || p.Call.Targets != 2 || p.Call.Offline != 1 {
		t.Errorf("the preview is %+v", p)
	}
	if all := decode[list[ScheduleView]](t, w.get(t, "/schedules"), 200); len(all.Items) != 0 || all.Items == nil {
		t.Errorf("a preview left %v", all.Items)
	}
	s := decode[ScheduleView](t, w.post(t, "/schedules", nightly), 201)
	if s.State != schedule.Active || s.Next == nil || !s.Next.PlannedAt.Equal(p.Instants[0]) || s.Last != nil ||
		s.MaxInFlight != 64 || string(s.Arguments) != `{"volume":9}` || s.Actor.Name != "admin-script" {
		t.Errorf("created %+v", s)
	}
	path := "/schedules/" + s.ID.String()
	run := decode[ScheduleRun](t, w.post(t, path+"/run", ""), 201)
	if run.State != schedule.Running && run.State != schedule.Done || !run.Manual || run.FanOutID == nil ||
		run.Targets != 2 {
		t.Errorf("run %+v", run)
	}
	w.await(t, "/fanouts/"+run.FanOutID.String())
	fleettest.Eventually(t, "the run is done", func() bool {
		runs := decode[list[ScheduleRun]](t, w.get(t, path+"/runs"), 200)
		return len(runs.Items) == 1 && runs.Items[0].State == schedule.Done
	})
	if runs := decode[list[ScheduleRun]](t, w.get(t, path+"/runs?state=missed"), 200); len(runs.Items) != 0 {
		t.Errorf("missed: %+v", runs.Items)
	}
	s = decode[ScheduleView](t, w.post(t, path+"/pause", `{"note":"works"}`), 200)
	if s.State != schedule.Paused || s.Note != "works" || s.Next != nil || s.Last == nil {
		t.Errorf("paused %+v", s)
	}
	if p := w.post(t, path+"/pause", `{}`).problem(t); p.Status != 409 || p.Code != "schedule_paused" {
		t.Errorf("paused again: %+v", p)
	}
	s = decode[ScheduleView](t, w.as(t, fleet.RoleOperator, "PATCH", path, `{"name":"weekly","cron":"0 2 * * 1","end_at":"2099-01-01T00:00:00Z"}`), 200)
	if s.Name != "weekly" || s.State != schedule.Paused || s.EndAt == nil || s.Tool != "self.audio_speaker.set_volume" {
		t.Errorf("changed %+v", s)
	}
	s = decode[ScheduleView](t, w.as(t, fleet.RoleOperator, "PATCH", path, `{"clear":["end_at"]}`), 200)
	if s.EndAt != nil || s.Name != "weekly" {
		t.Errorf("changed %+v", s)
	}
	if s = decode[ScheduleView](t, w.post(t, path+"/resume", ""), 200); s.State != schedule.Active || s.Next == nil {
		t.Errorf("resumed %+v", s)
	}
	if r := w.as(t, fleet.RoleOperator, "DELETE", path, ""); r.status != 204 {
		t.Errorf("deletion is answered %d %s", r.status, r.body)
	}
	if p := w.get(t, path).problem(t); p.Status != 404 || p.Code != "unknown_schedule" {
		t.Errorf("after it: %+v", p)
	}
}

// What is refused has a code, and leaves no schedule.
func TestRefusedSchedules(t *testing.T) {
	w := newWorld(t)
	change := func(old, value string) string { return strings.Replace(nightly, old, value, 1) }
	tests := []struct {
		name, body string
		status     int
		code       string
	}{
		{"words", change("0 2 * * *", "every night at two o'clock"), 422, "invalid_cron"},
		{"six fields", change("0 2 * * *", "* * * * * *"), 422, "invalid_cron"},
		{"unknown zone", change("Europe/Berlin", "Mars/Olympus"), 422, "unknown_time_zone"},
		{"never", change("0 2 * * *", "0 0 31 2 *"), 422, "schedule_never_runs"},
		{"end before start", change(`"jitter_ms"`, `"start_at":"2099-01-02T00:00:00Z","end_at":"2099-01-01T00:00:00Z","jitter_ms"`),
			422, "invalid_schedule_end"},
		{"huge jitter", change("60000", "86400001"), 422, "invalid_request"},
		{"jitter beyond the next instant", change(`"0 2 * * *"`, `"* * * * *"`), 201, ""},
		{"longer jitter", strings.Replace(change(`"0 2 * * *"`, `"* * * * *"`), "60000", "60001", 1), 422, "invalid_jitter"},
		{"a query that does not parse", change("-id:a085e3112255", `name:\"`), 422, "invalid_query"},
		{"arguments against the schema", change(`{"volume":9}`, `{"volume":900}`), 422, "schedule_calls_none"},
		{"an unknown tool", change("self.audio_speaker.set_volume", "self.fly"), 422, "schedule_calls_none"},
		{"two million characters", change("nightly", strings.Repeat("n", 2_000_000)), 413, "body_too_large"},
		{"no JSON", "{", 400, "malformed_json"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := w.post(t, "/schedules", tt.body)
			if tt.code == "" {
				s := decode[ScheduleView](t, r, tt.status)
				w.as(t, fleet.RoleOperator, "DELETE", "/schedules/"+s.ID.String(), "")
				return
			}
			if p := r.problem(t); p.Status != tt.status || p.Code != tt.code {
				t.Errorf("answered %d %s: %s", p.Status, p.Code, p.Detail)
			}
		})
	}
	if all := decode[list[ScheduleView]](t, w.get(t, "/schedules"), 200); len(all.Items) != 0 {
		t.Errorf("left %+v", all.Items)
	}
}

// A viewer, a language model and a token for other devices change no schedule; the last does not see it.
func TestSchedulesOfOthers(t *testing.T) {
	w := newWorld(t)
	s := decode[ScheduleView](t, w.post(t, "/schedules", nightly), 201)
	path := "/schedules/" + s.ID.String()
	for _, tt := range []struct {
		ask    operator.TokenRequest
		status int
		sees   bool
	}{
		{operator.TokenRequest{Name: "reader", Role: fleet.RoleViewer}, 403, true},
		{operator.TokenRequest{Name: "model", Kind: fleet.KindModel, Role: fleet.RoleAdmin, Tools: []string{"*"}}, 403, false},
		{operator.TokenRequest{Name: "hall", Role: fleet.RoleAdmin, Scope: "tag:hall"}, 404, false},
	} {
		t.Run(tt.ask.Name, func(t *testing.T) {
			who := fleet.Role(tt.ask.Name)
			_, secret, err := w.operators.NewToken(t.Context(), root, tt.ask)
			if err != nil {
				t.Fatal(err)
			}
			w.tokens[who] = secret
			for _, ask := range [][2]string{{"PATCH", ""}, {"DELETE", ""}, {"POST", "/pause"}, {"POST", "/resume"},
				{"POST", "/run"}} {
				body := "{}"
				if ask[0] == "DELETE" || ask[1] == "/run" || ask[1] == "/resume" {
					body = ""
				}
				if r := w.as(t, who, ask[0], path+ask[1], body); r.status != tt.status {
					t.Errorf("%s %s: %d, want %d: %s", ask[0], ask[1], r.status, tt.status, r.body)
				}
			}
			if tt.ask.Kind == fleet.KindModel {
				for _, at := range []string{"/schedules", path, path + "/runs"} {
					if r := w.as(t, who, "GET", at, ""); r.status != 403 {
						t.Errorf("GET %s: %d", at, r.status)
					}
				}
				return
			}
			all := decode[list[ScheduleView]](t, w.as(t, who, "GET", "/schedules", ""), 200)
			if sees := len(all.Items) == 1; sees != tt.sees {
				t.Errorf("sees it: %v, want %v", sees, tt.sees)
			}
			if r := w.as(t, who, "GET", path+"/runs", ""); (r.status == 200) != tt.sees {
				t.Errorf("its runs are answered %d", r.status)
			}
		})
	}
	if now := decode[ScheduleView](t, w.get(t, path), 200); !now.UpdatedAt.Equal(s.UpdatedAt) || now.Last != nil {
		t.Errorf("it is now %+v", now)
	}
}
