package settings

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
	"fleetd/web/console/pages"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// maxTokenDays bounds the lifetime of a token with an expiry.
const maxTokenDays = 3650

func (s *Server) settingsRoutes() []pages.Route {
	const admin = fleet.RoleAdmin
	return []pages.Route{
		{Method: http.MethodGet, Pattern: ui.PathSettings, Role: fleet.RoleViewer, Reach: access.Own,
			Page: s.showSettings},
		{Method: http.MethodPost, Pattern: ui.PathSettings + "/tokens", Role: admin, Reach: access.Fleet,
			Page: s.createToken, Confirm: true},
		{Method: http.MethodPost, Pattern: ui.PathSettings + "/tokens/{token}/revoke", Role: admin, Reach: access.Fleet,
			Page: s.revokeToken, Confirm: true},
	}
}

func (s *Server) settingsPage(ctx context.Context) (ui.SettingsPage, error) {
	me := pages.ViewerOf(ctx).Actor()
	page := ui.SettingsPage{Mode: string(s.EnrolmentMode), Fleet: me.FleetRole() != "", Admin: pages.MayAdmin(ctx)}
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
	devices, err := s.CountDevices(ctx)
	v := pages.ViewerOf(ctx)
	facts := []ui.SystemFact{
		{Key: "version", Value: s.Version},
		{Key: "started", Value: i18n.DateTime(v.Lang, s.Started.In(v.Zone))},
		{Key: "ota", Value: s.OTAURL},
		{Key: "devices", Value: i18n.Number(v.Lang, int64(devices))},
	}
	return append(facts, s.System...), err
}

func (s *Server) showSettings(r *http.Request) (pages.Answer, error) {
	page, err := s.settingsPage(r.Context())
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// changed redirects to the settings after a change, or shows why the change failed.
func (s *Server) changed(r *http.Request, key string, err error) (pages.Answer, error) {
	ctx := r.Context()
	if err != nil && pages.StatusOf(err) >= http.StatusInternalServerError {
		return pages.Answer{}, err
	}
	if err == nil {
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, key)})
		return pages.GoTo(ui.PathSettings)
	}
	page, failed := s.settingsPage(ctx)
	if failed != nil {
		return pages.Answer{}, failed
	}
	page.Problem = pages.Explain(ctx, err)
	a, _ := pages.ShowAgain(page.Page())
	a.Status = pages.StatusOf(err)
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
func (s *Server) createToken(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	expires, err := tokenExpiry(r.PostFormValue("days"), s.Now())
	if err != nil {
		return s.changed(r, "", err)
	}
	perMinute, err := postedRate(r)
	if err != nil {
		return s.changed(r, "", err)
	}
	made, secret, err := s.Operators.NewToken(ctx, pages.ViewerOf(ctx).Actor(),
		operator.TokenRequest{Name: r.PostFormValue("name"),
			Role: fleet.Role(r.PostFormValue("role")), Kind: fleet.PrincipalKind(r.PostFormValue("kind")),
			Scope: r.PostFormValue("scope"), Tools: strings.FieldsFunc(r.PostFormValue("tools"), pages.BetweenTools),
			PerMinute: perMinute, ExpiresAt: expires})
	if err != nil {
		return s.changed(r, "", err)
	}
	page, err := s.settingsPage(ctx)
	if err != nil {
		return pages.Answer{}, err
	}
	page.NewToken, page.NewTokenNoTools = secret, made.Scope != nil && made.Scope.NoTools
	if made.Kind == fleet.KindModel {
		page.Clients, page.ClientsLocal = ui.MCPClients(s.PublicURL, secret), pages.LocalOnly(s.PublicURL)
	}
	return pages.Show(page.Page())
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

func (s *Server) revokeToken(r *http.Request) (pages.Answer, error) {
	id, err := uuid.Parse(chi.URLParam(r, "token"))
	if err != nil {
		return pages.Answer{}, pages.ErrNoPage
	}
	err = s.Operators.Revoke(r.Context(), pages.ViewerOf(r.Context()).Actor(), id)
	if errors.Is(err, fleet.ErrNotFound) {
		return pages.Answer{}, err
	}
	return s.changed(r, "flash.token_revoked", err)
}
