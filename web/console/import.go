package console

import (
	"errors"
	"io"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
	"fleetd/web/ui"
)

func (s *Server) fileRoutes() []route {
	const operator = fleet.RoleOperator
	return []route{
		{method: http.MethodGet, pattern: ui.PathExport, role: fleet.RoleViewer, reach: access.List, raw: s.sendDevices,
			wait: 2 * time.Minute, heavy: heavy.Export},
		{method: http.MethodGet, pattern: ui.PathImport, role: operator, reach: access.Audience, page: s.showImport},
		{method: http.MethodPost, pattern: ui.PathImport, role: operator, reach: access.Audience, page: s.planImport,
			body: fleet.MaxDeviceFile + formBytes, wait: time.Minute, heavy: heavy.Import},
		{method: http.MethodPost, pattern: ui.PathImport + "/apply", role: operator, reach: access.Audience,
			page: s.applyImport, body: 2*fleet.MaxDeviceFile + formBytes, wait: time.Minute,
			heavy: heavy.Import},
	}
}

// sendDevices sends the devices of the list's filter as a file.
func (s *Server) sendDevices(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/csv; charset=utf-8")
	h.Set("Content-Disposition", `attachment; filename="devices.csv"`)
	h.Set("Cache-Control", "no-store")
	out := &startedWriter{Writer: w}
	if r.URL.Query().Has("bom") {
		_, _ = io.WriteString(out.Writer, "\ufeff") // without it, some spreadsheets do not recognize UTF-8
	}
	err := s.Devices.Export(r.Context(), out, r.URL.Query().Get("q"), r.URL.Query()["column"])
	switch {
	case err == nil:
	case out.started:
		panic(http.ErrAbortHandler) // otherwise the file would seem complete
	default:
		h.Del("Content-Disposition")
		s.fail(w, r, err)
	}
}

// A startedWriter records whether anything was written.
type startedWriter struct {
	io.Writer
	started bool
}

func (w *startedWriter) Write(p []byte) (int, error) {
	w.started = true
	return w.Writer.Write(p)
}

func (s *Server) showImport(*http.Request) (answer, error) { return show(ui.ImportPage{}.Page()) }

// planImport shows the changes that an uploaded file would make.
func (s *Server) planImport(r *http.Request) (answer, error) {
	text, err := uploadedFile(r)
	if err != nil {
		return answer{}, err
	}
	return s.importPage(r, text, "")
}

// uploadedFile reads the file of a form, or the text in a field of the page.
func uploadedFile(r *http.Request) ([]byte, error) {
	err := r.ParseMultipartForm(fleet.MaxDeviceFile + formBytes)
	if err != nil && !errors.Is(err, http.ErrNotMultipart) {
		return nil, formError(err)
	}
	file, _, err := r.FormFile("file")
	if err != nil {
		return []byte(r.PostFormValue("csv")), nil // without a file it is empty, which is an error later
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, fleet.MaxDeviceFile+1))
	if err != nil {
		return nil, formError(err)
	}
	return text, nil
}

// importPage shows the plan of a file, or its error.
func (s *Server) importPage(r *http.Request, text []byte, problem string) (answer, error) {
	ctx := r.Context()
	file, err := fleet.ParseDeviceFile(text)
	if errors.Is(err, fleet.ErrInvalid) {
		return showAgain(ui.ImportPage{Problem: explain(ctx, err)}.Page())
	}
	if err != nil {
		return answer{}, err
	}
	plan, err := s.Devices.PlanImport(ctx, viewerOf(ctx).actor(), file)
	if err != nil {
		return answer{}, err
	}
	page := ui.ImportPage{Plan: &plan, CSV: string(file.Changing(plan)), Problem: problem}
	if problem != "" {
		return showAgain(page.Page())
	}
	return show(page.Page())
}

// applyImport makes the previewed changes.
func (s *Server) applyImport(r *http.Request) (answer, error) {
	ctx := r.Context()
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	text := []byte(r.PostForm.Get("csv"))
	file, err := fleet.ParseDeviceFile(text)
	if err != nil {
		return answer{}, err
	}
	done, err := s.Devices.Import(ctx, viewerOf(ctx).actor(), file, r.PostForm.Get("digest"))
	if errorCode(err) == "import_differs" {
		return s.importPage(r, text, explain(ctx, err))
	}
	if err != nil {
		return answer{}, err
	}
	s.flash(ctx, ui.Flash{Text: ui.T(inLanguage(ctx), "import.done", "n", len(done.Changes))})
	return goTo(ui.PathDevices)
}
