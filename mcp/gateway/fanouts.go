package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/heavy"
)

// How long call_devices waits for a fan-out to end, and how often it reports progress.
const (
	defaultWait  = time.Minute
	maxWait      = 5 * time.Minute
	progressStep = 500 * time.Millisecond
)

// maxAnswers is the maximum number of groups of answers in one reply.
const maxAnswers = 20

type callManyIn struct {
	Query       *string  `json:"q,omitempty" jsonschema:"query for the devices, as in find_devices; empty: every device"`
	Devices     []string `json:"devices,omitempty" jsonschema:"ids of devices, instead of q"`
	Tool        string   `json:"tool" jsonschema:"name of a tool of the devices"`
	Arguments   object   `json:"arguments,omitempty" jsonschema:"according to the tool's schema; see describe_tool"`
	Purpose     string   `json:"purpose,omitempty" jsonschema:"reason in one sentence, for approvers and reviewers"`
	DryRun      bool     `json:"dry_run,omitempty" jsonschema:"only report which devices would be called, and why others would not"`
	MaxInFlight int      `json:"max_in_flight,omitempty" jsonschema:"maximum calls in flight at once; default 64"`
	TimeoutMs   int64    `json:"timeout_ms,omitempty" jsonschema:"how long to wait for each device; default depends on the tool"`
	WaitMs      *int64   `json:"wait_ms,omitempty" jsonschema:"how long to wait for the end before answering; default 60000"`
	Confirm     int      `json:"confirm,omitempty" jsonschema:"number of targets from the dry run, if that has needs_confirm"`
}

// callManyOut is the plan of a fan-out, or its progress.
type callManyOut struct {
	Plan   *planOut   `json:"plan,omitempty"` // of a dry run
	FanOut *fanOutOut `json:"fanout,omitempty"`
}

type planOut struct {
	Matched  int              `json:"matched"`
	Targets  int              `json:"targets"`          // devices that would be called
	Offline  int              `json:"offline"`          // targets that are not connected now
	Effect   fleet.ToolEffect `json:"effect,omitempty"` // on each device: restarts or leaves_network
	Confirm  bool             `json:"needs_confirm"`    // set confirm to the number of targets
	LeftOut  []leftOut        `json:"left_out"`
	UserOnly bool             `json:"user_only"` // the tool is for people and programs
}

type leftOut struct {
	Code   string           `json:"code"`
	Count  int              `json:"count"`
	Sample []fleet.DeviceID `json:"sample,omitempty"`
}

// fanOutOut is a fan-out and its progress.
type fanOutOut struct {
	ID       uuid.UUID      `json:"id"`
	State    string         `json:"state"` // pending_approval, running, completed, refused or canceled
	Tool     string         `json:"tool"`
	Query    string         `json:"q,omitempty"`
	Targets  int            `json:"targets"`
	Done     int            `json:"done"`
	Waiting  int            `json:"waiting"`           // not yet called
	Counts   map[string]int `json:"counts"`            // calls by state
	Blocked  string         `json:"blocked,omitempty"` // code of what blocks it
	LeftOut  []leftOut      `json:"left_out"`
	Answers  []groupOut     `json:"answers"` // devices grouped by their answer, the largest group first
	Created  time.Time      `json:"created_at"`
	Finished *time.Time     `json:"finished_at,omitempty"`
}

type groupOut struct {
	State fleet.CallState `json:"state"`
	Count int             `json:"count"`
	Code  string          `json:"code,omitempty"`
	// the answer, written by devices: data, never an instruction
	Text   *deviceText      `json:"device_text,omitempty"`
	Sample []fleet.DeviceID `json:"sample"`
	Calls  []uuid.UUID      `json:"calls"` // of the sample, in the same order
}

func (g *Gateway) addFanOutTools(s *mcp.Server) {
	add[callManyIn, callManyOut](g, s, definition{name: "call_devices", models: fleet.ModelsMay, title: "Call many devices", effect: acts, open: true,
		about: "Makes the same call to many devices, given by a query or a list. Each device is called at most once. " +
			"Use dry_run first. Waits until all calls are done, or answers with the id of the fan-out after wait_ms; then use " +
			"get_call.",
		limits: map[string]func(*jsonschema.Schema){"tool": longest(200), "q": longest(1024), "purpose": longest(call.MaxPurposeBytes),
			"max_in_flight": between(0, call.MaxInFlight), "confirm": between(0, call.MaxFanOutDevices),
			"timeout_ms": between(0, float64(call.MaxTimeout.Milliseconds())),
			"wait_ms":    between(0, float64(maxWait.Milliseconds())),
			"devices": func(s *jsonschema.Schema) {
				most := 1000
				s.MaxItems = &most
			}}}, g.callDevices)
}

func (in callManyIn) request(by fleet.Principal) (call.FanOutRequest, error) {
	r := call.FanOutRequest{Actor: by, Tool: in.Tool, Arguments: in.Arguments, MaxInFlight: in.MaxInFlight,
		Timeout: time.Duration(in.TimeoutMs) * time.Millisecond, Confirm: in.Confirm,
		Purpose: in.Purpose}
	if (in.Query == nil) == (len(in.Devices) == 0) {
		return r, fleet.Refuse(fleet.ErrInvalid, "audience_missing")
	}
	if in.Query != nil {
		r.Query = *in.Query
	}
	for _, s := range in.Devices {
		id, err := fleet.ParseDeviceID(s)
		if err != nil {
			return r, err
		}
		r.Devices = append(r.Devices, id)
	}
	return r, nil
}

// seen returns the devices of ids that the principal's scope includes.
func (g *Gateway) seen(ctx context.Context, by fleet.Principal, ids []fleet.DeviceID) ([]fleet.DeviceID, error) {
	devices, err := g.o.Devices.DevicesByID(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if !slices.ContainsFunc(devices, func(d fleet.Device) bool { return d.ID == id && by.Sees(d) }) {
			return nil, unknownDevice(string(id))
		}
	}
	return ids, nil
}

func (g *Gateway) callDevices(ctx context.Context, by fleet.Principal, req *mcp.CallToolRequest,
	in callManyIn) (answer, error) {
	var f call.FanOut
	if id, wait, ok := asked(req); ok {
		var err error
		if f, err = g.askedFanOut(ctx, by, id, wait); err != nil {
			return answer{}, err
		}
	} else {
		p, made, err := g.start(ctx, by, req, in)
		if err != nil {
			return answer{}, err
		}
		switch {
		case p != nil && !in.DryRun:
			return askDevices(in.Tool, p), nil
		case p != nil:
			return answer{text: p.text(), out: callManyOut{Plan: p}}, nil
		}
		f = made
	}
	wait := defaultWait
	if in.WaitMs != nil {
		wait = time.Duration(*in.WaitMs) * time.Millisecond
	}
	g.await(ctx, req, f, wait)
	a, err := g.fanOut(context.WithoutCancel(ctx), f.ID)
	if err != nil {
		return answer{}, err
	}
	v, _ := a.out.(getOut)
	a.out = callManyOut{FanOut: v.FanOut}
	if _, _, again := asked(req); !again && f.State == call.FanOutPendingApproval {
		return g.asking(req, a, f.Approval, f.ID), nil
	}
	return a, nil
}

// start previews or starts a fan-out. It only previews one that the client's user has to
// confirm first. The wait for the fan-out does not count as heavy work.
func (g *Gateway) start(ctx context.Context, by fleet.Principal, req *mcp.CallToolRequest, in callManyIn) (p *planOut,
	f call.FanOut, err error) {
	done, err := g.o.Heavy.Begin(ctx, by, heavy.Preview)
	if err != nil {
		return nil, f, err
	}
	defer done()
	r, err := in.request(by)
	if err == nil && len(r.Devices) > 0 {
		r.Devices, err = g.seen(ctx, by, r.Devices)
	}
	if err != nil {
		return nil, f, err
	}
	answered, given := req.Params.InputResponses[inputDevices].(*mcp.ElicitResult)
	if in.DryRun || given || in.Confirm == 0 && fillsForms(req) {
		preview, err := g.o.FanOuts.Preview(ctx, r)
		switch {
		case err != nil:
			return nil, f, err
		case in.DryRun, !given && preview.MustType() && preview.Targets > 0:
			return plan(preview), f, nil
		case given:
			if r.Confirm, err = confirmed(answered, preview.Targets); err != nil {
				return nil, f, err
			}
		}
	}
	f, err = g.o.FanOuts.Create(context.WithoutCancel(ctx), r)
	return nil, f, err
}

// Before many devices restart, leave the network, or run a tool for people, a client that
// can show forms asks its user for the number of devices, as the console asks an
// operator. The reply sets the argument confirm, which is checked as usual; it does not
// replace an approval.
const inputDevices = "devices"

// fillsForms reports whether the client of a request can show its user a form. Before
// 2025-11-25 clients did not say which kind of elicitation they support.
func fillsForms(req *mcp.CallToolRequest) bool {
	c := elicitation(req)
	return c != nil && (c.Form != nil || c.URL == nil)
}

// askDevices returns the question that asks the user for the number of devices.
func askDevices(tool string, p *planOut) answer {
	text := fmt.Sprintf("%s on %s", fleet.CleanText(tool, maxName), count(p.Targets, "device"))
	switch p.Effect {
	case fleet.EffectRestarts:
		text += ": each restarts"
	case fleet.EffectLeaves:
		text += ": each leaves the network until a person sets up its Wi-Fi"
	}
	return answer{state: inputDevices, asks: mcp.InputRequestMap{inputDevices: &mcp.ElicitParams{Mode: "form",
		Message: text + ". Enter the number of devices to go on.",
		RequestedSchema: &jsonschema.Schema{Type: "object", Required: []string{inputDevices},
			Properties: map[string]*jsonschema.Schema{inputDevices: {Type: "integer", Title: "Number of devices"}}}}}}
}

// confirmed returns the number that the user entered. It must equal the number of
// targets.
func confirmed(r *mcp.ElicitResult, targets int) (int, error) {
	n, is := r.Content[inputDevices].(float64)
	if r.Action != "accept" || !is || n != float64(targets) {
		return 0, fleet.Refuse(fleet.ErrConflict, "mcp_not_confirmed", "targets", targets)
	}
	return targets, nil
}

// await waits until the fan-out ends, the client cancels its request, or wait has passed,
// and reports progress meanwhile. The fan-out goes on afterwards.
func (g *Gateway) await(ctx context.Context, req *mcp.CallToolRequest, f call.FanOut, wait time.Duration) {
	token := req.Params.GetProgressToken()
	quiet := token == nil && !g.logs(req)
	sub := g.o.Events.Subscribe(64, func(e *fleet.Event) bool { return e.Subject == f.ID.String() }, fleet.EventFanOut)
	defer sub.Close()
	over := time.NewTimer(wait)
	defer over.Stop()
	tick := time.NewTicker(progressStep)
	defer tick.Stop()
	for said := -1; wait > 0; {
		now, err := g.o.FanOuts.Get(ctx, f.ID)
		if err == nil && !quiet && now.State != call.FanOutPendingApproval {
			if p, err := g.o.FanOuts.Progress(ctx, f.ID); err == nil && p.Done() > said {
				said = p.Done()
				reportFanOut(ctx, req, token, now, said)
			}
		}
		if err != nil || now.State != call.FanOutRunning {
			return
		}
		select {
		case <-sub.C:
			select { // at most one read a second, even if there are more events
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		case <-tick.C:
		case <-ctx.Done():
			return
		case <-over.C:
			return
		case <-g.life.Done():
			return
		}
	}
}

// reportFanOut sends the progress of a fan-out to the request that waits for it: as a
// progress notification, if the client gave a token, and as a log message.
func reportFanOut(ctx context.Context, req *mcp.CallToolRequest, token any, f call.FanOut, done int) {
	text := fmt.Sprintf("%d of %s called", done, count(f.Targets, "device"))
	say(ctx, req.Session, levelInfo, logLine{Event: "fanout", FanOut: f.ID.String(), State: string(f.State), Done: done,
		Targets: f.Targets, Text: text})
	if token != nil {
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token,
			Progress: float64(done), Total: float64(f.Targets), Message: text}) // the client may be gone
	}
}

func plan(p call.FanOutPreview) *planOut {
	v := &planOut{Matched: p.Matched, Targets: p.Targets, Offline: p.Offline, Effect: p.Effect, Confirm: p.NeedsConfirm(),
		UserOnly: p.UserOnly, LeftOut: []leftOut{}}
	for _, s := range p.Skipped {
		v.LeftOut = append(v.LeftOut, leftOut{s.Reason, s.Count, s.Sample})
	}
	return v
}

func (v *planOut) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Dry run: %s match; %d would be called, of which %d are not connected.", count(v.Matched, "device"),
		v.Targets, v.Offline)
	for _, s := range v.LeftOut {
		fmt.Fprintf(&b, "\nLeft out, %s: %s", s.Code, count(s.Count, "device"))
	}
	if v.Effect != fleet.EffectNone {
		fmt.Fprintf(&b, "\nEffect on each device: %s", v.Effect)
	}
	if v.Confirm {
		fmt.Fprintf(&b, "\nTo carry it out, set confirm to %d.", v.Targets)
	}
	return b.String()
}

func (g *Gateway) getFanOut(ctx context.Context, by fleet.Principal, id uuid.UUID) (answer, error) {
	a, err := g.fanOut(ctx, id)
	if errors.Is(err, fleet.ErrNotFound) {
		return answer{}, unknownCall(id.String())
	}
	if err != nil {
		return answer{}, err
	}
	a.failed = false
	return a, err
}

// fanOut returns the answer about a fan-out.
func (g *Gateway) fanOut(ctx context.Context, id uuid.UUID) (answer, error) {
	f, err := g.o.FanOuts.Get(ctx, id)
	if err != nil {
		return answer{}, err
	}
	p, err := g.o.FanOuts.Progress(ctx, id)
	if err != nil {
		return answer{}, err
	}
	groups, err := g.o.FanOuts.Answers(ctx, id, maxAnswers)
	if err != nil {
		return answer{}, err
	}
	skipped, err := g.o.FanOuts.Skipped(ctx, id)
	if err != nil {
		return answer{}, err
	}
	v := &fanOutOut{ID: f.ID, State: string(f.State), Tool: fleet.CleanText(f.Tool, 200), Query: f.Query,
		Targets: f.Targets, Done: p.Done(), Waiting: p.Waiting, Counts: map[string]int{}, LeftOut: []leftOut{},
		Answers: []groupOut{}, Created: f.CreatedAt.UTC(), Finished: utc(f.FinishedAt)}
	for state, n := range p.ByState {
		v.Counts[string(state)] = n
	}
	if p.Blocked != nil {
		v.Blocked = string(p.Blocked.Code)
	}
	for _, s := range skipped {
		v.LeftOut = append(v.LeftOut, leftOut{Code: s.Value, Count: s.Count})
	}
	for _, a := range groups {
		one := groupOut{State: a.State, Count: a.Count, Sample: orEmpty(a.Sample), Calls: orEmpty(a.CallIDs)}
		if a.Error != nil {
			one.Code = a.Error.Code
		}
		if a.Text != "" {
			one.Text = written(a.Text, maxDescription)
		}
		v.Answers = append(v.Answers, one)
	}
	failed := v.Counts[string(fleet.CallSucceeded)] == 0 && v.Done > 0 && f.State != call.FanOutRunning
	return answer{text: v.text(), out: getOut{FanOut: v}, failed: failed}, nil
}

func (v *fanOutOut) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Fan-out %s of %s: %s, %d of %s done, %d succeeded.", v.ID, v.Tool, v.State, v.Done,
		count(v.Targets, "device"), v.Counts[string(fleet.CallSucceeded)])
	if v.State == string(call.FanOutPendingApproval) {
		b.WriteString(" It is waiting for approval by a person. Use get_call with this id to see its outcome; do not repeat it.")
	}
	if v.State == string(call.FanOutRunning) {
		b.WriteString(" Ask get_call with this id how far it is.")
	}
	for _, s := range v.LeftOut {
		fmt.Fprintf(&b, "\nLeft out, %s: %s", s.Code, count(s.Count, "device"))
	}
	for _, a := range v.Answers {
		fmt.Fprintf(&b, "\n%s, %s %s, such as %v", count(a.Count, "device"), a.State, a.Code, a.Sample[:min(3, len(a.Sample))])
		if a.Text != nil {
			b.WriteString("; " + follows + "\n" + fleet.CleanText(a.Text.Text, maxSummary))
		}
	}
	return b.String()
}
