package devices

import (
	"errors"
	"io"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

func (s *Server) fileRoutes() []pages.Route {
	const operator = fleet.RoleOperator
	return []pages.Route{
		{Method: http.MethodGet, Pattern: ui.PathExport, Role: fleet.RoleViewer, Reach: access.List, Raw: s.sendDevices,
			Wait: 2 * time.Minute, Heavy: heavy.Export},
		{Method: http.MethodGet, Pattern: ui.PathImport, Role: operator, Reach: access.Audience, Page: s.showImport},
		{Method: http.MethodPost, Pattern: ui.PathImport, Role: operator, Reach: access.Audience, Page: s.planImport,
			Body: fleet.MaxDeviceFile + pages.FormBytes, Wait: time.Minute, Heavy: heavy.Import},
		{Method: http.MethodPost, Pattern: ui.PathImport + "/apply", Role: operator, Reach: access.Audience,
			Page: s.applyImport, Body: 2*fleet.MaxDeviceFile + pages.FormBytes, Wait: time.Minute,
			Heavy: heavy.Import},
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
		s.Fail(w, r, err)
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

func (s *Server) showImport(*http.Request) (pages.Answer, error) {
	return pages.Show(ui.ImportPage{}.Page())
}

// planImport shows the changes that an uploaded file would make.
func (s *Server) planImport(r *http.Request) (pages.Answer, error) {
	text, err := uploadedFile(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return s.importPage(r, text, "")
}

// uploadedFile reads the file of a form, or the text in a field of the page.
func uploadedFile(r *http.Request) ([]byte, error) {
	err := r.ParseMultipartForm(fleet.MaxDeviceFile + pages.FormBytes)
	if err != nil && !errors.Is(err, http.ErrNotMultipart) {
		return nil, pages.FormError(err)
	}
	file, _, err := r.FormFile("file")
	if err != nil {
		return []byte(r.PostFormValue("csv")), nil // without a file it is empty, which is an error later
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, fleet.MaxDeviceFile+1))
	if err != nil {
		return nil, pages.FormError(err)
	}
	return text, nil
}

// importPage shows the plan of a file, or its error.
func (s *Server) importPage(r *http.Request, text []byte, problem string) (pages.Answer, error) {
	ctx := r.Context()
	file, err := fleet.ParseDeviceFile(text)
	if errors.Is(err, fleet.ErrInvalid) {
		return pages.ShowAgain(ui.ImportPage{Problem: pages.Explain(ctx, err)}.Page())
	}
	if err != nil {
		return pages.Answer{}, err
	}
	plan, err := s.Devices.PlanImport(ctx, pages.ViewerOf(ctx).Actor(), file)
	if err != nil {
		return pages.Answer{}, err
	}
	page := ui.ImportPage{Plan: &plan, CSV: string(file.Changing(plan)), Problem: problem}
	if problem != "" {
		return pages.ShowAgain(page.Page())
	}
	return pages.Show(page.Page())
}

// applyImport makes the previewed changes.
func (s *Server) applyImport(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	text := []byte(r.PostForm.Get("csv"))
	file, err := fleet.ParseDeviceFile(text)
	if err != nil {
		return pages.Answer{}, err
	}
	done, err := s.Devices.Import(ctx, pages.ViewerOf(ctx).Actor(), file, r.PostForm.Get("digest"))
	if pages.ErrorCode(err) == "import_differs" {
		return s.importPage(r, text, pages.Explain(ctx, err))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	s.Flash(ctx, ui.Flash{Text: ui.T(pages.InLanguage(ctx), "import.done", "n", len(done.Changes))})
	return pages.GoTo(ui.PathDevices)
}
