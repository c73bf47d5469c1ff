package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

type ScheduleCommand struct {
	List   scheduleList   `cmd:"" default:"withargs" help:"List schedules (the default)."`
	Create scheduleCreate `cmd:"" help:"Repeat a call to many devices at planned times."`
	Show   scheduleShow   `cmd:"" help:"Show a schedule and its latest runs."`
	Pause  schedulePause  `cmd:"" help:"Pause a schedule."`
	Resume scheduleResume `cmd:"" help:"Resume a schedule."`
	Run    scheduleRun    `cmd:"" help:"Start a run now."`
	Delete scheduleDelete `cmd:"" help:"Delete a schedule and its runs; their bulk calls remain."`
}

const (
	scheduleHeading    = "ID NAME STATE CRON ZONE QUERY TOOL NEXT LAST"
	scheduleRunHeading = "PLANNED STATE STARTED DEVICES BULK-CALL REASON"
)

func (s Schedule) row() []string {
	next, last := "", ""
	if s.Next != nil {
		next = s.Next.PlannedAt.Format(time.DateTime)
	}
	if s.LastRun != nil {
		last = s.LastRun.State
	}
	return []string{s.ID, s.Name, s.State, s.Cron, s.TimeZone, s.Q, s.Tool, next, last}
}

func (r ScheduleRun) row() []string {
	started, reason := "", ""
	if r.StartedAt != nil {
		started = r.StartedAt.Format(time.DateTime)
	}
	if r.Reason != nil {
		reason = r.Reason.Message
	}
	if r.Omitted > 0 {
		reason += fmt.Sprintf(" (and %d earlier ones)", r.Omitted)
	}
	return []string{r.PlannedAt.Format(time.DateTime), r.State, started, strconv.FormatInt(r.Targets, 10),
		orEmpty(r.FanoutID), reason}
}

type scheduleList struct {
	clientFlags
	Limit int `help:"Print at most this many." default:"1000"`
}

func (c *scheduleList) Run(ctx context.Context) error {
	items, err := c.all(ctx, "/schedules", url.Values{}, c.Limit)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, scheduleHeading, Schedule.row)
}

type scheduleCreate struct {
	clientFlags
	Name      string        `arg:"" help:"Name of the schedule."`
	Tool      string        `arg:"" help:"Name of the tool."`
	Arguments string        `arg:"" optional:"" help:"Arguments as a JSON object." default:"{}"`
	Cron      string        `required:"" help:"Minute, hour, day of the month, month and day of the week (0 2 * * *)."`
	Zone      string        `help:"Time zone of the cron expression, such as Europe/Berlin." default:"UTC"`
	Query     string        `short:"q" help:"Filter of the devices. Default: all devices in service."`
	Jitter    time.Duration `help:"Start each run at a random moment within this time (10m)."`
	Start     time.Time     `help:"No run before this time (RFC 3339)." placeholder:"TIME"`
	End       time.Time     `help:"No run from this time on (RFC 3339)." placeholder:"TIME"`
	InFlight  int64         `help:"Maximum calls in flight at once. Default: 64."`
	Timeout   time.Duration `help:"Timeout of each call. Default: depends on the tool."`
	Wait      time.Duration `help:"How long a run waits for devices that are offline. Default: not at all."`
	DryRun    bool          `help:"Only show the next runs and how many devices would be called now."`
}

func (c *scheduleCreate) Run(ctx context.Context) error {
	arguments := json.RawMessage(c.Arguments)
	if !json.Valid(arguments) {
		return terminal.UsageError{Err: fmt.Errorf("arguments are not JSON: %s", c.Arguments)}
	}
	body := map[string]any{"name": c.Name, "tool": c.Tool, "arguments": arguments, "cron": c.Cron, "time_zone": c.Zone,
		"q": c.Query, "jitter_ms": c.Jitter.Milliseconds(), "max_in_flight": c.InFlight,
		"timeout_ms": c.Timeout.Milliseconds(), "offline_wait_ms": c.Wait.Milliseconds()}
	if !c.Start.IsZero() {
		body["start_at"] = c.Start
	}
	if !c.End.IsZero() {
		body["end_at"] = c.End
	}
	if c.DryRun {
		return c.preview(ctx, body)
	}
	return shown(&c.clientFlags, scheduleHeading, Schedule.row)(c.do(ctx, http.MethodPost, "/schedules", body))
}

func (c *scheduleCreate) preview(ctx context.Context, body any) error {
	answer, err := c.do(ctx, http.MethodPost, "/schedules/preview", body)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var p struct {
		Instants []time.Time
		Call     struct{ Matched, Targets int }
	}
	if err := json.Unmarshal(answer, &p); err != nil {
		return err
	}
	rows := make([][]string, len(p.Instants))
	for i, at := range p.Instants {
		rows[i] = []string{at.Format(time.DateTime)}
	}
	if err := terminal.Table("INSTANT", rows); err != nil {
		return err
	}
	fmt.Printf("\nNow: %d devices match, %d would be called.\n", p.Call.Matched, p.Call.Targets)
	return nil
}

// scheduleID names a schedule.
type scheduleID struct {
	clientFlags
	ID string `arg:"" help:"Id of the schedule."`
}

func (c *scheduleID) path(parts string) string { return "/schedules/" + url.PathEscape(c.ID) + parts }

type scheduleShow struct {
	scheduleID
	Runs  int    `help:"Print at most this many runs." default:"20"`
	State string `help:"Print only runs in this state: running, done, refused, missed or skipped."`
}

func (c *scheduleShow) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodGet, c.path(""), nil)
	if err != nil {
		return err
	}
	params := url.Values{}
	if c.State != "" {
		params.Set("state", c.State)
	}
	runs, err := c.all(ctx, c.path("/runs"), params, c.Runs)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(map[string]any{"schedule": answer, "runs": runs})
	}
	if err := shown(&c.clientFlags, scheduleHeading, Schedule.row)(answer, nil); err != nil {
		return err
	}
	fmt.Println()
	return listed(&c.clientFlags, runs, scheduleRunHeading, ScheduleRun.row)
}

type schedulePause struct {
	scheduleID
	Note string `help:"Why it is paused."`
}

func (c *schedulePause) Run(ctx context.Context) error {
	return shown(&c.clientFlags, scheduleHeading, Schedule.row)(c.do(ctx, http.MethodPost, c.path("/pause"),
		map[string]string{"note": c.Note}))
}

type scheduleResume struct{ scheduleID }

func (c *scheduleResume) Run(ctx context.Context) error {
	return shown(&c.clientFlags, scheduleHeading, Schedule.row)(c.do(ctx, http.MethodPost, c.path("/resume"), nil))
}

type scheduleRun struct{ scheduleID }

func (c *scheduleRun) Run(ctx context.Context) error {
	return shown(&c.clientFlags, scheduleRunHeading, ScheduleRun.row)(c.do(ctx, http.MethodPost, c.path("/run"), nil))
}

type scheduleDelete struct{ scheduleID }

func (c *scheduleDelete) Run(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, c.path(""), nil)
	return err
}
