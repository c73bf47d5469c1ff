package settings

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/policy"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

func (s *Server) policyRoutes() []pages.Route {
	const viewer, admin = fleet.RoleViewer, fleet.RoleAdmin
	rule := ui.PathPolicies + "/{policy}"
	return []pages.Route{
		{Method: http.MethodGet, Pattern: ui.PathPolicies, Role: viewer, Reach: access.Fleet, Page: s.listPolicies},
		{Method: http.MethodPost, Pattern: ui.PathPolicies, Role: admin, Reach: access.Fleet, Page: s.createPolicy,
			Confirm: true},
		{Method: http.MethodGet, Pattern: rule, Role: viewer, Reach: access.Fleet, Page: s.showPolicy},
		{Method: http.MethodPost, Pattern: rule + "/edit", Role: admin, Reach: access.Fleet, Page: s.editPolicy,
			Confirm: true},
		{Method: http.MethodPost, Pattern: rule + "/enable", Role: admin, Reach: access.Fleet, Page: s.switchPolicy(true),
			Confirm: true},
		{Method: http.MethodPost, Pattern: rule + "/disable", Role: admin, Reach: access.Fleet, Page: s.switchPolicy(false),
			Confirm: true},
		{Method: http.MethodPost, Pattern: rule + "/move", Role: admin, Reach: access.Fleet, Page: s.movePolicy,
			Confirm: true},
		{Method: http.MethodPost, Pattern: rule + "/delete", Role: admin, Reach: access.Fleet, Page: s.deletePolicy,
			Confirm: true},
	}
}

func (s *Server) policiesPage(r *http.Request) (ui.PoliciesPage, error) {
	ctx := r.Context()
	page := ui.PoliciesPage{Table: s.Policies.Table(), Admin: pages.MayAdmin(r.Context()),
		Form:  forms.Policy{Enabled: true, Zone: "UTC"},
		Zones: policyZones(r)}
	if err := pages.ViewerOf(ctx).Actor().May(fleet.RoleViewer, "read_policies"); err != nil {
		return page, err
	}
	var err error
	if page.Warnings, err = s.Policies.Warnings(ctx); err != nil {
		return page, err
	}
	page.Trial, err = s.policyTrial(r)
	return page, err
}

// policyZones returns the time zones that a window is likely to use.
func policyZones(r *http.Request) []string {
	zones := slices.Concat([]string{pages.ViewerOf(r.Context()).Zone.String(), "UTC"}, pages.ZonesOffered)
	slices.Sort(zones)
	return slices.Compact(zones)
}

// policyTrial reads the trial in the address, and runs it if it contains a tool.
func (s *Server) policyTrial(r *http.Request) (ui.PolicyTrial, error) {
	ctx, q := r.Context(), r.URL.Query()
	v := ui.PolicyTrial{Caller: q.Get("caller"), On: strings.TrimSpace(q.Get("on")),
		Tool:      strings.TrimSpace(q.Get("tool")),
		Arguments: strings.TrimSpace(q.Get("arguments"))}
	operators, err := s.Operators.Operators(ctx)
	if err != nil {
		return v, err
	}
	for _, o := range operators {
		v.Operators = append(v.Operators, ui.PolicyCaller{Value: "op:" + o.ID.String(), Name: o.Name})
	}
	tokens, err := s.Operators.Tokens(ctx)
	if err != nil {
		return v, err
	}
	for _, t := range tokens {
		if t.RevokedAt == nil {
			v.Tokens = append(v.Tokens, ui.PolicyCaller{Value: "token:" + t.ID.String(), Name: t.Name + " …" + t.Hint})
		}
	}
	if v.Tools, err = s.Policies.ToolNames(ctx); err != nil || v.Tool == "" {
		return v, err
	}
	result, err := s.Tester.Test(ctx, pages.ViewerOf(ctx).Actor(), policy.Trial{Subject: policySubject(v.Caller),
		Query: v.On, Tool: v.Tool, Arguments: json.RawMessage(v.Arguments)})
	switch {
	case err != nil && pages.StatusOf(err) >= http.StatusInternalServerError:
		return v, err
	case err != nil:
		v.Problem = pages.Explain(ctx, err)
	default:
		v.Result = &result
	}
	return v, nil
}

// policySubject reads the caller of a trial: "op:ID", "token:ID" or "kind:role".
func policySubject(caller string) policy.Subject {
	what, which, _ := strings.Cut(caller, ":")
	id, err := uuid.Parse(which)
	switch {
	case err == nil && what == "op":
		return policy.Subject{Operator: id}
	case err == nil && what == "token":
		return policy.Subject{Token: id}
	}
	return policy.Subject{Kind: fleet.PrincipalKind(what), Role: fleet.Role(which)}
}

func (s *Server) listPolicies(r *http.Request) (pages.Answer, error) {
	page, err := s.policiesPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func readPolicy(r *http.Request) (f forms.Policy, version int64, err error) {
	if err := r.ParseForm(); err != nil {
		return f, 0, pages.FormError(err)
	}
	return forms.PostedPolicy(r.PostForm), policyVersion(r), nil
}

// policyVersion returns the version of the policy that the form is based on.
func policyVersion(r *http.Request) int64 {
	version, _ := strconv.ParseInt(r.PostFormValue("version"), 10, 64)
	return version
}

func (s *Server) createPolicy(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	f, version, err := readPolicy(r)
	if err == nil {
		var rule policy.Rule
		if rule, err = f.Read(); err == nil {
			_, err = s.Policies.Create(ctx, pages.ViewerOf(ctx).Actor(), version, -1, rule)
		}
	}
	if err != nil && pages.StatusOf(err) >= http.StatusInternalServerError {
		return pages.Answer{}, err
	}
	if err != nil {
		page, failed := s.policiesPage(r)
		if failed != nil {
			return pages.Answer{}, failed
		}
		page.Form, page.Problem = f, pages.Explain(ctx, err)
		return pages.ShowAgain(page.Page())
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.saved")})
	return pages.GoTo(ui.PathPolicies)
}

// policyRule returns the rule in the address, with the version of its table.
func (s *Server) policyRule(r *http.Request) (policy.Rule, int64, error) {
	id, err := uuid.Parse(chi.URLParam(r, "policy"))
	if err != nil {
		return policy.Rule{}, 0, pages.ErrNoPage
	}
	if err := pages.ViewerOf(r.Context()).Actor().May(fleet.RoleViewer, "read_policies"); err != nil {
		return policy.Rule{}, 0, err
	}
	t := s.Policies.Table()
	rule, ok := t.Rule(id)
	if !ok {
		return rule, 0, fleet.Refuse(fleet.ErrNotFound, "unknown_policy.id", "id", id)
	}
	return rule, t.Version, nil
}

func (s *Server) policyPage(r *http.Request, rule policy.Rule, version int64) (ui.PolicyPage, error) {
	warnings, err := s.Policies.Warnings(r.Context())
	return ui.PolicyPage{Rule: rule, Version: version, Warnings: warnings, Admin: pages.MayAdmin(r.Context()),
		Form: forms.FillPolicy(rule), Zones: policyZones(r)}, err
}

func (s *Server) showPolicy(r *http.Request) (pages.Answer, error) {
	rule, version, err := s.policyRule(r)
	if err != nil {
		return pages.Answer{}, err
	}
	page, err := s.policyPage(r, rule, version)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) editPolicy(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	rule, now, err := s.policyRule(r)
	if err != nil {
		return pages.Answer{}, err
	}
	f, version, err := readPolicy(r)
	if err == nil {
		var changed policy.Rule
		if changed, err = f.Read(); err == nil {
			_, err = s.Policies.Update(ctx, pages.ViewerOf(ctx).Actor(), version, rule.ID, func(to *policy.Rule) error {
				*to = changed
				return nil
			})
		}
	}
	if err != nil && pages.StatusOf(err) >= http.StatusInternalServerError {
		return pages.Answer{}, err
	}
	if err != nil {
		page, failed := s.policyPage(r, rule, now)
		if failed != nil {
			return pages.Answer{}, failed
		}
		page.Form, page.Problem = f, pages.Explain(ctx, err)
		return pages.ShowAgain(page.Page())
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.saved")})
	return pages.GoTo(ui.PathPolicies)
}

func (s *Server) switchPolicy(on bool) pages.Handler {
	return func(r *http.Request) (pages.Answer, error) {
		rule, _, err := s.policyRule(r)
		if err == nil {
			_, err = s.Policies.Update(r.Context(), pages.ViewerOf(r.Context()).Actor(), policyVersion(r), rule.ID,
				func(to *policy.Rule) error {
					to.Enabled = on
					return nil
				})
		}
		return s.policiesChanged(r, err)
	}
}

func (s *Server) movePolicy(r *http.Request) (pages.Answer, error) {
	rule, _, err := s.policyRule(r)
	if err != nil {
		return pages.Answer{}, err
	}
	to, err := strconv.Atoi(r.PostFormValue("to"))
	if err != nil {
		return pages.Answer{}, fleet.Refuse(fleet.ErrInvalid, "invalid_form.place")
	}
	_, err = s.Policies.Move(r.Context(), pages.ViewerOf(r.Context()).Actor(), policyVersion(r), rule.ID, to)
	return s.policiesChanged(r, err)
}

func (s *Server) deletePolicy(r *http.Request) (pages.Answer, error) {
	rule, _, err := s.policyRule(r)
	if err == nil {
		err = s.Policies.Delete(r.Context(), pages.ViewerOf(r.Context()).Actor(), policyVersion(r), rule.ID)
	}
	return s.policiesChanged(r, err)
}

func (s *Server) policiesChanged(r *http.Request, err error) (pages.Answer, error) {
	ctx := r.Context()
	switch {
	case err != nil && pages.ErrorCode(err) == "policy_changed": // the page shows the changed policy
		s.Flash(ctx, ui.Flash{Bad: true, Text: i18n.Unmarked(pages.Explain(ctx, err))})
	case err != nil:
		return pages.Answer{}, err
	default:
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.saved")})
	}
	return pages.GoTo(ui.PathPolicies)
}
