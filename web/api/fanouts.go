package api

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
)

func (a *api) registerFanOuts() {
	register(a, operation{id: "create-fanout", reach: access.Audience, models: fleet.ModelsMay, heavy: heavy.Preview,
		method: http.MethodPost, path: "/fanouts", role: fleet.RoleOperator,
		created: true,
		summary: "Call a tool of many devices",
		about: "Give a filter (q; an empty one means every device) or devices. If one of them needs an approval, the whole fan-out waits for it in the state pending_approval. With dry_run nothing is called; the answer, 200, shows which devices would be called and which would be left out. " +
			"A tool after which a person has to go to each device, such as self.system.reconfigure_wifi, is called only with the number of targets in confirm.",
		more: func(h *huma.Operation) {
			also[previewView](a, h, "200", "What the fan-out would do (dry_run)")
			also[FanOutView](a, h, "201", "The fan-out runs; its progress is at Location")
		}}, a.createFanOut)
	register(a, operation{id: "list-fanouts", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/fanouts", role: fleet.RoleViewer,
		summary: "List fan-outs, newest first"}, a.listFanOuts)
	register(a, operation{id: "get-fanout", reach: access.Audience, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/fanouts/{id}", role: fleet.RoleViewer,
		noun:    "fanout",
		summary: "Show a fan-out with its counts and answers"}, a.getFanOut)
	register(a, operation{id: "cancel-fanout", reach: access.Audience, models: fleet.ModelsOwn,
		method: http.MethodPost, path: "/fanouts/{id}/cancel",
		role: fleet.RoleOperator, noun: "fanout",
		summary: "Cancel a fan-out", about: "Calls already sent run to their outcome; the rest are not sent."}, a.cancelFanOut)
	a.registerFanOutAnswers()
}

type createFanOutInput struct {
	Body struct {
		Query     *string   `json:"q,omitempty" maxLength:"1024" doc:"Filter that picks the devices"`
		Devices   []string  `json:"devices,omitempty" nullable:"false" minItems:"1" doc:"Device ids, instead of q"`
		Tool      string    `json:"tool" minLength:"1" maxLength:"200"`
		Arguments arguments `json:"arguments,omitempty"`
		FanOutPace
	}
}

// FanOutPace is the pace of a fan-out's calls.
type FanOutPace struct {
	MaxInFlight int    `json:"max_in_flight,omitempty" minimum:"0" maximum:"2000" doc:"Maximum calls in flight at once; 0: 64, or for a retry the number of the first fan-out"`
	TimeoutMs   int64  `json:"timeout_ms,omitempty" minimum:"0" maximum:"300000" doc:"Timeout of each call; 0: depends on the tool"`
	Purpose     string `json:"purpose,omitempty" maxLength:"300" doc:"Reason for the call, at most 300 bytes; shown to approvers if the policy requires approval"`
	Offline     string `json:"offline,omitempty" enum:"skip,wait" doc:"Handling of devices that are not connected. skip, the default: their calls end as offline at once. wait: they are called when they come online"`
	OfflineWait int64  `json:"offline_wait_ms,omitempty" minimum:"0" maximum:"86400000" doc:"With wait: how long from now; 0: 15 minutes. Devices not connected by then end as offline"`
	Confirm     int    `json:"confirm,omitempty" minimum:"0" doc:"Number of targets from a dry run; required if the dry run has needs_confirm"`
	Interrupt   bool   `json:"interrupt,omitempty" doc:"Do not wait for conversations that the calls would interrupt; otherwise these devices are called after them, or after a time limit"`
	DryRun      bool   `json:"dry_run,omitempty" doc:"Only report what would be done"`
}

func (p FanOutPace) apply(r *call.FanOutRequest) error {
	r.MaxInFlight, r.Timeout = p.MaxInFlight, time.Duration(p.TimeoutMs)*time.Millisecond
	r.Purpose, r.Confirm, r.Interrupt = p.Purpose, p.Confirm, p.Interrupt
	switch {
	case p.Offline == "wait":
		r.OfflineWait = cmp.Or(time.Duration(p.OfflineWait)*time.Millisecond, call.DefaultOfflineWait)
	case p.OfflineWait != 0:
		return fleet.Refuse(fleet.ErrInvalid, "offline_wait_without_wait").At("offline_wait_ms")
	}
	return nil
}

type createFanOutOutput struct {
	Status   int
	Location string `header:"Location"`
	Body     any
}

func (a *api) createFanOut(ctx context.Context, by fleet.Principal, in *createFanOutInput) (*createFanOutOutput,
	error) {
	b := in.Body
	r := call.FanOutRequest{Actor: by, Tool: b.Tool, Arguments: json.RawMessage(b.Arguments)}
	if err := b.apply(&r); err != nil {
		return nil, err
	}
	var err error
	if r.Query, r.Devices, err = audienceOf(b.Query, b.Devices); err != nil {
		return nil, err
	}
	return a.makeFanOut(ctx, r, b.DryRun)
}

func (a *api) makeFanOut(ctx context.Context, r call.FanOutRequest, dryRun bool) (*createFanOutOutput, error) {
	if dryRun {
		p, err := a.FanOuts.Preview(ctx, r)
		return &createFanOutOutput{Status: http.StatusOK, Body: preview(p)}, err
	}
	f, err := a.FanOuts.Create(ctx, r)
	return &createFanOutOutput{http.StatusCreated, prefix + "/fanouts/" + f.ID.String(), fanOut(f)}, err
}

func (a *api) listFanOuts(ctx context.Context, _ fleet.Principal, in *Paging) (*answer[list[FanOutView]], error) {
	page, err := a.FanOuts.List(ctx, in.Limit, in.Cursor)
	if err != nil {
		return nil, err
	}
	return pageOf(page, fanOut), nil
}

// maxAnswers is the maximum number of groups of answers in a response.
const maxAnswers = 50

func (a *api) getFanOut(ctx context.Context, _ fleet.Principal, in *IDPath) (*answer[fanOutProgressView], error) {
	id := in.uuid()
	f, err := a.FanOuts.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	progress, err := a.FanOuts.Progress(ctx, id)
	if err != nil {
		return nil, err
	}
	answers, err := a.FanOuts.Answers(ctx, id, maxAnswers)
	if err != nil {
		return nil, err
	}
	skipped, err := a.FanOuts.Skipped(ctx, id)
	if err != nil {
		return nil, err
	}
	return answerWith(fanOutProgressView{FanOutView: fanOut(f), Waiting: fanOutWaiting(progress.Blocked),
		Counts: counts(progress), Answers: listOf(answers, fanOutAnswer).Body.Items,
		SkippedFor: listOf(skipped, func(c fleet.DeviceCount) reasonView {
			return reasonView{Reason: c.Value,
				Count: c.Count}
		}).Body.Items}), nil
}

func (a *api) cancelFanOut(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[fanOutProgressView], error) {
	if err := a.FanOuts.Cancel(ctx, by, in.uuid()); err != nil {
		return nil, err
	}
	return a.getFanOut(ctx, by, in)
}
