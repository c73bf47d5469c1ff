package record

import (
	"net/http"
	"strconv"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// recordRoutes are the pages and files of the sealed record.
func (s *Server) recordRoutes() []pages.Route {
	const get, viewer = http.MethodGet, fleet.RoleViewer
	return []pages.Route{
		{Method: get, Pattern: ui.PathRecord, Role: viewer, Reach: access.Fleet, Page: s.showRecord},
		{Method: http.MethodPost, Pattern: ui.PathRecord, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.verifyRecord},
		{Method: get, Pattern: ui.PathRecordCheckpoint, Role: viewer, Reach: access.Fleet, Raw: s.sendCheckpoint},
		{Method: get, Pattern: ui.PathRecordProof, Role: viewer, Reach: access.Fleet, Raw: s.sendProof},
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
	viewer := pages.ViewerOf(r.Context())
	for _, state := range s.Publisher.States() {
		place := ui.RecordPlace{State: state}
		if !state.Since.IsZero() {
			place.Why = i18n.Because(viewer.Lang, viewer.Zone, "record.place.", state.Why)
		}
		page.Places = append(page.Places, place)
	}
	return page, err
}

func (s *Server) showRecord(r *http.Request) (pages.Answer, error) {
	page, err := s.recordPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) verifyRecord(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	err := s.Record.StartVerification(pages.ViewerOf(ctx).Actor(), nil)
	if err == nil {
		return pages.GoTo(ui.PathRecord)
	}
	page, failed := s.recordPage(r)
	if failed != nil {
		return pages.Answer{}, failed
	}
	page.Problem = pages.Explain(ctx, err)
	return pages.Answer{Status: pages.StatusOf(err), Page: page.Page()}, nil
}

func (s *Server) sendCheckpoint(w http.ResponseWriter, r *http.Request) {
	c, err := s.Record.Checkpoint(r.Context())
	if err != nil {
		s.Fail(w, r, err)
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
			s.Fail(w, r, pages.ErrNoPage)
			return
		}
		numbers, err := s.Record.Entries(ctx, id)
		if err != nil {
			s.Fail(w, r, err)
			return
		}
		entry = numbers[0]
	}
	p, err := s.Record.Prove(ctx, entry)
	if err != nil {
		s.Fail(w, r, err)
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
