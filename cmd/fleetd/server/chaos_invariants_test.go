package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// A chaosInvariant is one row of the table of conditions that must hold within a
// time after a fault, or after the end of a seed.
type chaosInvariant struct {
	name   string
	within time.Duration
	broken func(*chaosWorld, *chaosLoad) findings // returns what does not hold now
}

// findings are the conditions that do not hold, one text each.
type findings []string

func (f *findings) addf(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

// afterFault must hold after each fault, under load.
var afterFault = []chaosInvariant{
	{"fleetd is ready", 45 * time.Second, notReady},
	{"a call succeeds", 30 * time.Second, callFails},
	{"presence is right", 60 * time.Second, presenceWrong},
}

// atTheEnd must hold once all requests have ended.
var atTheEnd = []chaosInvariant{
	{"presence is right", 60 * time.Second, presenceWrong},
	{"fan-outs end", 90 * time.Second, fanOutsOpen},
	{"campaigns end with right verdicts", 120 * time.Second, campaignsWrong},
	{"the register is right", 60 * time.Second, registerWrong},
	{"boards that joined are in the register", 90 * time.Second, joinsLost},
	{"each record is final", 75 * time.Second, callsOpen},
	{"memory and goroutines are back", 30 * time.Second, resourcesHeld},
	{"no call is refused for what is right", 0, callsRefused},
	{"no acknowledged call is lost", 0, acknowledgedLost},
	{"each record is true", 0, recordsUntrue},
	{"fan-outs end with right verdicts", 0, fanOutsWrong},
	{"approvals are as they were decided", 0, approvalsWrong},
	{"images that were taken are there", 0, uploadsWrong},
	{"one core led at a time", 0, leadersWrong},
	{"no device lost its connection to a core's failure", 0, devicesCut},
	{"no process panics", 0, panics},
}

// check waits for each invariant and records those that do not hold in time. The
// times of all start at the same moment.
func (w *chaosWorld) check(l *chaosLoad, when string, invariants []chaosInvariant) {
	began := time.Now()
	for _, in := range invariants {
		looked := time.Now()
		deadline := looked.Add(2 * time.Second) // earlier invariants may have used up the time
		within := in.within * time.Duration(w.schedule.size.slack)
		if began.Add(within).After(deadline) {
			deadline = began.Add(within)
		}
		broken := in.broken(w, l)
		for len(broken) > 0 && time.Now().Before(deadline) {
			time.Sleep(250 * time.Millisecond)
			broken = in.broken(w, l)
		}
		took := time.Since(began).Round(10 * time.Millisecond)
		if len(broken) == 0 {
			if time.Since(looked) > 2*time.Second {
				w.journal.notef("%s: %s after %v", when, in.name, took)
			}
			continue
		}
		const shown = 8
		more := ""
		if len(broken) > shown {
			more = fmt.Sprintf("\n    and %d more", len(broken)-shown)
			broken = broken[:shown]
		}
		w.breachf("%s, not within %v: %s\n    %s%s", when, took, in.name, strings.Join(broken, "\n    "), more)
	}
}

func notReady(w *chaosWorld, _ *chaosLoad) findings {
	if !w.isReady() {
		return findings{"a process does not work, or none decides"}
	}
	return nil
}

// callFails calls a device that has no fault and is connected.
func callFails(w *chaosWorld, l *chaosLoad) findings {
	for _, id := range slices.Sorted(maps.Keys(w.ids)) {
		connected, steady := w.seen.steady(id, time.Now().Add(-time.Second))
		if !connected || !steady || len(w.ids[id].Faults()) > 0 || w.inCampaign(id) {
			continue
		}
		var call chaosCall
		marker := l.newMarker()
		_, err := w.rest("POST", "/devices/"+string(id)+"/calls", map[string]any{"tool": chaosTool,
			"timeout_ms": chaosCallTimeout.Milliseconds(), "arguments": marker}, &call)
		if err != nil {
			return findings{err.Error()}
		}
		if call.State != fleet.CallSucceeded {
			return findings{fmt.Sprintf("call %s ended %s: %+v", call.ID, call.State, call.Error)}
		}
		return nil
	}
	return findings{"no device without a fault is connected"}
}

// settleTime is the time after which fleetd must have noticed a change at a
// device.
const settleTime = 2 * time.Second

func presenceWrong(w *chaosWorld, _ *chaosLoad) (broken findings) {
	asked := time.Now()
	devices, err := chaosList[deviceView](w, "/devices?limit=500")
	if err != nil {
		return findings{err.Error()}
	}
	shown := map[fleet.DeviceID]fleet.Presence{}
	for _, d := range devices {
		shown[fleet.DeviceID(d.ID)] = fleet.Presence(d.Presence)
	}
	for id := range w.ids {
		connected, steady := w.seen.steady(id, asked.Add(-settleTime))
		online := shown[id] == fleet.PresenceOnline || shown[id] == fleet.PresenceUnresponsive
		if steady && online != connected {
			broken.addf("%s is shown as %q; connected: %t", id, shown[id], connected)
		}
	}
	slices.Sort(broken)
	return broken
}

// A chaosFanOut is a fan-out as REST shows it.
type chaosFanOut struct {
	ID, State string
	Targets   int
	CreatedAt time.Time `json:"created_at"`
	Arguments chaosMarker
	Counts    map[string]int
	Skipped   []struct {
		Reason string
		Count  int
	} `json:"skipped_reasons"`
}

func fanOutsOpen(w *chaosWorld, _ *chaosLoad) (broken findings) {
	fanOuts, err := chaosList[chaosFanOut](w, "/fanouts?limit=500")
	if err != nil {
		return findings{err.Error()}
	}
	for _, f := range fanOuts {
		if f.State != "completed" {
			_, _ = w.rest("GET", "/fanouts/"+f.ID, nil, &f)
			broken.addf("fan-out %s (%s) is %s: %v", f.ID, f.Arguments, f.State, f.Counts)
		}
	}
	return broken
}

func campaignsWrong(w *chaosWorld, l *chaosLoad) (broken findings) {
	for _, id := range l.campaigns {
		broken = append(broken, w.campaignWrong(id)...)
	}
	return broken
}

func (w *chaosWorld) campaignWrong(id string) (broken findings) {
	var c struct {
		State       string
		PauseReason string `json:"pause_reason"`
		Reason      string
		Counts      map[string]int
	}
	if _, err := w.rest("GET", "/campaigns/"+id, nil, &c); err != nil {
		return findings{err.Error()}
	}
	if c.State == string(campaign.Paused) { // paused by a success rule; an operator resumes it
		w.journal.notef("campaign is paused: %s, %s", c.PauseReason, c.Reason)
		_, _ = w.rest("POST", "/campaigns/"+id+"/resume", nil, &c)
	}
	if !strings.HasPrefix(c.State, "completed") {
		broken.addf("campaign is %s: %v", c.State, c.Counts)
	}
	type deployment struct {
		DeviceID    fleet.DeviceID `json:"device_id"`
		State       campaign.DeploymentState
		Reason      string
		Skip        string
		ToELFSHA256 string `json:"to_elf_sha256"`
		Evidence    json.RawMessage
	}
	deployments, err := chaosList[deployment](w, "/campaigns/"+id+"/deployments?limit=500")
	if err != nil {
		return append(broken, err.Error())
	}
	failed := 0
	for _, d := range deployments {
		device := w.ids[d.DeviceID]
		runs := device.Firmware().ElfSHA256 == d.ToELFSHA256
		if d.State != campaign.DeploymentSucceeded && d.State != campaign.DeploymentSkipped {
			failed++
		}
		if runs != (d.State == campaign.DeploymentSucceeded) && d.Skip != string(firmware.SkipInstalled) {
			broken.addf("deployment of %s is %s (%s), and the device runs the image: %t; faults %v; %s",
				d.DeviceID, d.State, d.Reason, runs, device.Faults(), d.Evidence)
		}
	}
	if c.State == string(campaign.Completed) && failed > 0 {
		broken.addf("campaign is completed, and %d of its devices failed", failed)
	}
	return broken
}

func callsOpen(w *chaosWorld, _ *chaosLoad) (broken findings) {
	calls, err := chaosList[chaosCall](w, "/calls?state=pending,sent&limit=500")
	if err != nil {
		return findings{err.Error()}
	}
	for _, c := range calls {
		broken.addf("call %s (%s) of %s to %s, made %s, is %s", c.ID, c.Arguments, c.Tool, c.DeviceID,
			c.CreatedAt.Format("15:04:05.000"), c.State)
	}
	return broken
}

// chaosResources are the resources of an idle process.
type chaosResources struct{ goroutines, heap, connections float64 }

func (w *chaosWorld) resources() (chaosResources, error) {
	var r chaosResources
	p := w.leader()
	if p == nil {
		return r, errors.New("no process decides")
	}
	if status := p.probe("/debug/pprof/heap?gc=1"); status != http.StatusOK {
		return r, fmt.Errorf("the heap profile is answered %d", status)
	}
	resp, err := w.client.Get("http://" + p.admin + "/metrics")
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		n, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "go_goroutines":
			r.goroutines = n
		case "go_memstats_heap_alloc_bytes":
			r.heap = n
		case "fleetd_database_connections":
			r.connections = n
		}
	}
	return r, nil
}

// Growth that a process is allowed beyond its resources at the start.
const (
	moreGoroutines = 100
	moreHeap       = 40 << 20
)

func resourcesHeld(w *chaosWorld, _ *chaosLoad) (broken findings) {
	now, err := w.resources()
	if err != nil {
		return findings{err.Error()}
	}
	if now.goroutines > w.atStart.goroutines*1.1+moreGoroutines {
		broken.addf("%.0f goroutines, %.0f at the start", now.goroutines, w.atStart.goroutines)
	}
	if now.heap > w.atStart.heap*1.5+moreHeap {
		broken.addf("heap of %.1f MB, %.1f MB at the start", now.heap/1e6, w.atStart.heap/1e6)
	}
	if now.connections > w.atStart.connections+8 {
		broken.addf("%.0f database connections in use, %.0f at the start", now.connections,
			w.atStart.connections)
	}
	if len(broken) == 0 {
		w.journal.notef("%.0f goroutines and a heap of %.1f MB; %.0f and %.1f MB at the start", now.goroutines, now.heap/1e6,
			w.atStart.goroutines, w.atStart.heap/1e6)
	}
	return broken
}

// callsRefused looks for answers that blame the client.
func callsRefused(_ *chaosWorld, l *chaosLoad) (broken findings) {
	for _, asked := range l.calls {
		if asked.status/100 == 4 {
			broken.addf("call %s was answered %d: %v", asked.marker, asked.status, asked.err)
		}
	}
	return broken
}

// acknowledgedLost compares each good answer with the records.
func acknowledgedLost(w *chaosWorld, l *chaosLoad) (broken findings) {
	calls, err := chaosList[chaosCall](w, "/calls?limit=500")
	if err != nil {
		return findings{err.Error()}
	}
	byID := map[string]chaosCall{}
	for _, c := range calls {
		byID[c.ID] = c
	}
	answered := map[fleet.CallState]int{}
	for _, asked := range l.calls {
		if asked.status/100 != 2 {
			answered["(not answered)"]++
			continue
		}
		record, found := byID[asked.call.ID]
		answered[record.State]++
		switch {
		case !found:
			broken.addf("call %s (%s) was answered %d, %s, and is not on record", asked.call.ID, asked.marker,
				asked.status, asked.call.State)
		case asked.status == http.StatusOK && !asked.call.State.Final():
			broken.addf("call %s (%s) was answered 200 in the state %s", asked.call.ID, asked.marker, asked.call.State)
		case asked.status == http.StatusOK && asked.call.State != record.State:
			broken.addf("call %s (%s) was answered %s and is on record as %s", asked.call.ID, asked.marker,
				asked.call.State, record.State)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(broken) == 0 {
		w.journal.notef("%d calls asked for: %v; %d records; %d boot polls answered",
			len(l.calls), answered, len(calls), l.polls)
	}
	return broken
}

// truths are how often a call in each state may have run on its device.
var truths = map[fleet.CallState]struct{ least, most int }{
	fleet.CallSucceeded: {1, 1},
	fleet.CallToolError: {0, 1},
	fleet.CallTimedOut:  {0, 1},
	fleet.CallUnknown:   {0, 1},
	fleet.CallRefused:   {0, 0},
	fleet.CallInvalid:   {0, 0},
	fleet.CallOffline:   {0, 0},
	fleet.CallCanceled:  {0, 0},

	fleet.CallPendingApproval: {0, 0},
}

// A chaosOrder is one call to one device, as its client or fan-out intended it,
// or all restarts of the device.
type chaosOrder struct {
	tool   string
	marker chaosMarker
	device fleet.DeviceID
}

func orderOf(tool string, marker chaosMarker, device fleet.DeviceID) (order chaosOrder, known bool) {
	return chaosOrder{tool, marker, device}, tool == chaosTool || tool == fleet.ToolReboot
}

// executed counts what ran on the devices.
func (w *chaosWorld) executed() map[chaosOrder]int {
	ran := map[chaosOrder]int{}
	for id, device := range w.everyDevice() {
		for _, c := range device.Calls() {
			var marker chaosMarker
			_ = json.Unmarshal([]byte(c.Arguments), &marker)
			if order, known := orderOf(c.Tool, marker, id); known {
				ran[order]++
			}
		}
	}
	return ran
}

// recordsUntrue compares each record with what ran on the device. A fan-out may
// have made a second call if the first was canceled.
func recordsUntrue(w *chaosWorld, _ *chaosLoad) (broken findings) {
	calls, err := chaosList[chaosCall](w, "/calls?limit=500")
	if err != nil {
		return findings{err.Error()}
	}
	records := map[chaosOrder][]chaosCall{}
	for _, c := range calls {
		if order, known := orderOf(c.Tool, c.Arguments, c.DeviceID); known {
			records[order] = append(records[order], c)
		}
	}
	ran, devices := w.executed(), w.everyDevice()
	for order, n := range ran {
		if len(records[order]) == 0 {
			broken.addf("%s %s ran %d times on %s, and there is no record", order.tool, order.marker, n,
				order.device)
		}
	}
	for order, made := range records {
		least, most := 0, 0
		var states []string
		for _, c := range made {
			least, most = least+truths[c.State].least, most+truths[c.State].most
			code := ""
			if c.Error != nil {
				code = " " + c.Error.Code
			}
			states = append(states, fmt.Sprintf("%s%s, made %s", c.State, code, c.CreatedAt.Format("15:04:05.000")))
		}
		if n := ran[order]; n < least || n > most || n > 1 && order.tool != fleet.ToolReboot {
			broken.addf("%s %s ran %d times on %s (%v), on record as %s", order.tool, order.marker, n,
				order.device, devices[order.device].Faults(), strings.Join(states, " and "))
		}
	}
	slices.Sort(broken)
	return broken
}

// Limits around a start of fleetd: a fan-out that resumes must not treat a
// device as "offline" if it was connected before and after the start within
// these times.
const (
	resumeTime  = 15 * time.Second
	comebackMax = 5 * time.Second
)

func fanOutsWrong(w *chaosWorld, l *chaosLoad) (broken findings) {
	fanOuts, err := chaosList[chaosFanOut](w, "/fanouts?limit=500")
	if err != nil {
		return findings{err.Error()}
	}
	known := map[string]bool{}
	var counts strings.Builder
	for _, f := range fanOuts {
		known[f.ID] = true
		if _, err := w.rest("GET", "/fanouts/"+f.ID, nil, &f); err != nil {
			return findings{err.Error()}
		}
		calls, err := chaosList[chaosCall](w, "/calls?limit=500&fanout="+f.ID)
		if err != nil {
			return findings{err.Error()}
		}
		called := map[fleet.DeviceID]bool{}
		back := 0
		for _, c := range calls {
			called[c.DeviceID] = true
			if c.State == fleet.CallOffline && w.cameBack(f, c) {
				back++
			}
		}
		if len(called) != f.Targets || f.Counts["done"] != f.Targets || f.Counts["waiting"] != 0 {
			broken.addf("fan-out %s (%s) to %d devices called %d: %v", f.ID, f.Arguments, f.Targets,
				len(called), f.Counts)
		}
		if back > 0 {
			broken.addf("fan-out %s (%s) went on after a start of fleetd and took %d devices for offline "+
				"that were back within %v: %v", f.ID, f.Arguments, back, comebackMax, f.Counts)
		}
		for _, skipped := range f.Skipped {
			if skipped.Reason == "record_refused" || skipped.Reason == "not_recorded" {
				broken.addf("fan-out %s (%s) could not call %d devices: %s", f.ID, f.Arguments, skipped.Count, skipped.Reason)
			}
		}
		fmt.Fprintf(&counts, "\n    fan-out %s: %v", f.Arguments, f.Counts)
	}
	for _, asked := range l.fanOuts {
		if !known[asked.id] {
			broken.addf("fan-out %s (%s) was answered 201 and is not on record", asked.id, asked.marker)
		}
	}
	if len(broken) == 0 {
		w.journal.notef("%d fan-outs%s", len(fanOuts), &counts)
	}
	return broken
}

// cameBack reports whether a call that ended offline was made by a fan-out that
// went on soon after a start of fleetd, to a device that was connected before
// the start and soon after.
func (w *chaosWorld) cameBack(f chaosFanOut, c chaosCall) bool {
	if w.clockSet {
		return false // the times of records and of the test are not comparable
	}
	starts := w.restarts()
	for _, start := range starts {
		if f.CreatedAt.Before(start) && c.CreatedAt.After(start) && c.CreatedAt.Before(start.Add(resumeTime)) &&
			w.seen.connectedWithin(c.DeviceID, start.Add(-resumeTime), start) &&
			w.seen.connectedWithin(c.DeviceID, c.CreatedAt, c.CreatedAt.Add(comebackMax)) {
			return true
		}
	}
	return false
}

func panics(w *chaosWorld, _ *chaosLoad) (broken findings) {
	for _, p := range w.nodes {
		data, err := os.ReadFile(filepath.Join(w.dir, p.name+".log"))
		if err != nil {
			return findings{err.Error()}
		}
		for line := range strings.Lines(string(data)) {
			panicked := strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:")
			if panicked || strings.Contains(line, "DATA RACE") {
				broken.addf("%s: %s", p.name, strings.TrimSpace(line))
			}
		}
	}
	return broken
}
