package server

import (
	"testing"
	"time"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/operator"
)

type scheduleJSON struct {
	ID, State string
	Next      *struct {
		PlannedAt time.Time `json:"planned_at"`
	}
	Blocked *struct{ Code string }
}

type runJSON struct {
	State    string
	FanoutID string `json:"fanout_id"`
	Targets  int
	Reason   *struct{ Code string }
}

// moveNext brings the next run of a schedule forward or back, and its job with it, so that the test does not
// wait for a minute of the clock.
func (d *testServer) moveNext(id string, by time.Duration) {
	d.t.Helper()
	for _, sql := range []string{
		`UPDATE schedules SET next_planned_at = date_trunc('second', now()) + $2 * interval '1 second',
			next_due_at = date_trunc('second', now()) + $2 * interval '1 second' WHERE id = $1::uuid`,
		`UPDATE river_job SET scheduled_at = now() + $2 * interval '1 second'
			WHERE kind = 'scheduled_run' AND args->>'schedule' = $1::text AND state = 'scheduled'`} {
		if _, err := d.pool.Exec(d.t.Context(), sql, id, by.Seconds()); err != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *testServer) runsOf(id string) []runJSON {
	d.t.Helper()
	var runs list[runJSON]
	d.rest("GET", "/schedules/"+id+"/runs", nil, &runs)
	return runs.Items
}

// A schedule calls the devices when it is due, says what it missed while the server was stopped, and starts
// nothing for a token that was revoked.
func TestScheduledCalls(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	f := d.simulate(sim.Options{Devices: 3, Seed: 7, TimeScale: 0.1, RecordCalls: 100})
	devices := d.listed(3)
	var s scheduleJSON
	made, secret, err := d.Operators.NewToken(t.Context(), testOperator, operator.TokenRequest{Name: "nightly",
		Role: fleet.RoleOperator})
	if err != nil {
		t.Fatal(err)
	}
	admin := d.token
	d.token = secret
	if status := d.rest("POST", "/schedules", map[string]any{"name": "nightly", "cron": "0 2 * * *", "time_zone": "UTC",
		"tool": "self.audio_speaker.set_volume", "arguments": map[string]any{"volume": 37}}, &s); status != 201 {
		t.Fatalf("answered %d", status)
	}
	d.token = admin

	d.moveNext(s.ID, 0)
	d.eventually("the run to end", func() bool {
		runs := d.runsOf(s.ID)
		return len(runs) == 1 && runs[0].State == "done" && runs[0].Targets == 3
	})
	for _, v := range devices {
		if got := deviceNamed(t, f, 3, v.ID).State().Volume; got != 37 {
			t.Errorf("the volume of %s is %d", v.ID, got)
		}
	}
	var calls list[callJSON]
	d.rest("GET", "/calls?fanout="+d.runsOf(s.ID)[0].FanoutID, nil, &calls)
	if len(calls.Items) != 3 || calls.Items[0].Actor.Name != "nightly" {
		t.Errorf("calls %+v", calls.Items)
	}

	d.moveNext(s.ID, -time.Hour) // the server is stopped at the instant
	d.restart()
	d.eventually("the missed run to be on record", func() bool {
		runs := d.runsOf(s.ID)
		return len(runs) == 2 && (runs[0].State == "missed" || runs[1].State == "missed")
	})

	if err := d.Operators.Revoke(t.Context(), testOperator, made.ID); err != nil {
		t.Fatal(err)
	}
	d.moveNext(s.ID, 0)
	d.eventually("the run to be refused", func() bool {
		runs := d.runsOf(s.ID)
		return len(runs) == 3 && runs[0].State == "refused" && runs[0].Reason.Code == "actor_gone"
	})
	d.rest("GET", "/schedules/"+s.ID, nil, &s)
	if s.State != "blocked" || s.Blocked == nil || s.Blocked.Code != "actor_gone" {
		t.Errorf("the schedule is %+v", s)
	}
	var fanOuts list[struct{ ID string }]
	if d.rest("GET", "/fanouts", nil, &fanOuts); len(fanOuts.Items) != 1 {
		t.Errorf("%d fan-outs, want the one of the run that was due", len(fanOuts.Items))
	}
}
