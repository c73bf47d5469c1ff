package devices

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
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// ruleBytes bounds the form of a rule, including its list of addresses.
const ruleBytes = 3 << 20

func (s *Server) enrolmentRoutes() []pages.Route {
	const viewer, admin = fleet.RoleViewer, fleet.RoleAdmin
	rule := ui.PathRules + "/{rule}"
	return []pages.Route{
		{Method: http.MethodGet, Pattern: ui.PathRules, Role: viewer, Reach: access.Fleet, Page: s.listRules},
		{Method: http.MethodPost, Pattern: ui.PathRules, Role: admin, Reach: access.Fleet,
			Page: s.createRule, Body: ruleBytes, Heavy: heavy.Upload},
		{Method: http.MethodGet, Pattern: rule, Role: viewer, Reach: access.Fleet, Page: s.showRule},
		{Method: http.MethodPost, Pattern: rule + "/edit", Role: admin, Reach: access.Fleet,
			Page: s.editRule, Body: ruleBytes, Heavy: heavy.Upload},
		{Method: http.MethodPost, Pattern: rule + "/enable", Role: admin, Reach: access.Fleet,
			Page: s.switchRule(true)},
		{Method: http.MethodPost, Pattern: rule + "/disable", Role: admin, Reach: access.Fleet,
			Page: s.switchRule(false)},
		{Method: http.MethodPost, Pattern: rule + "/move", Role: admin, Reach: access.Fleet, Page: s.moveRule},
		{Method: http.MethodPost, Pattern: rule + "/delete", Role: admin, Reach: access.Fleet, Page: s.deleteRule},
	}
}

func (s *Server) rulesPage(r *http.Request) ui.RulesPage {
	page := ui.RulesPage{Mode: string(s.EnrolmentMode), Rules: s.Rules.Rules(), Admin: pages.MayAdmin(r.Context()),
		Form: forms.Rule{Enabled: true}, WouldMatch: map[string]int{}}
	for _, m := range s.Rules.Preview(s.Enrolments.Waiting()) {
		page.WouldMatch[m.Rule.String()]++
	}
	return page
}

func (s *Server) listRules(r *http.Request) (pages.Answer, error) {
	page, q := s.rulesPage(r), r.URL.Query()
	page.Form.Action, page.Form.Networks = q.Get("action"), fleet.CleanText(q.Get("networks"), 100)
	page.Form.Name = fleet.CleanText(q.Get("name"), 100)
	return pages.Show(page.Page())
}

// readRule reads the form of a rule. The addresses of a file follow the typed ones.
func readRule(r *http.Request) (forms.Rule, error) {
	if err := r.ParseMultipartForm(ruleBytes); err != nil && err != http.ErrNotMultipart {
		return forms.Rule{}, pages.FormError(err)
	}
	f := forms.PostedRule(r.PostForm)
	file, _, err := r.FormFile("list")
	if err != nil {
		return f, nil // no file was chosen
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		return f, pages.FormError(err)
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

func (s *Server) createRule(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	f, err := readRule(r)
	if err == nil {
		var rule enrolment.Rule
		if rule, err = f.Read(pages.ViewerOf(ctx).Zone); err == nil {
			_, err = s.Rules.Create(ctx, pages.ViewerOf(ctx).Actor(), rule)
		}
	}
	if err != nil && pages.StatusOf(err) >= http.StatusInternalServerError {
		return pages.Answer{}, err
	}
	if err != nil {
		page := s.rulesPage(r)
		page.Form, page.Problem = f, pages.Explain(ctx, err)
		return pages.ShowAgain(page.Page())
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.saved")})
	return pages.GoTo(ui.PathRules)
}

func (s *Server) rule(r *http.Request) (enrolment.RuleRow, error) {
	id, err := uuid.Parse(chi.URLParam(r, "rule"))
	if err != nil {
		return enrolment.RuleRow{}, pages.ErrNoPage
	}
	return s.Rules.Rule(id)
}

func (s *Server) rulePage(r *http.Request, rule enrolment.RuleRow) ui.RulePage {
	page := ui.RulePage{Rule: rule, Admin: pages.MayAdmin(r.Context()), Form: forms.FillRule(rule.Rule,
		pages.ViewerOf(r.Context()).Zone)}
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

func (s *Server) showRule(r *http.Request) (pages.Answer, error) {
	rule, err := s.rule(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(s.rulePage(r, rule).Page())
}

func (s *Server) editRule(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	rule, err := s.rule(r)
	if err != nil {
		return pages.Answer{}, err
	}
	f, err := readRule(r)
	if err == nil {
		var changed enrolment.Rule
		if changed, err = f.Read(pages.ViewerOf(ctx).Zone); err == nil {
			_, err = s.Rules.Update(ctx, pages.ViewerOf(ctx).Actor(), rule.ID, func(to *enrolment.Rule) error {
				changed.Position, changed.CreatedBy, changed.CreatedAt = to.Position, to.CreatedBy, to.CreatedAt
				*to = changed
				return nil
			})
		}
	}
	if err != nil && pages.StatusOf(err) >= http.StatusInternalServerError {
		return pages.Answer{}, err
	}
	if err != nil {
		page := s.rulePage(r, rule)
		page.Form, page.Problem = f, pages.Explain(ctx, err)
		return pages.ShowAgain(page.Page())
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.saved")})
	return pages.GoTo(ui.RulePath(rule.ID.String()))
}

func (s *Server) switchRule(on bool) pages.Handler {
	return func(r *http.Request) (pages.Answer, error) {
		rule, err := s.rule(r)
		if err == nil {
			_, err = s.Rules.Update(r.Context(), pages.ViewerOf(r.Context()).Actor(), rule.ID, func(to *enrolment.Rule) error {
				to.Enabled = on
				return nil
			})
		}
		return s.rulesChanged(r, err)
	}
}

func (s *Server) moveRule(r *http.Request) (pages.Answer, error) {
	rule, err := s.rule(r)
	if err != nil {
		return pages.Answer{}, err
	}
	to, err := strconv.Atoi(r.PostFormValue("to"))
	if err != nil {
		return pages.Answer{}, fleet.Refuse(fleet.ErrInvalid, "invalid_form.place")
	}
	_, err = s.Rules.Move(r.Context(), pages.ViewerOf(r.Context()).Actor(), rule.ID, to)
	return s.rulesChanged(r, err)
}

func (s *Server) deleteRule(r *http.Request) (pages.Answer, error) {
	rule, err := s.rule(r)
	if err == nil {
		err = s.Rules.Delete(r.Context(), pages.ViewerOf(r.Context()).Actor(), rule.ID)
	}
	return s.rulesChanged(r, err)
}

func (s *Server) rulesChanged(r *http.Request, err error) (pages.Answer, error) {
	if err != nil {
		return pages.Answer{}, err
	}
	s.Flash(r.Context(), ui.Flash{Text: pages.Text(r.Context(), "flash.saved")})
	return pages.GoTo(ui.PathRules)
}
