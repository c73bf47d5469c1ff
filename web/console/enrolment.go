package console

import (
	"io"
	"net/http"
	"strconv"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// ruleBytes bounds the form of a rule, including its list of addresses.
const ruleBytes = 3 << 20

func (s *Server) enrolmentRoutes() []route {
	const viewer, admin = fleet.RoleViewer, fleet.RoleAdmin
	rule := ui.PathRules + "/{rule}"
	return []route{
		{method: http.MethodGet, pattern: ui.PathRules, role: viewer, reach: access.Fleet, page: s.listRules},
		{method: http.MethodPost, pattern: ui.PathRules, role: admin, reach: access.Fleet,
			page: s.createRule, body: ruleBytes, heavy: heavy.Upload},
		{method: http.MethodGet, pattern: rule, role: viewer, reach: access.Fleet, page: s.showRule},
		{method: http.MethodPost, pattern: rule + "/edit", role: admin, reach: access.Fleet,
			page: s.editRule, body: ruleBytes, heavy: heavy.Upload},
		{method: http.MethodPost, pattern: rule + "/enable", role: admin, reach: access.Fleet,
			page: s.switchRule(true)},
		{method: http.MethodPost, pattern: rule + "/disable", role: admin, reach: access.Fleet,
			page: s.switchRule(false)},
		{method: http.MethodPost, pattern: rule + "/move", role: admin, reach: access.Fleet, page: s.moveRule},
		{method: http.MethodPost, pattern: rule + "/delete", role: admin, reach: access.Fleet, page: s.deleteRule},
	}
}

func (s *Server) rulesPage(r *http.Request) ui.RulesPage {
	page := ui.RulesPage{Mode: string(s.EnrolmentMode), Rules: s.Rules.Rules(), Admin: mayAdmin(r.Context()),
		Form: forms.Rule{Enabled: true}, WouldMatch: map[string]int{}}
	for _, m := range s.Rules.Preview(s.Enrolments.Waiting()) {
		page.WouldMatch[m.Rule.String()]++
	}
	return page
}

func (s *Server) listRules(r *http.Request) (answer, error) {
	page, q := s.rulesPage(r), r.URL.Query()
	page.Form.Action, page.Form.Networks = q.Get("action"), fleet.CleanText(q.Get("networks"), 100)
	page.Form.Name = fleet.CleanText(q.Get("name"), 100)
	return show(page.Page())
}

// readRule reads the form of a rule. The addresses of a file follow the typed ones.
func readRule(r *http.Request) (forms.Rule, error) {
	if err := r.ParseMultipartForm(ruleBytes); err != nil && err != http.ErrNotMultipart {
		return forms.Rule{}, formError(err)
	}
	get := r.PostFormValue
	f := forms.Rule{Name: get("name"), Action: get("action"), Boards: get("boards"), Networks: get("networks"),
		Devices: get("devices"),
		From:    get("from"), Until: get("until"), Max: get("max_devices"), Tags: get("tags"),
		Transport: get("transport"), Enabled: get("enabled") != ""}
	file, _, err := r.FormFile("list")
	if err != nil {
		return f, nil // no file was chosen
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		return f, formError(err)
	}
	if len(text) > 0 && f.Devices == "" {
		f.Devices = string(text) // alone, so that line numbers are those of the file
	} else if len(text) > 0 {
		ids, err := enrolment.ParseDeviceList(string(text))
		if err != nil {
			return f, err
		}
		for _, id := range ids {
			f.Devices += "\n" + id.MAC()
		}
	}
	return f, nil
}

func (s *Server) createRule(r *http.Request) (answer, error) {
	ctx := r.Context()
	f, err := readRule(r)
	if err == nil {
		var rule enrolment.Rule
		if rule, err = f.Read(viewerOf(ctx).zone); err == nil {
			_, err = s.Rules.Create(ctx, viewerOf(ctx).actor(), rule)
		}
	}
	if err != nil && statusOf(err) >= http.StatusInternalServerError {
		return answer{}, err
	}
	if err != nil {
		page := s.rulesPage(r)
		page.Form, page.Problem = f, explain(ctx, err)
		return showAgain(page.Page())
	}
	s.flash(ctx, ui.Flash{Text: text(ctx, "flash.saved")})
	return goTo(ui.PathRules)
}

func (s *Server) rule(r *http.Request) (enrolment.RuleRow, error) {
	id, err := uuid.Parse(chi.URLParam(r, "rule"))
	if err != nil {
		return enrolment.RuleRow{}, errNoPage
	}
	return s.Rules.Rule(id)
}

func (s *Server) rulePage(r *http.Request, rule enrolment.RuleRow) ui.RulePage {
	page := ui.RulePage{Rule: rule, Admin: mayAdmin(r.Context()), Form: forms.FillRule(rule.Rule,
		viewerOf(r.Context()).zone)}
	for i, other := range s.Rules.Rules() {
		if other.ID == rule.ID {
			page.Place = i + 1
		}
	}
	for _, m := range s.Rules.Preview(s.Enrolments.Waiting()) {
		if m.Rule == rule.ID && len(page.Matches) < maxQueue {
			page.Matches = append(page.Matches, m)
		}
	}
	return page
}

func (s *Server) showRule(r *http.Request) (answer, error) {
	rule, err := s.rule(r)
	if err != nil {
		return answer{}, err
	}
	return show(s.rulePage(r, rule).Page())
}

func (s *Server) editRule(r *http.Request) (answer, error) {
	ctx := r.Context()
	rule, err := s.rule(r)
	if err != nil {
		return answer{}, err
	}
	f, err := readRule(r)
	if err == nil {
		var changed enrolment.Rule
		if changed, err = f.Read(viewerOf(ctx).zone); err == nil {
			_, err = s.Rules.Update(ctx, viewerOf(ctx).actor(), rule.ID, func(to *enrolment.Rule) error {
				changed.Position, changed.CreatedBy, changed.CreatedAt = to.Position, to.CreatedBy, to.CreatedAt
				*to = changed
				return nil
			})
		}
	}
	if err != nil && statusOf(err) >= http.StatusInternalServerError {
		return answer{}, err
	}
	if err != nil {
		page := s.rulePage(r, rule)
		page.Form, page.Problem = f, explain(ctx, err)
		return showAgain(page.Page())
	}
	s.flash(ctx, ui.Flash{Text: text(ctx, "flash.saved")})
	return goTo(ui.RulePath(rule.ID.String()))
}

func (s *Server) switchRule(on bool) handler {
	return func(r *http.Request) (answer, error) {
		rule, err := s.rule(r)
		if err == nil {
			_, err = s.Rules.Update(r.Context(), viewerOf(r.Context()).actor(), rule.ID, func(to *enrolment.Rule) error {
				to.Enabled = on
				return nil
			})
		}
		return s.rulesChanged(r, err)
	}
}

func (s *Server) moveRule(r *http.Request) (answer, error) {
	rule, err := s.rule(r)
	if err != nil {
		return answer{}, err
	}
	to, err := strconv.Atoi(r.PostFormValue("to"))
	if err != nil {
		return answer{}, fleet.Refuse(fleet.ErrInvalid, "invalid_form.place")
	}
	_, err = s.Rules.Move(r.Context(), viewerOf(r.Context()).actor(), rule.ID, to)
	return s.rulesChanged(r, err)
}

func (s *Server) deleteRule(r *http.Request) (answer, error) {
	rule, err := s.rule(r)
	if err == nil {
		err = s.Rules.Delete(r.Context(), viewerOf(r.Context()).actor(), rule.ID)
	}
	return s.rulesChanged(r, err)
}

func (s *Server) rulesChanged(r *http.Request, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	s.flash(r.Context(), ui.Flash{Text: text(r.Context(), "flash.saved")})
	return goTo(ui.PathRules)
}
