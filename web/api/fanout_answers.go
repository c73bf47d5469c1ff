package api

import (
	"context"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
)

func (a *api) registerFanOutAnswers() {
	register(a, operation{id: "list-fanout-answers", reach: access.Audience, models: fleet.ModelsMay, heavy: heavy.Preview,
		method: http.MethodGet, path: "/fanouts/{id}/answers", role: fleet.RoleViewer,
		noun:    "fanout",
		summary: "Group a fan-out's devices by their answers, largest group first",
		about: "With by, devices are grouped by one value in their answers, such as audio_speaker.volume; fields lists the possible values of by. " +
			"While the fan-out runs, groups grow and change places between two pages."}, a.listFanOutAnswers)
	register(a, operation{id: "export-fanout-answers", reach: access.Audience, models: fleet.ModelsMay, heavy: heavy.Export,
		method: http.MethodGet, path: "/fanouts/{id}/answers.csv", role: fleet.RoleViewer,
		noun:    "fanout",
		summary: "Export the answers of a fan-out's devices as CSV",
		about:   "A line for each device that was called: device, name, state, error, answer, call, ended. A cell that a spreadsheet would calculate (it begins with = + - @ | ;) is prefixed with '.",
		more: func(h *huma.Operation) {
			h.Responses = map[string]*huma.Response{"200": {Description: "The file",
				Content: map[string]*huma.MediaType{"text/csv; charset=utf-8": {Schema: &huma.Schema{Type: huma.TypeString}}}}}
		}}, a.exportFanOutAnswers)
	register(a, operation{id: "retry-fanout", reach: access.Audience, models: fleet.ModelsMay, heavy: heavy.Preview,
		method: http.MethodPost, path: "/fanouts/{id}/retry", role: fleet.RoleOperator,
		noun: "fanout", created: true,
		summary: "Call the failed devices of a fan-out again",
		about: "Makes another fan-out with the same tool and arguments to the devices whose calls did not succeed; its retry_of names the first one. " +
			"fanout_open: the first has not ended yet. empty_audience: none of them can be called.",
		more: func(h *huma.Operation) {
			also[previewView](a, h, "200", "What it would do (dry_run)")
			also[FanOutView](a, h, "201", "It runs; its progress is at Location")
		}}, a.retryFanOut)
}

type listAnswersInput struct {
	IDPath
	Paging
	By string `query:"by" maxLength:"200" doc:"Path of a value in the answers' JSON: names and positions separated by dots. Without it, whole answers are compared"`
}

// fanOutAnswersView is a page of the groups.
type fanOutAnswersView struct {
	Items  []fanOutAnswerView `json:"items" nullable:"false"`
	Next   *string            `json:"next_cursor" doc:"Send it as cursor to get the next page; null on the last page"`
	Total  int                `json:"total" doc:"Number of groups"`
	Fields []string           `json:"fields" nullable:"false" doc:"Possible values of by, taken from some of the answers"`
}

func (a *api) listFanOutAnswers(ctx context.Context, _ fleet.Principal, in *listAnswersInput) (
	*answer[fanOutAnswersView], error) {
	by := call.AnswerGrouping{Field: in.By, Limit: in.Limit}
	if in.Cursor != "" {
		var err error
		if by.Offset, err = strconv.Atoi(in.Cursor); err != nil || by.Offset < 0 {
			return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_cursor").At("cursor")
		}
	}
	if _, err := a.FanOuts.Get(ctx, in.uuid()); err != nil {
		return nil, err
	}
	found, err := a.FanOuts.AnswerGroups(ctx, in.uuid(), by)
	if err != nil {
		return nil, err
	}
	v := fanOutAnswersView{Items: listOf(found.Groups, fanOutAnswer).Body.Items, Total: found.Total,
		Fields: append([]string{}, found.Fields...)}
	if end := by.Offset + len(found.Groups); end < found.Total {
		v.Next = ptr(strconv.Itoa(end))
	}
	return answerWith(v), nil
}

func (a *api) exportFanOutAnswers(ctx context.Context, _ fleet.Principal, in *IDPath) (*huma.StreamResponse, error) {
	id := in.uuid()
	if _, err := a.FanOuts.Get(ctx, id); err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		c.SetHeader("Content-Type", "text/csv; charset=utf-8")
		c.SetHeader("Content-Disposition", `attachment; filename="answers-`+id.String()+`.csv"`)
		c.SetHeader("Cache-Control", "no-store")
		if err := a.FanOuts.Export(ctx, c.BodyWriter(), id); err != nil {
			panic(http.ErrAbortHandler) // otherwise the file would seem complete
		}
	}}, nil
}

type retryFanOutInput struct {
	IDPath
	Body *FanOutPace `required:"false"`
}

func (a *api) retryFanOut(ctx context.Context, by fleet.Principal, in *retryFanOutInput) (*createFanOutOutput, error) {
	first, err := a.FanOuts.Get(ctx, in.uuid())
	if err != nil {
		return nil, err
	}
	pace := FanOutPace{}
	if in.Body != nil {
		pace = *in.Body
	}
	r := call.FanOutRequest{Actor: by, RetryOf: first.ID, Tool: first.Tool, Arguments: first.Arguments}
	if err := pace.apply(&r); err != nil {
		return nil, err
	}
	if pace.MaxInFlight == 0 {
		r.MaxInFlight = first.MaxInFlight
	}
	if pace.TimeoutMs == 0 {
		r.Timeout = first.Timeout
	}
	return a.makeFanOut(ctx, r, pace.DryRun)
}
