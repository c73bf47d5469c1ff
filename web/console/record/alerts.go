package record

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// alertRoutes are the pages about alerts.
func (s *Server) alertRoutes() []pages.Route {
	const get, post = http.MethodGet, http.MethodPost
	one := ui.PathAlerts + "/{alert}"
	return []pages.Route{
		{Method: get, Pattern: ui.PathAlerts, Role: fleet.RoleViewer, Reach: access.Fleet, Page: s.listAlerts},
		{Method: get, Pattern: one, Role: fleet.RoleViewer, Reach: access.Fleet, Page: s.showAlert},
		{Method: post, Pattern: one + "/acknowledge", Role: fleet.RoleOperator, Reach: access.Fleet,
			Page: s.acknowledgeAlert},
		{Method: post, Pattern: ui.PathSilences, Role: fleet.RoleOperator, Reach: access.Part, Page: s.silenceAlerts},
		{Method: post, Pattern: ui.PathSilences + "/{silence}/end", Role: fleet.RoleOperator, Reach: access.Part,
			Page: s.endSilence},
		{Method: get, Pattern: ui.PathAlertSettings, Role: fleet.RoleViewer, Reach: access.Fleet,
			Page: s.showAlertSettings},
		{Method: post, Pattern: ui.PathAlertSettings, Role: fleet.RoleAdmin, Reach: access.Fleet,
			Page: s.setAlertThresholds},
		{Method: post, Pattern: ui.PathAlertSettings + "/groups", Role: fleet.RoleAdmin, Reach: access.Fleet,
			Page: s.setAlertGroups},
		{Method: post, Pattern: ui.PathAlertSettings + "/mail", Role: fleet.RoleAdmin, Reach: access.Fleet,
			Page: s.setAlertMail},
		{Method: post, Pattern: ui.PathAlertSettings + "/mail/test", Role: fleet.RoleAdmin, Reach: access.Fleet,
			Page: s.testAlertMail},
	}
}

// AlertCards returns the cards of alerts, with what the viewer may do.
func AlertCards(ctx context.Context, list []alert.Alert) (cards []ui.AlertCard) {
	by := pages.ViewerOf(ctx).Actor()
	may, maySilence, now := by.FleetRole().Allows(fleet.RoleOperator), alert.MaySilence(by), time.Now()
	for _, a := range list {
		cards = append(cards, ui.AlertCard{Alert: a, MayAct: may, MaySilence: maySilence, Silenced: a.Silenced(now)})
	}
	return cards
}

// AlertsNow returns the alerts at the top of the overview.
func (s *Server) AlertsNow(ctx context.Context) ui.AlertsNow {
	by := pages.ViewerOf(ctx).Actor()
	return ui.AlertsNow{Cards: AlertCards(ctx, s.Alerts.Current(by)), Hidden: !alert.Sees(by),
		Settling: s.Alerts.Settling()}
}

func (s *Server) listAlerts(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	page := ui.AlertsPage{List: pages.ListURL(r, ui.PathAlerts, "state")}
	if page.List.Get("state") != "ended" {
		page, err := s.openAlertsPage(ctx, page.List)
		if err != nil {
			return pages.Answer{}, err
		}
		page.Silence.Alert = r.URL.Query().Get("silence")
		return pages.Show(page.Page())
	}
	f := alert.Filter{Limit: pages.LimitOf(page.List), Cursor: page.List.Get("cursor"), States: []alert.Status{alert.Ended}}
	found, err := s.Alerts.List(ctx, pages.ViewerOf(ctx).Actor(), f)
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(page.List.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	page.Cards, page.Next = AlertCards(ctx, found.Items), found.Next
	return pages.Show(page.Page())
}

// openAlertsPage returns the alerts in the order of the overview, and the silences.
func (s *Server) openAlertsPage(ctx context.Context, list ui.ListURL) (ui.AlertsPage, error) {
	by := pages.ViewerOf(ctx).Actor()
	open := s.Alerts.Current(by)
	page := ui.AlertsPage{List: list, Cards: AlertCards(ctx, open), MaySilence: alert.MaySilence(by),
		Silence: forms.Silence{For: forms.SilenceTimes[1]}}
	found, err := s.Alerts.Silences(ctx, by, alert.SilenceFilter{Active: true, Limit: alert.MaxSilences})
	if err != nil {
		return page, err
	}
	for _, one := range found.Items {
		row := ui.SilenceRow{Silence: one, MayEnd: one.MayEnd(by)}
		for _, a := range open {
			if a.ID == one.Alert {
				row.Alert = &a
			}
			if a.Silence != nil && a.Silence.ID == one.ID {
				row.Alerts++
			}
		}
		page.Silences = append(page.Silences, row)
	}
	return page, nil
}

// silenceAlerts redirects to the page with the form, or shows on the list why the act failed.
func (s *Server) silenceAlerts(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	ctx := r.Context()
	form := forms.PostedSilence(r.PostForm)
	request, err := form.Read(pages.ViewerOf(ctx).Zone)
	var undo pages.TakeBack
	if err == nil {
		made, failed := s.Alerts.Silence(ctx, pages.ViewerOf(ctx).Actor(), request)
		undo = func(ctx context.Context, by fleet.Principal) error {
			_, err := s.Alerts.EndSilence(ctx, by, made.ID)
			return err
		}
		err = failed
	}
	return s.silencesChanged(r, "flash.alert_silenced", form, err, undo)
}

func (s *Server) endSilence(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	id, err := uuid.Parse(chi.URLParam(r, "silence"))
	if err != nil {
		return pages.Answer{}, pages.ErrNoPage
	}
	_, err = s.Alerts.EndSilence(r.Context(), pages.ViewerOf(r.Context()).Actor(), id)
	return s.silencesChanged(r, "flash.silence_ended", forms.Silence{For: forms.SilenceTimes[1]}, err, nil)
}

func (s *Server) silencesChanged(r *http.Request, key string, form forms.Silence, err error,
	undo pages.TakeBack) (pages.Answer, error) {
	ctx := r.Context()
	switch {
	case err == nil:
		s.Flash(ctx, s.Undoable(ctx, ui.Flash{Text: pages.Text(ctx, key)}, undo))
		if next := pages.LocalPath(r.PostFormValue("next")); next != ui.PathHome || r.PostFormValue("next") == ui.PathHome {
			return pages.GoTo(next)
		}
		return pages.GoTo(ui.PathAlerts)
	case pages.StatusOf(err) >= http.StatusInternalServerError || errors.Is(err, fleet.ErrNotFound):
		return pages.Answer{}, err
	}
	page, failed := s.openAlertsPage(ctx, pages.ListURL(r, ui.PathAlerts, "state"))
	if failed != nil {
		return pages.Answer{}, failed
	}
	page.Problem, page.Silence = pages.Explain(ctx, err), form
	again, _ := pages.ShowAgain(page.Page())
	again.Status = pages.StatusOf(err)
	return again, nil
}

// alertPage reads the alert in the address.
func (s *Server) alertPage(r *http.Request) (ui.AlertPage, error) {
	id, err := uuid.Parse(chi.URLParam(r, "alert"))
	if err != nil {
		return ui.AlertPage{}, pages.ErrNoPage
	}
	ctx := r.Context()
	a, history, err := s.Alerts.Get(ctx, pages.ViewerOf(ctx).Actor(), id)
	if err != nil {
		return ui.AlertPage{}, err
	}
	return ui.AlertPage{Card: AlertCards(ctx, []alert.Alert{a})[0], History: history}, nil
}

func (s *Server) showAlert(r *http.Request) (pages.Answer, error) {
	page, err := s.alertPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// acknowledgeAlert redirects to the page with the button, or shows on the alert's page why the act
// failed.
func (s *Server) acknowledgeAlert(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	page, err := s.alertPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	_, err = s.Alerts.Acknowledge(ctx, pages.ViewerOf(ctx).Actor(), page.Card.Alert.ID, r.PostFormValue("note"))
	switch {
	case err == nil:
		id := page.Card.Alert.ID
		done := ui.Flash{Text: pages.Text(ctx, "flash.alert_acknowledged"), Link: ui.AlertPath(id.String())}
		s.Flash(ctx, s.Undoable(ctx, done, func(ctx context.Context, by fleet.Principal) error {
			_, err := s.Alerts.Reopen(ctx, by, id)
			return err
		}))
		return pages.GoTo(pages.LocalPath(r.PostFormValue("next")))
	case pages.StatusOf(err) >= http.StatusInternalServerError || errors.Is(err, fleet.ErrNotFound):
		return pages.Answer{}, err
	}
	if now, err := s.alertPage(r); err == nil {
		page = now // another operator may have been faster
	}
	page.Problem = pages.Explain(ctx, err)
	again, _ := pages.ShowAgain(page.Page())
	again.Status = pages.StatusOf(err)
	return again, nil
}

func (s *Server) alertSettingsPage(ctx context.Context) (ui.AlertSettingsPage, error) {
	settings, err := s.Alerts.Settings(ctx, pages.ViewerOf(ctx).Actor())
	return ui.AlertSettingsPage{Form: forms.FillAlerts(settings), Groups: forms.FillGroups(settings.Groups),
		MailLeast: settings.MailLeast, MailKinds: settings.MailKinds, Recipients: strings.Join(settings.Recipients, "\n"),
		MailLang: settings.MailLang, Mail: s.Alerts.MailStatus(), Admin: pages.MayAdmin(ctx)}, err
}

func (s *Server) showAlertSettings(r *http.Request) (pages.Answer, error) {
	page, err := s.alertSettingsPage(r.Context())
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// alertsSet redirects to the page after a change, or shows there why the change failed; keep
// restores the text as typed.
func (s *Server) alertsSet(r *http.Request, key string, err error, keep func(*ui.AlertSettingsPage)) (pages.Answer,
	error) {
	ctx := r.Context()
	if err == nil {
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, key)})
		return pages.GoTo(ui.PathAlertSettings)
	}
	if pages.StatusOf(err) >= http.StatusInternalServerError {
		return pages.Answer{}, err
	}
	page, failed := s.alertSettingsPage(ctx)
	if failed != nil {
		return pages.Answer{}, failed
	}
	if page.Problem = pages.Explain(ctx, err); keep != nil {
		keep(&page)
	}
	again, _ := pages.ShowAgain(page.Page())
	again.Status = pages.StatusOf(err)
	return again, nil
}

func (s *Server) setAlertThresholds(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	form := forms.PostedAlerts(r.PostForm)
	change, err := form.Read()
	if err == nil {
		_, err = s.Alerts.SetSettings(r.Context(), pages.ViewerOf(r.Context()).Actor(), change)
	}
	return s.alertsSet(r, "flash.alert_settings", err, func(page *ui.AlertSettingsPage) { page.Form = form })
}

func (s *Server) setAlertGroups(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	form := forms.PostedGroups(r.PostForm)
	groups, err := forms.ReadGroups(form)
	if err == nil {
		_, err = s.Alerts.SetSettings(r.Context(), pages.ViewerOf(r.Context()).Actor(), alert.SettingsChange{Groups: &groups})
	}
	return s.alertsSet(r, "flash.alert_settings", err, func(page *ui.AlertSettingsPage) { page.Groups = form })
}

func (s *Server) setAlertMail(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	typed, lang := r.PostFormValue("recipients"), r.PostFormValue("language")
	to := strings.FieldsFunc(typed, pages.BetweenTools)
	route := postedRoute(r.PostForm)
	_, err := s.Alerts.SetSettings(r.Context(), pages.ViewerOf(r.Context()).Actor(),
		alert.SettingsChange{Recipients: &to, MailLang: &lang, MailLeast: &route.Least, MailKinds: &route.Kinds})
	return s.alertsSet(r, "flash.alert_settings", err, func(page *ui.AlertSettingsPage) {
		page.MailLeast, page.MailKinds = route.Least, route.Kinds
		page.Recipients, page.MailLang = fleet.CleanText(strings.Join(to, "\n"), 4000), lang
	})
}

func (s *Server) testAlertMail(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	status, err := s.Alerts.TestMail(ctx, pages.ViewerOf(ctx).Actor())
	if err == nil && status.Failure != "" {
		s.Flash(ctx, ui.Flash{Bad: true, Text: pages.Text(ctx, "flash.alert_mail_failed", "why", status.Failure)})
		return pages.GoTo(ui.PathAlertSettings)
	}
	return s.alertsSet(r, "flash.alert_mail_sent", err, nil)
}

// An alertsView follows the list of alerts, or one alert.
type alertsView struct {
	server *Server
	only   uuid.UUID // of an alert's page
	ended  bool      // the list shows ended alerts
	began  time.Time // alerts that opened later are not on the page
	seen   map[uuid.UUID]bool
}

func (s *Server) newAlertsView(r *http.Request) (pages.View, error) {
	q := r.URL.Query()
	v := &alertsView{server: s, ended: q.Get("state") == "ended", began: s.Now(), seen: make(map[uuid.UUID]bool)}
	if id := q.Get("id"); id != "" {
		var err error
		if v.only, err = uuid.Parse(id); err != nil {
			return nil, pages.ErrNoPage
		}
	}
	if !alert.Sees(pages.ViewerOf(r.Context()).Actor()) {
		return nil, pages.ErrNoPage
	}
	return v, nil
}

func (v *alertsView) Pace() time.Duration { return pages.PaceRows }

func (v *alertsView) Wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventAlert && (v.only == uuid.Nil || e.Subject == v.only.String())
}

// Begin shows open alerts, and those that ended while the page was on its way.
func (v *alertsView) Begin(ctx context.Context) (u pages.Updates, err error) {
	by := pages.ViewerOf(ctx).Actor()
	var all []alert.Alert
	if v.only != uuid.Nil {
		a, _, err := v.server.Alerts.Get(ctx, by, v.only)
		if err != nil {
			return u, pages.Unless(err, fleet.ErrNotFound)
		}
		all = append(all, a)
	} else if !v.ended {
		ended, err := v.server.Alerts.List(ctx, by, alert.Filter{Limit: pages.MaxRows, States: []alert.Status{alert.Ended}})
		if err != nil {
			return u, err
		}
		all = slices.DeleteFunc(ended.Items, func(a alert.Alert) bool {
			return a.EndedAt == nil || a.EndedAt.Before(v.began.Add(-pages.Loading))
		})
		all = append(all, v.server.Alerts.Current(by)...)
	}
	for _, card := range AlertCards(ctx, all) {
		u.Patches = append(u.Patches, card.View())
	}
	return u, nil
}

func (v *alertsView) Render(ctx context.Context, events []fleet.Event) (u pages.Updates, err error) {
	for _, e := range events {
		id, err := uuid.Parse(e.Subject)
		if err != nil {
			continue
		}
		a, history, err := v.server.Alerts.Get(ctx, pages.ViewerOf(ctx).Actor(), id)
		if errors.Is(err, fleet.ErrNotFound) {
			continue
		}
		if err != nil {
			return u, err
		}
		at := a.Began
		if v.ended && a.EndedAt != nil {
			at = *a.EndedAt
		} else if len(history) > 0 {
			at = history[0].At
		}
		if v.only == uuid.Nil && v.ended == (a.State == alert.Ended) && !at.Before(v.began) && !v.seen[id] {
			v.seen[id] = true
			u.Fresh++
		}
		u.Patches = append(u.Patches, AlertCards(ctx, []alert.Alert{a})[0].View())
	}
	return u, nil
}
