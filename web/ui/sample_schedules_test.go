package ui_test

import (
	"net/url"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/schedule"
	"fleetd/web/ui"
)

func sampleSchedule(paused bool) schedule.Schedule {
	s := schedule.Schedule{ID: uuid.NewSHA1(uuid.Max, []byte{1}), Name: "nightly volume", Cron: "0 2 * * *",
		TimeZone: "Europe/Berlin", Query: "board:esp-box-3", Within: "tag:lab", Tool: "self.audio_speaker.set_volume",
		Arguments: schema(`{"volume":40}`), Jitter: 10 * time.Minute, MaxInFlight: 64,
		Actor: fleet.Principal{Kind: fleet.KindOperator, Name: "anna"}, EndAt: ago(-1000 * time.Hour),
		Blocked: fleet.Because("actor_gone", "actor", "anna"), Next: &schedule.Instant{PlannedAt: now, DueAt: now},
		Last: &schedule.Run{State: schedule.Missed, PlannedAt: now.Add(-24 * time.Hour)}}
	if paused {
		s.ID = uuid.NewSHA1(uuid.Max, []byte{2})
		s.Paused, s.PausedBy, s.Note, s.Next, s.Last = true, "李雷", "works in the hall", nil, nil
	}
	return s
}

func schedulePage() templ.Component {
	p := ui.SchedulePage{Schedule: sampleSchedule(false), List: list("/schedules/x", ""), CanAct: true,
		Blocked: "…"}
	for i, state := range schedule.RunStates {
		at := now.Add(-time.Duration(i) * 24 * time.Hour)
		r := ui.ScheduleRunRow{Run: schedule.Run{PlannedAt: at, State: state, Targets: 4312, Manual: i == 1,
			Actor: fleet.Principal{Name: "anna"}}}
		switch state {
		case schedule.Running, schedule.Done:
			r.FanOut, r.StartedAt = uuid.Max, &at
		case schedule.Missed:
			r.Omitted, r.Why = 1_900_000, "…"
		}
		p.Runs = append(p.Runs, r)
	}
	return p.Page()
}

func scheduleForm() templ.Component {
	return ui.ScheduleFormPage{Values: url.Values{"q": {"board:esp-box-3"}, "tool": {tools[1].Name},
		"zone": {"Asia/Shanghai"}, "cron": {"0 2 * * *"}, "max_in_flight": {"64"}}, Matched: 4353, Tools: tools,
		Form: ui.NewToolForm(tools[1], schema(`{"volume":40}`)), Within: "tag:lab", Problem: "…",
		Preview: &schedule.Preview{Instants: []time.Time{now, now.Add(24 * time.Hour)},
			Call: call.FanOutPreview{Matched: 4353, Targets: 4312, NeedApproval: 1}}}.Page()
}
