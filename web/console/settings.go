package console

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/operator"
	"fleetd/web/access"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// maxTokenDays bounds the lifetime of a token with an expiry.
const maxTokenDays = 3650

func (s *Server) settingsRoutes() []route {
	const admin = fleet.RoleAdmin
	return []route{
		{method: http.MethodGet, pattern: ui.PathSettings, role: fleet.RoleViewer, reach: access.Own,
			page: s.showSettings},
		{method: http.MethodPost, pattern: ui.PathSettings + "/tokens", role: admin, reach: access.Fleet,
			page: s.createToken, confirm: true},
		{method: http.MethodPost, pattern: ui.PathSettings + "/tokens/{token}/revoke", role: admin, reach: access.Fleet,
			page: s.revokeToken, confirm: true},
	}
}

func (s *Server) settingsPage(ctx context.Context) (ui.SettingsPage, error) {
	me := viewerOf(ctx).actor()
	page := ui.SettingsPage{Mode: string(s.EnrolmentMode), Fleet: me.FleetRole() != "", Admin: mayAdmin(ctx)}
	if !page.Fleet {
		return page, nil // the rest concerns the fleet
	}
	operators, err := s.Operators.Operators(ctx)
	if err != nil {
		return page, err
	}
	for _, o := range operators {
		page.Operators = append(page.Operators, operatorRow(o, me))
	}
	tokens, err := s.Operators.Tokens(ctx)
	if err != nil {
		return page, err
	}
	for _, t := range tokens {
		page.Tokens = append(page.Tokens, ui.TokenRow{ID: t.ID.String(), Name: t.Name, Role: t.Role, Hint: t.Hint,
			By:      t.CreatedBy,
			Created: t.CreatedAt, LastUsed: t.LastUsedAt, Expires: t.ExpiresAt, Revoked: t.RevokedAt != nil,
			Model: t.Kind == fleet.KindModel, Scope: scopeRow(t.Scope), PerMinute: t.PerMinute,
			AllTools: t.Scope.AllTools(), NoTools: t.Scope != nil && t.Scope.NoTools})
	}
	page.System, err = s.system(ctx)
	return page, err
}

func scopeRow(s *fleet.Scope) ui.ScopeRow {
	if s == nil {
		return ui.ScopeRow{}
	}
	return ui.ScopeRow{Filter: s.Filter.Text, Rest: s.Rest, Tools: strings.Join(s.Tools, ", "),
		Claims: strings.Join(s.Filter.Claims(), ", ")}
}

// system returns the facts about this fleetd, including those that cmd/fleetd/server adds.
func (s *Server) system(ctx context.Context) ([]ui.SystemFact, error) {
	g, err := s.summary(ctx)
	v := viewerOf(ctx)
	facts := []ui.SystemFact{
		{Key: "version", Value: s.Version},
		{Key: "started", Value: i18n.DateTime(v.lang, s.started.In(v.zone))},
		{Key: "ota", Value: s.OTAURL},
		{Key: "devices", Value: i18n.Number(v.lang, int64(g.fleet))},
	}
	return append(facts, s.System...), err
}

func (s *Server) showSettings(r *http.Request) (answer, error) {
	page, err := s.settingsPage(r.Context())
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

// changed redirects to the settings after a change, or shows why the change failed.
func (s *Server) changed(r *http.Request, key string, err error) (answer, error) {
	ctx := r.Context()
	if err != nil && statusOf(err) >= http.StatusInternalServerError {
		return answer{}, err
	}
	if err == nil {
		s.flash(ctx, ui.Flash{Text: text(ctx, key)})
		return goTo(ui.PathSettings)
	}
	page, failed := s.settingsPage(ctx)
	if failed != nil {
		return answer{}, failed
	}
	page.Problem = explain(ctx, err)
	a, _ := showAgain(page.Page())
	a.status = statusOf(err)
	return a, nil
}

func postedAccess(r *http.Request) operator.Access {
	a := operator.Access{Role: fleet.Role(r.PostFormValue("role")), Scope: r.PostFormValue("scope")}
	if strings.TrimSpace(a.Scope) != "" {
		a.Rest = fleet.Role(r.PostFormValue("rest"))
	}
	return a
}

// createToken returns the page itself: the secret is shown only once and must not be stored for a
// next page.
func (s *Server) createToken(r *http.Request) (answer, error) {
	ctx := r.Context()
	expires, err := tokenExpiry(r.PostFormValue("days"), s.now())
	if err != nil {
		return s.changed(r, "", err)
	}
	perMinute, err := postedRate(r)
	if err != nil {
		return s.changed(r, "", err)
	}
	made, secret, err := s.Operators.NewToken(ctx, viewerOf(ctx).actor(),
		operator.TokenRequest{Name: r.PostFormValue("name"),
			Role: fleet.Role(r.PostFormValue("role")), Kind: fleet.PrincipalKind(r.PostFormValue("kind")),
			Scope: r.PostFormValue("scope"), Tools: strings.FieldsFunc(r.PostFormValue("tools"), betweenTools),
			PerMinute: perMinute, ExpiresAt: expires})
	if err != nil {
		return s.changed(r, "", err)
	}
	page, err := s.settingsPage(ctx)
	if err != nil {
		return answer{}, err
	}
	page.NewToken, page.NewTokenNoTools = secret, made.Scope != nil && made.Scope.NoTools
	if made.Kind == fleet.KindModel {
		page.Clients, page.ClientsLocal = ui.MCPClients(s.PublicURL, secret), LocalOnly(s.PublicURL)
	}
	return show(page.Page())
}

// postedRate returns the rate in a form; text that is not a number is refused with the limits.
func postedRate(r *http.Request) (int, error) {
	text := strings.TrimSpace(r.PostFormValue("per_minute"))
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fleet.Refuse(fleet.ErrInvalid, "invalid_per_minute", "limit", operator.MaxTokenPerMinute).At("per_minute")
	}
	return n, nil
}

func tokenExpiry(days string, now time.Time) (*time.Time, error) {
	n, err := strconv.Atoi(days)
	switch {
	case err != nil || n < 0 || n > maxTokenDays:
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_expiry", "days", maxTokenDays)
	case n == 0:
		return nil, nil
	}
	return new(now.AddDate(0, 0, n)), nil
}

func (s *Server) revokeToken(r *http.Request) (answer, error) {
	id, err := uuid.Parse(chi.URLParam(r, "token"))
	if err != nil {
		return answer{}, errNoPage
	}
	err = s.Operators.Revoke(r.Context(), viewerOf(r.Context()).actor(), id)
	if errors.Is(err, fleet.ErrNotFound) {
		return answer{}, err
	}
	return s.changed(r, "flash.token_revoked", err)
}
