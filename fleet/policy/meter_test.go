package policy

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

func TestRateIsPerCallerAndTool(t *testing.T) {
	r := Rule{ID: uuid.New(), Name: "slow", Enabled: true, Decision: call.DecisionAllow, RatePerMinute: 2}
	s := service(t, r)
	p := proposal(fleet.KindProgram, "self.a")
	judge := func(want string) call.Verdict {
		t.Helper()
		v := s.Judge(p)
		if v.Reason.Code != want || (v.Decision == call.DecisionAllow) != (want == "") {
			t.Fatalf("%s %v, want %q", v.Decision, v.Reason, want)
		}
		return v
	}
	for range 5 { // previews do not count
		p.Preview = true
		judge("")
	}
	p.Preview = false
	judge("")
	judge("")
	v := judge("rate_exceeded")
	if wait := v.Reason.Params["retry_after_ms"]; wait != int64(30_000) || v.Reason.Params["limit"] != int64(2) ||
		v.Reason.Params["rule"] != "slow" {
		t.Errorf("parameters %v", v.Reason.Params)
	}
	p.Preview = true
	judge("rate_exceeded")
	p.Preview, p.Tool.Name = false, "self.b"
	judge("")
	p.Tool.Name, p.Principal.ID = "self.a", "8"
	judge("")
	p.Principal.ID, p.At = "7", p.At.Add(30*time.Second)
	judge("")
	judge("rate_exceeded")
	p.At = p.At.Add(-time.Hour) // the clock was set back
	judge("rate_exceeded")
	p.At = p.At.Add(24 * time.Hour)
	judge("")
	judge("")
	judge("rate_exceeded")
}

func TestBudgetEndsWithTheDay(t *testing.T) {
	r := Rule{ID: uuid.New(), Name: "few", Enabled: true, Decision: call.DecisionRequireApproval, DailyBudget: 3}
	s := service(t, r)
	p := proposal(fleet.KindModel, "self.a")
	p.At = time.Date(2026, 11, 22, 23, 59, 0, 0, time.UTC)
	s.meter.follow(false, p.At) // drops the counts loaded for the day
	s.meter.follow(true, p.At)
	s.meter.add(dayOf(p.At), []Use{{fleet.KindModel, "7", "self.a", 2}, {fleet.KindModel, "7", "self.b", 9},
		{fleet.KindProgram, "7", "self.a", 9}})
	if v := s.Judge(p); v.Decision != call.DecisionRequireApproval {
		t.Fatal(v)
	}
	v := s.Judge(p)
	if v.Decision != call.DecisionDeny || !v.Reason.Is("budget_spent") ||
		v.Reason.Params["resets_at"] != "2026-11-23T00:00:00Z" || v.Reason.Params["limit"] != int64(3) {
		t.Fatalf("%s %v", v.Decision, v.Reason)
	}
	p.At = p.At.Add(time.Minute)
	for i := range 4 {
		if v := s.Judge(p); (v.Decision == call.DecisionDeny) != (i == 3) {
			t.Errorf("call %d of the next day: %s %v", i+1, v.Decision, v.Reason)
		}
	}
}

// A device that keeps offering new tools does not make the meter grow without limit.
func TestMeterIsBounded(t *testing.T) {
	r := Rule{ID: uuid.New(), Name: "few", Enabled: true, Decision: call.DecisionAllow, DailyBudget: MaxBudget,
		RatePerMinute: MaxRate}
	s := service(t, r)
	s.meter.follow(true, start)
	p := proposal(fleet.KindModel, "")
	for i := range maxUses + 100 {
		p.Tool.Name = strconv.Itoa(i)
		p.At = p.At.Add(2 * time.Millisecond)
		if v := s.Judge(p); v.Decision != call.DecisionAllow {
			t.Fatalf("call %d: %v", i, v)
		}
	}
	if len(s.meter.spent) > maxUses+1 || len(s.meter.rates) > maxBuckets+1 {
		t.Errorf("%d uses, %d buckets", len(s.meter.spent), len(s.meter.rates))
	}
}
