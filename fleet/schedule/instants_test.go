package schedule

import (
	"errors"
	"slices"
	"testing"
	"time"

	"fleetd/fleet"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestInstants(t *testing.T) {
	tests := []struct {
		name, cron, zone, start, end string
		after                        string
		want                         []string
	}{
		{name: "at the instant itself comes the next one", cron: "0 2 * * *", zone: "UTC", after: "2026-03-01T02:00:00Z",
			want: []string{"2026-03-02T02:00:00Z", "2026-03-03T02:00:00Z"}},
		{name: "Shanghai has no summer time", cron: "30 8 * * 1-5", zone: "Asia/Shanghai", after: "2026-03-27T12:00:00Z",
			want: []string{"2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z", "2026-04-01T00:30:00Z"}},
		// 29 March 2026: 02:00 becomes 03:00 at 01:00 UTC; 02:30 never comes.
		{name: "a skipped time runs once, at the jump", cron: "30 2 * * *", zone: "Europe/Berlin",
			after: "2026-03-28T00:00:00Z",
			want:  []string{"2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{name: "all times of a skipped hour are one", cron: "0,15,30,45 2,3 * * *", zone: "Europe/Berlin",
			after: "2026-03-29T00:30:00Z",
			want:  []string{"2026-03-29T01:00:00Z", "2026-03-29T01:15:00Z", "2026-03-29T01:30:00Z"}},
		// 25 October 2026: 03:00 becomes 02:00 at 01:00 UTC; 02:30 comes at 00:30 and 01:30.
		{name: "a time that comes twice runs the first time", cron: "30 2 * * *", zone: "Europe/Berlin",
			after: "2026-10-24T12:00:00Z",
			want:  []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{name: "between the two, the next day", cron: "30 2 * * *", zone: "Europe/Berlin", after: "2026-10-25T00:31:00Z",
			want: []string{"2026-10-26T01:30:00Z"}},
		{name: "a repeated hour is not run again", cron: "*/30 * * * *", zone: "Europe/Berlin",
			after: "2026-10-25T00:00:00Z",
			want:  []string{"2026-10-25T00:30:00Z", "2026-10-25T02:00:00Z", "2026-10-25T02:30:00Z"}},
		{name: "half an hour of summer time", cron: "15 2 * * *", zone: "Australia/Lord_Howe", after: "2026-10-03T12:00:00Z",
			want: []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		{name: "a leap day", cron: "0 0 29 2 *", zone: "UTC", after: "2026-03-01T00:00:00Z",
			want: []string{"2028-02-29T00:00:00Z"}},
		{name: "from the start on, the start included", cron: "0 * * * *", zone: "UTC", after: "2026-01-01T00:00:00Z",
			start: "2026-02-01T06:00:00Z", want: []string{"2026-02-01T06:00:00Z", "2026-02-01T07:00:00Z"}},
		{name: "up to the end, the end excluded", cron: "0 * * * *", zone: "UTC", after: "2026-01-01T00:00:00Z",
			end: "2026-01-01T03:00:00Z", want: []string{"2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z", ""}},
		{name: "never", cron: "0 0 31 2 *", zone: "UTC", after: "2026-01-01T00:00:00Z", want: []string{""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := Schedule{Cron: tt.cron, TimeZone: tt.zone}
			if tt.start != "" {
				start := at(t, tt.start)
				s.StartAt = &start
			}
			if tt.end != "" {
				end := at(t, tt.end)
				s.EndAt = &end
			}
			var got []string
			for _, i := range s.Instants(at(t, tt.after), len(tt.want)) {
				got = append(got, i.Format(time.RFC3339))
			}
			want := slices.DeleteFunc(slices.Clone(tt.want), func(text string) bool { return text == "" })
			if !slices.Equal(got, want) {
				t.Errorf("instants %v, want %v", got, want)
			}
		})
	}
}

// The jitter ends before the next instant, also where that comes sooner than usual.
func TestJitterKeepsTheOrder(t *testing.T) {
	most := func(d time.Duration) time.Duration { return max(0, d-1) }
	s := Schedule{Cron: "0 0,1 * * *", TimeZone: "UTC", Jitter: 3 * time.Hour}
	next := s.nextAfter(at(t, "2026-01-01T00:00:00Z").Add(-1), most)
	if got := next.DueAt.Sub(next.PlannedAt); got < 59*time.Minute || got >= time.Hour {
		t.Errorf("the run of 00:00 starts %v later; the next instant is an hour later", got)
	}
	if next = s.nextAfter(next.PlannedAt, most); next.DueAt.Sub(next.PlannedAt) < 3*time.Hour-time.Minute {
		t.Errorf("the run of 01:00 has the jitter %v", next.DueAt.Sub(next.PlannedAt))
	}
	for range 1000 {
		if d := randomWithin(time.Minute); d < 0 || d >= time.Minute {
			t.Fatalf("random delay %v of a minute", d)
		}
	}
	if d := randomWithin(0); d != 0 {
		t.Errorf("delay %v without a jitter", d)
	}
}

func TestTimesThatAreRefused(t *testing.T) {
	now := at(t, "2026-06-01T00:00:00Z")
	earlier, later := now.Add(-time.Hour), now.Add(time.Hour)
	tests := []struct {
		name        string
		s           Schedule
		code, field string
	}{
		{"no cron", Schedule{TimeZone: "UTC"}, "invalid_cron.fields", "cron"},
		{"words", Schedule{Cron: "every day at two o'clock", TimeZone: "UTC"}, "invalid_cron.syntax", "cron"},
		{"six fields", Schedule{Cron: "* * * * * *", TimeZone: "UTC"}, "invalid_cron.fields", "cron"},
		{"an interval", Schedule{Cron: "@every 1s", TimeZone: "UTC"}, "invalid_cron.fields", "cron"},
		{"minute 60", Schedule{Cron: "60 * * * *", TimeZone: "UTC"}, "invalid_cron.syntax", "cron"},
		{"a zone in the cron", Schedule{Cron: "TZ=UTC 0 0 * *", TimeZone: "UTC"}, "invalid_cron.syntax", "cron"},
		{"unknown zone", Schedule{Cron: "0 2 * * *", TimeZone: "Mars/Olympus"}, "unknown_time_zone.schedule", "time_zone"},
		{"no zone", Schedule{Cron: "0 2 * * *"}, "unknown_time_zone.schedule", "time_zone"},
		{"the zone of the machine", Schedule{Cron: "0 2 * * *", TimeZone: "Local"}, "unknown_time_zone.schedule", "time_zone"},
		{"the zone of each device", Schedule{Cron: "0 2 * * *", TimeZone: "device"}, "unknown_time_zone.schedule",
			"time_zone"},
		{"a path", Schedule{Cron: "0 2 * * *", TimeZone: "../../etc/passwd"}, "unknown_time_zone.schedule", "time_zone"},
		{"never", Schedule{Cron: "0 0 31 2 *", TimeZone: "UTC"}, "schedule_never_runs.cron", "cron"},
		{"not before the end", Schedule{Cron: "0 2 * * *", TimeZone: "UTC", EndAt: &later}, "schedule_never_runs.period",
			"end_at"},
		{"ended", Schedule{Cron: "0 2 * * *", TimeZone: "UTC", EndAt: &earlier}, "invalid_schedule_end.past", "end_at"},
		{"end before start", Schedule{Cron: "0 2 * * *", TimeZone: "UTC", StartAt: &later, EndAt: &now},
			"invalid_schedule_end.before_start", "end_at"},
		{"negative jitter", Schedule{Cron: "0 2 * * *", TimeZone: "UTC", Jitter: -1}, "invalid_jitter.range", "jitter_ms"},
		{"huge jitter", Schedule{Cron: "0 2 1 * *", TimeZone: "UTC", Jitter: 100 * 24 * time.Hour}, "invalid_jitter.range",
			"jitter_ms"},
		{"jitter beyond the next", Schedule{Cron: "* * * * *", TimeZone: "UTC", Jitter: 61 * time.Second},
			"invalid_jitter.gap", "jitter_ms"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.s.checkTimes(now)
			e, ok := errors.AsType[*fleet.Error](err)
			if !ok || !errors.Is(err, fleet.ErrInvalid) {
				t.Fatalf("error %v", err)
			}
			code := e.Code
			if which := e.Params.Case(); which != "" {
				code += "." + which
			}
			if code != tt.code || e.Field != tt.field {
				t.Errorf("refused with %s in %s, want %s in %s", code, e.Field, tt.code, tt.field)
			}
		})
	}
}

// A principal that is limited to some devices sees the schedules whose audience certainly lies among them.
func TestTerms(t *testing.T) {
	tests := []struct {
		query, within, filter string
		want                  bool
	}{
		{"tag:lab", "", "tag:lab", true},
		{"board:x TAG:Lab", "", "tag:lab", true},
		{"board:x", "tag:lab", "tag:lab", true},
		{"tag:lab", "", "tag:lab board:x", false},
		{"-tag:lab", "", "tag:lab", false},
		{`name:"x tag:lab y"`, "", "tag:lab", false},
		{"tag:lab,hall", "", "tag:lab", false},
		{"tag:hall,lab", "", "tag:lab,hall", true},
		{"", "", "tag:lab", false},
	}
	for _, tt := range tests {
		s := Schedule{Query: tt.query, Within: tt.within}
		q, err := fleet.ParseScope(tt.filter)
		if err != nil {
			t.Fatal(err)
		}
		has, sees := s.Terms(), true
		for _, term := range Terms(q) {
			sees = sees && slices.Contains(has, term)
		}
		if sees != tt.want {
			t.Errorf("%q within %q is seen by %q: %v, want %v", tt.query, tt.within, tt.filter, sees, tt.want)
		}
	}
}
