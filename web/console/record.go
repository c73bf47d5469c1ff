package console

import (
	"net/http"
	"strconv"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// recordRoutes are the pages and files of the sealed record.
func (s *Server) recordRoutes() []route {
	const get, viewer = http.MethodGet, fleet.RoleViewer
	return []route{
		{method: get, pattern: ui.PathRecord, role: viewer, reach: access.Fleet, page: s.showRecord},
		{method: http.MethodPost, pattern: ui.PathRecord, role: fleet.RoleAdmin, reach: access.Fleet, page: s.verifyRecord},
		{method: get, pattern: ui.PathRecordCheckpoint, role: viewer, reach: access.Fleet, raw: s.sendCheckpoint},
		{method: get, pattern: ui.PathRecordProof, role: viewer, reach: access.Fleet, raw: s.sendProof},
	}
}

func (s *Server) recordLine() *ui.RecordLine {
	line := &ui.RecordLine{Status: s.Record.Status()}
	if v, ok := s.Record.Verification(); ok {
		line.Verification = &v
	}
	return line
}

func (s *Server) recordPage(r *http.Request) (ui.RecordPage, error) {
	queued, _, err := s.Record.Queue(r.Context())
	line := s.recordLine()
	page := ui.RecordPage{Status: line.Status, Verification: line.Verification, Queued: queued}
	viewer := viewerOf(r.Context())
	for _, state := range s.Publisher.States() {
		place := ui.RecordPlace{State: state}
		if !state.Since.IsZero() {
			place.Why = i18n.Because(viewer.lang, viewer.zone, "record.place.", state.Why)
		}
		page.Places = append(page.Places, place)
	}
	return page, err
}

func (s *Server) showRecord(r *http.Request) (answer, error) {
	page, err := s.recordPage(r)
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

func (s *Server) verifyRecord(r *http.Request) (answer, error) {
	ctx := r.Context()
	err := s.Record.StartVerification(viewerOf(ctx).actor(), nil)
	if err == nil {
		return goTo(ui.PathRecord)
	}
	page, failed := s.recordPage(r)
	if failed != nil {
		return answer{}, failed
	}
	page.Problem = explain(ctx, err)
	return answer{status: statusOf(err), page: page.Page()}, nil
}

func (s *Server) sendCheckpoint(w http.ResponseWriter, r *http.Request) {
	c, err := s.Record.Checkpoint(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	sendText(w, "checkpoint-"+strconv.FormatInt(c.Size, 10)+".txt", []byte(c.Note))
}

// sendProof sends the proof of an entry of the log, by its number or by the id of its row.
func (s *Server) sendProof(w http.ResponseWriter, r *http.Request) {
	ctx, text := r.Context(), chi.URLParam(r, "entry")
	entry, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		id, err := uuid.Parse(text)
		if err != nil {
			s.fail(w, r, errNoPage)
			return
		}
		numbers, err := s.Record.Entries(ctx, id)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		entry = numbers[0]
	}
	p, err := s.Record.Prove(ctx, entry)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	sendText(w, "entry-"+strconv.FormatInt(entry, 10)+".tlog-proof", p.Format())
}

func sendText(w http.ResponseWriter, name string, data []byte) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(data) // an error means that the reader has gone
}
