package calls

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/compare"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// maxAnswers is the maximum number of groups of answers on a fan-out's page.
const maxAnswers = 20

// answerGrouping reads from an address how to group answers, and which groups to show.
func answerGrouping(q url.Values) call.AnswerGrouping {
	by := call.AnswerGrouping{Field: fleet.CleanText(strings.TrimSpace(q.Get("by")), 200), Limit: maxAnswers}
	by.Offset, _ = strconv.Atoi(q.Get("from"))
	by.Offset = max(by.Offset, 0)
	return by
}

func (s *Server) fanOutRoutes() []pages.Route {
	const viewer, operator = fleet.RoleViewer, fleet.RoleOperator
	const get, post = http.MethodGet, http.MethodPost
	const one = ui.PathFanOuts + "/{fanout}"
	return []pages.Route{
		{Method: get, Pattern: ui.PathFanOuts, Role: viewer, Reach: access.List, Page: s.listFanOuts},
		{Method: get, Pattern: ui.PathFanOutNew, Role: operator, Reach: access.Audience, Page: s.planFanOut,
			Heavy: heavy.Preview},
		{Method: post, Pattern: ui.PathFanOuts, Role: operator, Reach: access.Audience, Page: s.createFanOut,
			Heavy: heavy.Preview},
		{Method: get, Pattern: one, Role: viewer, Reach: access.Audience, Page: s.showFanOut},
		{Method: get, Pattern: one + "/answers.csv", Role: viewer, Reach: access.Audience, Raw: s.sendAnswers,
			Wait: 2 * time.Minute, Heavy: heavy.Export},
		{Method: post, Pattern: one + "/cancel", Role: operator, Reach: access.Audience, Page: s.cancelFanOut},
	}
}

func (s *Server) listFanOuts(r *http.Request) (pages.Answer, error) {
	page := ui.FanOutsPage{List: pages.ListURL(r, ui.PathFanOuts), CanAct: pages.MayAct(r.Context())}
	found, err := s.FanOuts.List(r.Context(), pages.LimitOf(page.List), page.List.Get("cursor"))
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(page.List.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	page.Next = found.Next
	if page.Rows, err = s.FanOutRows(r.Context(), found.Items); err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// FanOutRows returns the rows of fan-outs with their progress. A complete fan-out has called all
// devices, so its calls, which take long to count, are not counted.
func (s *Server) FanOutRows(ctx context.Context, all []call.FanOut) ([]ui.FanOutRow, error) {
	var rows []ui.FanOutRow
	for _, f := range all {
		row := ui.NewFanOutRow(f, call.FanOutProgress{})
		if row.Done = f.Targets; f.State != call.FanOutCompleted {
			p, err := s.FanOuts.Progress(ctx, f.ID)
			if err != nil {
				return nil, err
			}
			row.Done = p.Done()
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (s *Server) showFanOut(r *http.Request) (pages.Answer, error) {
	id, err := fanOutID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	progress, err := s.fanOutProgress(r.Context(), id, answerGrouping(r.URL.Query()))
	if err != nil {
		return pages.Answer{}, err
	}
	page := ui.FanOutPage{FanOut: progress.FanOut, Progress: progress, CanAct: progress.CanAct}
	if page.Skipped, err = s.FanOuts.Skipped(r.Context(), id); err != nil {
		return pages.Answer{}, err
	}
	if page.Compare, err = s.compareFanOut(r.Context(), progress); err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func fanOutID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(chi.URLParam(r, "fanout"))
	if err != nil {
		return id, pages.ErrNoPage
	}
	return id, nil
}

// fanOutProgress returns the changing part of a fan-out's page.
func (s *Server) fanOutProgress(ctx context.Context, id uuid.UUID, by call.AnswerGrouping) (p ui.FanOutProgress,
	err error) {
	p.CanAct = pages.MayAct(ctx)
	if p.FanOut, err = s.FanOuts.Get(ctx, id); err != nil {
		return p, err
	}
	if p.Counts, err = s.FanOuts.Progress(ctx, id); err != nil {
		return p, err
	}
	p.By = by
	p.Answers, err = s.FanOuts.AnswerGroups(ctx, id, by)
	return p, err
}

func (s *Server) cancelFanOut(r *http.Request) (pages.Answer, error) {
	id, err := fanOutID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	err = s.FanOuts.Cancel(ctx, pages.ViewerOf(ctx).Actor(), id)
	switch {
	case pages.ErrorCode(err) == "not_running": // it ended while the button was pressed
		s.Flash(ctx, ui.Flash{Bad: true, Text: pages.Explain(ctx, err)})
	case err != nil:
		return pages.Answer{}, err
	default:
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.fanout_canceled")})
	}
	return pages.GoTo(ui.FanOutPath(id.String()))
}

// sendAnswers sends the answers of all devices as a file.
func (s *Server) sendAnswers(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	id, err := fanOutID(r)
	if err == nil {
		_, err = s.FanOuts.Get(ctx, id)
	}
	if err != nil {
		s.Fail(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/csv; charset=utf-8")
	h.Set("Content-Disposition", `attachment; filename="answers-`+id.String()+`.csv"`)
	h.Set("Cache-Control", "no-store")
	if err := s.FanOuts.Export(ctx, w, id); err != nil {
		panic(http.ErrAbortHandler) // otherwise the file would seem complete
	}
}

// compareFanOut returns what the devices of a fan-out on which the call failed have in common.
func (s *Server) compareFanOut(ctx context.Context, p ui.FanOutProgress) (ui.Comparison, error) {
	result := ui.Comparison{Well: "succeeded"}
	failed, well := 0, p.Counts.ByState[fleet.CallSucceeded]
	for state, n := range p.Counts.ByState {
		if state.Failed() {
			failed += n
		}
	}
	if failed < compare.Least || well < compare.Least {
		return result, nil
	}
	var err error
	result.Result, err = s.Compare.FanOut(ctx, p.FanOut.ID)
	return result, err
}
