package ui

import (
	"net/url"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/schedule"
)

// Addresses of schedules.
const (
	PathSchedules   = "/schedules"     // GET list, POST create
	PathScheduleNew = "/schedules/new" // GET q, tool, the fields of the form, step=preview
)

// SchedulePath is the page of a schedule. Parts are "edit" (GET, POST), "pause", "resume", "run" and
// "delete" (POST).
func SchedulePath(id string, parts ...string) string {
	return strings.Join(append([]string{PathSchedules, url.PathEscape(id)}, parts...), "/")
}

// A SchedulesPage lists schedules: GET [PathSchedules].
type SchedulesPage struct {
	List   ListURL
	Rows   []schedule.Schedule
	Next   string
	CanAct bool
}

// A SchedulePage is one schedule with its runs: GET [SchedulePath].
type SchedulePage struct {
	Schedule schedule.Schedule
	List     ListURL
	Runs     []ScheduleRunRow
	Next     string
	Blocked  string // why, in the page's language; "" if it is not blocked
	CanAct   bool
}

// A ScheduleRunRow is a run, with its reason in the page's language.
type ScheduleRunRow struct {
	schedule.Run
	Why string
}

// A ScheduleFormPage creates or changes a schedule: the devices and the tool in a first form, the times and
// the arguments in a second one.
type ScheduleFormPage struct {
	ID      string // "" for a new one
	Values  url.Values
	Matched int
	Tools   []fleet.Tool // offered by the devices, and the present one
	Form    *ToolForm    // nil until a tool is chosen
	Preview *schedule.Preview
	Within  string // filter of the viewer, to which the devices are held
	Problem string
}

func (v ScheduleFormPage) get(name string) string { return v.Values.Get(name) }

// path is the address of both forms.
func (v ScheduleFormPage) path() string {
	if v.ID == "" {
		return PathScheduleNew
	}
	return SchedulePath(v.ID, "edit")
}

// saves is the address of the second form.
func (v ScheduleFormPage) saves() string {
	if v.ID == "" {
		return PathSchedules
	}
	return SchedulePath(v.ID, "edit")
}

func (v ScheduleFormPage) title() string {
	if v.ID == "" {
		return "schedule.new"
	}
	return "schedule.edit"
}

func scheduleTone(s schedule.State) tone {
	switch s {
	case schedule.Active:
		return toneGood
	case schedule.Blocked:
		return toneBad
	case schedule.Paused:
		return toneWarn
	}
	return toneNone
}

func runTone(s schedule.RunState) tone {
	switch s {
	case schedule.Starting, schedule.Running:
		return toneBusy
	case schedule.Done:
		return toneGood
	case schedule.Refused, schedule.Missed:
		return toneBad
	}
	return toneWarn
}

// switchOf returns the act that changes whether a schedule runs.
func switchOf(s schedule.Schedule) string {
	if s.Paused {
		return "resume"
	}
	return "pause"
}

// runFilters are the states by which the list of runs can be narrowed.
var runFilters = []schedule.RunState{schedule.Done, schedule.Refused, schedule.Missed, schedule.Skipped}

// after returns how long after its instant a run started; 0 if it did not start.
func (r ScheduleRunRow) after() time.Duration {
	if r.StartedAt == nil || r.Manual {
		return 0
	}
	return r.StartedAt.Sub(r.PlannedAt).Truncate(time.Second)
}

func (v SchedulePage) id() string { return v.Schedule.ID.String() }
