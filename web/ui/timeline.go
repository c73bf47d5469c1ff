package ui

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// Timeline is the events of a device, newest first: a part of the device's first page, GET
// DevicePath(id) with show (subjects), day and cursor. A live stream sends changed entries as
// patches.
type Timeline struct {
	Device  fleet.DeviceID
	Kind    fleet.DeviceKind // of the device
	List    ListURL          // with show, day
	Subject []string
	Entries []fleet.TimelineEntry
	Next    string // cursor
	Bad     string // why it is unreadable; "" if it is readable
	CanCall bool   // the viewer may call the device
	// CanCancel contains the ids of the waiting calls that the viewer may cancel.
	CanCancel map[string]bool
}

// Row returns an entry of the timeline.
func (v Timeline) Row(e fleet.TimelineEntry) TimelineRow {
	return TimelineRow{Device: v.Device, Entry: e, URL: v.List.with("entry", e.Key), Chosen: v.List.Get("entry") == e.Key, CanCall: v.CanCall,
		CanCancel: e.Kind == fleet.TimelineCall && v.CanCancel[e.Ref]}
}

// A timelineSubject is a choice of the filter: kinds of entries that belong together.
type timelineSubject struct {
	name  string
	kinds []fleet.TimelineKind
}

// timelineSubjects are all subjects, in the order of the chips.
var timelineSubjects = []timelineSubject{
	{"presence", []fleet.TimelineKind{fleet.TimelinePresence}},
	{"calls", []fleet.TimelineKind{fleet.TimelineCall}},
	{"updates", []fleet.TimelineKind{fleet.TimelineDeployment, fleet.TimelineFirmware, fleet.TimelineInventory}},
	{"crashes", []fleet.TimelineKind{fleet.TimelineCrash}},
	{"changes", []fleet.TimelineKind{fleet.TimelineEdit, fleet.TimelineHold, fleet.TimelineConfiguration,
		fleet.TimelineAudit}},
	{"conversations", []fleet.TimelineKind{fleet.TimelineConversation}},
	{"pictures", []fleet.TimelineKind{fleet.TimelinePicture}},
}

// ParseTimelineSubjects reads the show parameter: names of subjects, separated by commas. It
// ignores unknown names.
func ParseTimelineSubjects(show string) (names []string, kinds []fleet.TimelineKind) {
	asked := strings.Split(show, ",")
	for _, s := range timelineSubjects {
		if slices.Contains(asked, s.name) {
			names, kinds = append(names, s.name), append(kinds, s.kinds...)
		}
	}
	return names, kinds
}

// toggled returns the address with the subject added or removed.
func (v Timeline) toggled(name string) string {
	var all []string
	for _, s := range timelineSubjects {
		if slices.Contains(v.Subject, s.name) != (s.name == name) {
			all = append(all, s.name)
		}
	}
	return v.List.With("show", strings.Join(all, ","))
}

// has reports whether the device may have entries of the subject.
func (v Timeline) has(name string) bool {
	return isBoard(v.Device, v.Kind) || slices.Contains([]string{"presence", "calls", "updates", "changes"}, name)
}

// subjectName returns the message of a subject's name: only a board has firmware, others only tools.
func (v Timeline) subjectName(name string) string {
	if !isBoard(v.Device, v.Kind) && name == "updates" {
		return "device.tab.inventory"
	}
	return "line.show." + name
}

func (v Timeline) shows(name string) string { return pressed(slices.Contains(v.Subject, name)) }

// latest reports whether the page shows the newest entries.
func (v Timeline) latest() bool { return v.List.Get("cursor") == "" && v.List.Get("day") == "" }

// sends reports whether a call that begins now is an entry of the page.
func (v Timeline) sends() bool {
	return v.latest() && (len(v.Subject) == 0 || slices.Contains(v.Subject, "calls"))
}

// beginsToday reports whether the newest entry is of today.
func (v Timeline) beginsToday(ctx context.Context) bool {
	return len(v.Entries) > 0 && dayText(ctx, v.Entries[0].At) == t(ctx, "line.today")
}

// newest returns the address of the newest entries.
func (v Timeline) newest() string {
	l := ListURL{v.List.Path, url.Values{}}
	if show := v.List.Get("show"); show != "" {
		l.Values.Set("show", show)
	}
	return l.At("")
}

// A timelineDay is a heading and the entries of that day.
type timelineDay struct {
	at      time.Time
	entries []fleet.TimelineEntry
}

func (v Timeline) days(ctx context.Context) (days []timelineDay) {
	zone, last := page(ctx).Zone, ""
	for _, e := range v.Entries {
		day := e.At.In(zone).Format(time.DateOnly)
		if day != last {
			days, last = append(days, timelineDay{at: e.At}), day
		}
		d := &days[len(days)-1]
		d.entries = append(d.entries, e)
	}
	return days
}

// dayText returns the name of a day: today, yesterday or its date.
func dayText(ctx context.Context, at time.Time) string {
	p := page(ctx)
	date := func(t time.Time) string { return t.In(p.Zone).Format(time.DateOnly) }
	switch date(at) {
	case date(p.Now):
		return t(ctx, "line.today")
	case date(p.Now.AddDate(0, 0, -1)):
		return t(ctx, "line.yesterday")
	}
	return i18n.Date(p.Lang, at.In(p.Zone))
}

func timeOfDay(ctx context.Context, at time.Time) string {
	return at.In(page(ctx).Zone).Format("15:04:05")
}

// A TimelineRow is one entry; a live stream replaces it by its id.
type TimelineRow struct {
	Device    fleet.DeviceID
	Entry     fleet.TimelineEntry
	URL       string // the page with this entry in full
	Chosen    bool   // it is shown in full
	CanCall   bool   // the viewer may call the device
	CanCancel bool   // the call waits, and the viewer may cancel it
}

func (r TimelineRow) id() string { return "entry-" + r.Entry.Key }

// lineIcons are the icons of the kinds.
var lineIcons = map[fleet.TimelineKind]string{
	fleet.TimelinePresence: "plug", fleet.TimelineCall: "calls", fleet.TimelineEdit: "pen", fleet.TimelineHold: "hold",
	fleet.TimelineDeployment: "campaigns", fleet.TimelineFirmware: "firmware", fleet.TimelineCrash: "warn",
	fleet.TimelineInventory: "fanouts", fleet.TimelineConfiguration: "settings", fleet.TimelineConversation: "voice",
	fleet.TimelinePicture: "picture", fleet.TimelineAudit: "approvals",
}

// tone returns the meaning of an entry for an operator on call; harmless entries have none.
func (r TimelineRow) tone() tone {
	switch e := r.Entry; e.Kind {
	case fleet.TimelinePresence, fleet.TimelineCall:
		return toneOf(e.Code)
	case fleet.TimelineDeployment:
		return deploymentTone(campaign.DeploymentState(e.Code))
	case fleet.TimelineCrash:
		if e.Code == fleet.TimelineCoreDump || r.number("crashes") > 0 || badResets[r.text("reset_reason")] {
			return toneBad
		}
	case fleet.TimelineHold:
		if e.Code == "device.hold" {
			return toneWarn
		}
	case fleet.TimelineFirmware:
		return toneGood
	}
	return toneNone
}

// badResets are the unintended reasons of restarts.
var badResets = map[string]bool{"panic": true, "watchdog": true, "brownout": true}

func (r TimelineRow) text(name string) string {
	s, _ := r.Entry.Params[name].(string)
	return s
}

func (r TimelineRow) number(name string) int64 {
	n, _ := r.Entry.Params[name].(int64)
	return n
}

func (r TimelineRow) reason(name string) fleet.Reason {
	reason, _ := r.Entry.Params[name].(fleet.Reason)
	return reason
}

func (r TimelineRow) took() time.Duration {
	return time.Duration(r.number("duration_ms")) * time.Millisecond
}

// edited returns the fields that an edit changed, as label and value.
func (r TimelineRow) edited(ctx context.Context) (all [][2]string) {
	for _, name := range []string{"name", "tags", "notes", "time_zone", "transport"} {
		if value, ok := r.Entry.Params[name].(string); ok {
			all = append(all, [2]string{t(ctx, "device."+name), cmp.Or(value, "–")})
		}
	}
	return all
}

func (r TimelineRow) until() (at time.Time, ok bool) {
	at, err := time.Parse(time.RFC3339, r.text("until_at"))
	return at, err == nil
}

func (r TimelineRow) deploymentURL() string {
	return CampaignPath(r.text("campaign"), "devices", string(r.Device))
}

// deploymentSays returns the reason of a deployment's state, for [phrase].
func (r TimelineRow) deploymentSays(ctx context.Context) string {
	if skip := r.text("skip"); skip != "" {
		return skipText(ctx, firmware.SkipReason(skip))
	}
	state := campaign.DeploymentState(r.Entry.Code)
	if reason := r.reason("reason"); !reason.Is("") && state.Failed() {
		return reasonText(ctx, reason)
	}
	return ""
}

func (r TimelineRow) diffURL() string {
	return DevicePath(r.Device, "firmware") + "?" +
		url.Values{"from": {r.text("before")}, "to": {r.text("inventory")}}.Encode() + "#diff"
}

// callError returns the cause of a failed call.
func (r TimelineRow) callError() *fleet.CallError {
	if r.text("error") == "" {
		return nil
	}
	return &fleet.CallError{Code: r.text("error"), Message: r.text("detail"), Params: r.reason("reason").Params}
}

// auditSays returns the action of an entry about the device itself.
func (r TimelineRow) auditSays(ctx context.Context) string {
	key := "line.audit." + strings.ReplaceAll(r.Entry.Code, ".", "_")
	if text, ok := known(ctx, key); ok {
		return text
	}
	return r.Entry.Code
}

func (r TimelineRow) deploymentState() campaign.DeploymentState {
	return campaign.DeploymentState(r.Entry.Code)
}

func (r TimelineRow) pictureAlt() string {
	if r.Entry.Code == fleet.TimelineCamera {
		return "camera.alt"
	}
	return "screen.alt"
}
