package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/web/forms"
	"fleetd/web/i18n"
)

// A FanOutsPage lists fan-outs: GET [PathFanOuts].
type FanOutsPage struct {
	List   ListURL
	Rows   []FanOutRow
	Next   string
	CanAct bool
}

// A FanOutRow is one fan-out in a list.
type FanOutRow struct {
	ID        string
	At        time.Time
	Actor     fleet.Principal
	Tool      string
	Arguments string
	Query     string // "" if devices were checked
	State     call.FanOutState
	Done      int
	Targets   int
}

// NewFanOutRow returns a fan-out as a row.
func NewFanOutRow(f call.FanOut, p call.FanOutProgress) FanOutRow {
	return FanOutRow{
		ID: f.ID.String(), At: f.CreatedAt, Actor: f.Actor, Tool: f.Tool, Arguments: arguments(f.Arguments),
		Query: f.Query, State: f.State, Done: p.Done(), Targets: f.Targets,
	}
}

// A FanOutNewPage plans a call to many devices, in two steps on one page. GET [PathFanOutNew] with
// q or d chooses the audience; with tool it shows the tool's form; with step=preview it shows the
// preview. POST [PathFanOuts] with the same fields creates the fan-out; if the tool is user-only,
// confirm must be the number of devices.
type FanOutNewPage struct {
	Query       string
	ByQuery     bool // the query selects the audience, not the checkboxes
	Devices     []fleet.DeviceID
	Retry       uuid.UUID // the audience is the devices that failed in this fan-out; zero if not
	Matched     int
	Tools       []fleet.Tool // offered by the audience's devices
	Form        *ToolForm    // nil until a tool is chosen
	MaxInFlight int
	OfflineWait time.Duration       // 0: offline devices are skipped
	Interrupt   bool                // conversations are interrupted
	Preview     *call.FanOutPreview // nil until the form is filled in
	Arguments   json.RawMessage     // with Preview: the arguments as sent
	Problem     string              // why it is impossible, in the page's language
	CanAct      bool
}

// ask returns the fields that carry the audience from step to step.
func (v FanOutNewPage) ask() url.Values {
	switch {
	case v.Retry != uuid.Nil:
		return url.Values{"retry": {v.Retry.String()}}
	case v.ByQuery:
		return url.Values{"q": {v.Query}}
	}
	ids := make([]string, len(v.Devices))
	for i, id := range v.Devices {
		ids[i] = string(id)
	}
	return url.Values{"d": ids}
}

// equivalent returns what does the same as the form of the preview.
func (v FanOutNewPage) equivalent() forms.Equivalent {
	confirm := 0
	if v.word() != "" {
		confirm = v.Preview.Targets
	}
	return forms.FanOutEquivalent(v.Query, deviceIDs(v.Devices), v.Form.Tool.Name, v.Arguments,
		cmp.Or(v.MaxInFlight, call.DefaultInFlight), v.OfflineWait, v.Interrupt, confirm)
}

func deviceIDs(devices []fleet.DeviceID) (ids []string) {
	for _, id := range devices {
		ids = append(ids, string(id))
	}
	return ids
}

// changeURL returns from the preview to the form, with its values.
func (v FanOutNewPage) changeURL() string {
	q := v.ask()
	for name, values := range forms.Values(v.Form.Fields) {
		q[name] = values
	}
	q.Set("tool", v.Form.Tool.Name)
	q.Set("max_in_flight", v.inFlight())
	q.Set("offline_wait", v.offlineWait())
	if v.Interrupt {
		q.Set("interrupt", "on")
	}
	return PathFanOutNew + "?" + q.Encode()
}

// word returns the text that starts the fan-out once it is typed: the count, for tools that are for
// people only or disconnect the devices.
func (v FanOutNewPage) word() string {
	if v.Preview.MustType() {
		return strconv.Itoa(v.Preview.Targets)
	}
	return ""
}

// offlineWaits returns the choices of the wait for offline devices, including the one in the
// address.
func (v FanOutNewPage) offlineWaits() []time.Duration {
	all := []time.Duration{0, 5 * time.Minute, 15 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour}
	if !slices.Contains(all, v.OfflineWait) {
		all = append(all, v.OfflineWait)
		slices.Sort(all)
	}
	return all
}

// offlineWait returns the wait in minutes, as in the form.
func (v FanOutNewPage) offlineWait() string { return minutes(v.OfflineWait) }

func minutes(d time.Duration) string { return strconv.Itoa(int(d / time.Minute)) }

func (v FanOutNewPage) inFlight() string {
	if v.MaxInFlight > 0 {
		return strconv.Itoa(v.MaxInFlight)
	}
	return strconv.Itoa(call.DefaultInFlight)
}

// A FanOutPage is one fan-out: GET [FanOutPath]. POST its "cancel" ends it.
type FanOutPage struct {
	FanOut   call.FanOut
	Progress FanOutProgress
	Skipped  []fleet.DeviceCount // Value is the reason
	Compare  Comparison          // of devices on which the call failed, and succeeded
	CanAct   bool
}

// takesPictures reports whether devices send pictures for the fan-out's tool.
func (v FanOutPage) takesPictures() bool {
	return fleet.LinkOf(v.FanOut.Tool) == fleet.LinkUpload || fleet.UsesCamera(v.FanOut.Tool)
}

// A FanOutProgress is the changing part of a fan-out's page; a live stream sends it as a patch.
type FanOutProgress struct {
	FanOut  call.FanOut
	Counts  call.FanOutProgress
	Answers call.AnswerGroups
	By      call.AnswerGrouping
	CanAct  bool
}

// groupsURL returns the page with other groups of answers.
func (p FanOutProgress) groupsURL(field string, from int) string {
	v := url.Values{}
	if field != "" {
		v.Set("by", field)
	}
	if from > 0 {
		v.Set("from", strconv.Itoa(from))
	}
	if len(v) == 0 {
		return FanOutPath(p.id())
	}
	return FanOutPath(p.id()) + "?" + v.Encode()
}

// eventsURL returns the stream of the page, with the groups that it shows.
func (p FanOutProgress) eventsURL() string {
	return EventsURL(ViewFanOut, map[string][]string{"id": {p.id()}, "by": {p.By.Field},
		"from": {strconv.Itoa(p.By.Offset)}})
}

// fields returns the fields that answers can be grouped by, including the present one.
func (p FanOutProgress) fields() []string {
	if p.By.Field == "" || slices.Contains(p.Answers.Fields, p.By.Field) {
		return p.Answers.Fields
	}
	return append([]string{p.By.Field}, p.Answers.Fields...)
}

// failed returns how many calls ended without success.
func (p FanOutProgress) failed() (n int) {
	for s, count := range p.Counts.ByState {
		if s.Failed() {
			n += count
		}
	}
	return n
}

// retryURL plans the same call to the devices that did not succeed.
func (p FanOutProgress) retryURL() string {
	return PathFanOutNew + "?" + url.Values{"retry": {p.id()}, "tool": {p.FanOut.Tool}, "step": {"preview"}}.Encode()
}

func (p FanOutProgress) id() string { return p.FanOut.ID.String() }

// turns returns how many devices only wait for their turn.
func (p FanOutProgress) turns() int {
	return max(p.Counts.Waiting-p.Counts.AwaitOnline-p.Counts.InConversation, 0)
}

// A stateCount is one row of a fan-out's counts.
type stateCount struct {
	state fleet.CallState
	count int
}

func (p FanOutProgress) tally() []stateCount {
	var out []stateCount
	for _, s := range fleet.CallStates {
		if n := p.Counts.ByState[s]; n > 0 {
			out = append(out, stateCount{s, n})
		}
	}
	return out
}

// A part is a segment of a progress bar: ended calls with the same tone.
type part struct {
	tone        tone
	from, count int
}

// parts returns the ended calls, the successful ones first.
func (p FanOutProgress) parts() []part {
	byTone := make(map[tone]int)
	for s, n := range p.Counts.ByState {
		if s.Final() {
			byTone[toneOf(string(s))] += n
		}
	}
	var out []part
	from := 0
	for _, tn := range []tone{toneGood, toneNone, toneWarn, toneBad} {
		if n := byTone[tn]; n > 0 {
			out = append(out, part{tn, from, n})
			from += n
		}
	}
	return out
}

// callsURL returns the list of the fan-out's calls in one state; "" for all.
func (p FanOutProgress) callsURL(state fleet.CallState) string {
	v := url.Values{"fanout": {p.id()}}
	if state != "" {
		v.Set("state", string(state))
	}
	return PathCalls + "?" + v.Encode()
}

// reason returns the text of the reason why a device was left out.
func reason(ctx context.Context, code string) string {
	if key := "fanout.reason." + code; i18n.Has(key) {
		return t(ctx, key)
	}
	return code
}

// answerText returns the devices' answer, or the cause of their failure.
func answerText(ctx context.Context, a call.FanOutAnswer) (text string, foreign bool) {
	if a.Text != "" || a.Error == nil {
		return a.Text, true
	}
	return callErrorText(ctx, a.Error)
}
