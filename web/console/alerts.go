package console

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/web/access"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// alertRoutes are the pages about alerts.
func (s *Server) alertRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	one := ui.PathAlerts + "/{alert}"
	return []route{
		{method: get, pattern: ui.PathAlerts, role: fleet.RoleViewer, reach: access.Fleet, page: s.listAlerts},
		{method: get, pattern: one, role: fleet.RoleViewer, reach: access.Fleet, page: s.showAlert},
		{method: post, pattern: one + "/acknowledge", role: fleet.RoleOperator, reach: access.Fleet,
			page: s.acknowledgeAlert},
		{method: post, pattern: ui.PathSilences, role: fleet.RoleOperator, reach: access.Part, page: s.silenceAlerts},
		{method: post, pattern: ui.PathSilences + "/{silence}/end", role: fleet.RoleOperator, reach: access.Part,
			page: s.endSilence},
		{method: get, pattern: ui.PathAlertSettings, role: fleet.RoleViewer, reach: access.Fleet,
			page: s.showAlertSettings},
		{method: post, pattern: ui.PathAlertSettings, role: fleet.RoleAdmin, reach: access.Fleet,
			page: s.setAlertThresholds},
		{method: post, pattern: ui.PathAlertSettings + "/groups", role: fleet.RoleAdmin, reach: access.Fleet,
			page: s.setAlertGroups},
		{method: post, pattern: ui.PathAlertSettings + "/mail", role: fleet.RoleAdmin, reach: access.Fleet,
			page: s.setAlertMail},
		{method: post, pattern: ui.PathAlertSettings + "/mail/test", role: fleet.RoleAdmin, reach: access.Fleet,
			page: s.testAlertMail},
	}
}

func alertCards(ctx context.Context, list []alert.Alert) (cards []ui.AlertCard) {
	by := viewerOf(ctx).actor()
	may, maySilence, now := by.FleetRole().Allows(fleet.RoleOperator), alert.MaySilence(by), time.Now()
	for _, a := range list {
		cards = append(cards, ui.AlertCard{Alert: a, MayAct: may, MaySilence: maySilence, Silenced: a.Silenced(now)})
	}
	return cards
}

// alertsNow returns the alerts at the top of the overview.
func (s *Server) alertsNow(ctx context.Context) ui.AlertsNow {
	by := viewerOf(ctx).actor()
	return ui.AlertsNow{Cards: alertCards(ctx, s.Alerts.Current(by)), Hidden: !alert.Sees(by),
		Settling: s.Alerts.Settling()}
}

func (s *Server) listAlerts(r *http.Request) (answer, error) {
	ctx := r.Context()
	page := ui.AlertsPage{List: listURL(r, ui.PathAlerts, "state")}
	if page.List.Get("state") != "ended" {
		page, err := s.openAlertsPage(ctx, page.List)
		if err != nil {
			return answer{}, err
		}
		page.Silence.Alert = r.URL.Query().Get("silence")
		return show(page.Page())
	}
	f := alert.Filter{Limit: limitOf(page.List), Cursor: page.List.Get("cursor"), States: []alert.Status{alert.Ended}}
	found, err := s.Alerts.List(ctx, viewerOf(ctx).actor(), f)
	if errorCode(err) == "invalid_cursor" {
		return goTo(page.List.At(""))
	}
	if err != nil {
		return answer{}, err
	}
	page.Cards, page.Next = alertCards(ctx, found.Items), found.Next
	return show(page.Page())
}

// openAlertsPage returns the alerts in the order of the overview, and the silences.
func (s *Server) openAlertsPage(ctx context.Context, list ui.ListURL) (ui.AlertsPage, error) {
	by := viewerOf(ctx).actor()
	open := s.Alerts.Current(by)
	page := ui.AlertsPage{List: list, Cards: alertCards(ctx, open), MaySilence: alert.MaySilence(by),
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
func (s *Server) silenceAlerts(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	ctx := r.Context()
	form := forms.PostedSilence(r.PostForm)
	request, err := form.Read(viewerOf(ctx).zone)
	var undo takeBack
	if err == nil {
		made, failed := s.Alerts.Silence(ctx, viewerOf(ctx).actor(), request)
		undo = func(ctx context.Context, by fleet.Principal) error {
			_, err := s.Alerts.EndSilence(ctx, by, made.ID)
			return err
		}
		err = failed
	}
	return s.silencesChanged(r, "flash.alert_silenced", form, err, undo)
}

func (s *Server) endSilence(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	id, err := uuid.Parse(chi.URLParam(r, "silence"))
	if err != nil {
		return answer{}, errNoPage
	}
	_, err = s.Alerts.EndSilence(r.Context(), viewerOf(r.Context()).actor(), id)
	return s.silencesChanged(r, "flash.silence_ended", forms.Silence{For: forms.SilenceTimes[1]}, err, nil)
}

func (s *Server) silencesChanged(r *http.Request, key string, form forms.Silence, err error,
	undo takeBack) (answer, error) {
	ctx := r.Context()
	switch {
	case err == nil:
		s.flash(ctx, s.undoable(ctx, ui.Flash{Text: text(ctx, key)}, undo))
		if next := localPath(r.PostFormValue("next")); next != ui.PathHome || r.PostFormValue("next") == ui.PathHome {
			return goTo(next)
		}
		return goTo(ui.PathAlerts)
	case statusOf(err) >= http.StatusInternalServerError || errors.Is(err, fleet.ErrNotFound):
		return answer{}, err
	}
	page, failed := s.openAlertsPage(ctx, listURL(r, ui.PathAlerts, "state"))
	if failed != nil {
		return answer{}, failed
	}
	page.Problem, page.Silence = explain(ctx, err), form
	again, _ := showAgain(page.Page())
	again.status = statusOf(err)
	return again, nil
}

// alertPage reads the alert in the address.
func (s *Server) alertPage(r *http.Request) (ui.AlertPage, error) {
	id, err := uuid.Parse(chi.URLParam(r, "alert"))
	if err != nil {
		return ui.AlertPage{}, errNoPage
	}
	ctx := r.Context()
	a, history, err := s.Alerts.Get(ctx, viewerOf(ctx).actor(), id)
	if err != nil {
		return ui.AlertPage{}, err
	}
	return ui.AlertPage{Card: alertCards(ctx, []alert.Alert{a})[0], History: history}, nil
}

func (s *Server) showAlert(r *http.Request) (answer, error) {
	page, err := s.alertPage(r)
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

// acknowledgeAlert redirects to the page with the button, or shows on the alert's page why the act
// failed.
func (s *Server) acknowledgeAlert(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	page, err := s.alertPage(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	_, err = s.Alerts.Acknowledge(ctx, viewerOf(ctx).actor(), page.Card.Alert.ID, r.PostFormValue("note"))
	switch {
	case err == nil:
		id := page.Card.Alert.ID
		done := ui.Flash{Text: text(ctx, "flash.alert_acknowledged"), Link: ui.AlertPath(id.String())}
		s.flash(ctx, s.undoable(ctx, done, func(ctx context.Context, by fleet.Principal) error {
			_, err := s.Alerts.Reopen(ctx, by, id)
			return err
		}))
		return goTo(localPath(r.PostFormValue("next")))
	case statusOf(err) >= http.StatusInternalServerError || errors.Is(err, fleet.ErrNotFound):
		return answer{}, err
	}
	if now, err := s.alertPage(r); err == nil {
		page = now // another operator may have been faster
	}
	page.Problem = explain(ctx, err)
	again, _ := showAgain(page.Page())
	again.status = statusOf(err)
	return again, nil
}

func (s *Server) alertSettingsPage(ctx context.Context) (ui.AlertSettingsPage, error) {
	settings, err := s.Alerts.Settings(ctx, viewerOf(ctx).actor())
	return ui.AlertSettingsPage{Form: forms.FillAlerts(settings), Groups: forms.FillGroups(settings.Groups),
		MailLeast: settings.MailLeast, MailKinds: settings.MailKinds, Recipients: strings.Join(settings.Recipients, "\n"),
		MailLang: settings.MailLang, Mail: s.Alerts.MailStatus(), Admin: mayAdmin(ctx)}, err
}

func (s *Server) showAlertSettings(r *http.Request) (answer, error) {
	page, err := s.alertSettingsPage(r.Context())
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

// alertsSet redirects to the page after a change, or shows there why the change failed; keep
// restores the text as typed.
func (s *Server) alertsSet(r *http.Request, key string, err error, keep func(*ui.AlertSettingsPage)) (answer, error) {
	ctx := r.Context()
	if err == nil {
		s.flash(ctx, ui.Flash{Text: text(ctx, key)})
		return goTo(ui.PathAlertSettings)
	}
	if statusOf(err) >= http.StatusInternalServerError {
		return answer{}, err
	}
	page, failed := s.alertSettingsPage(ctx)
	if failed != nil {
		return answer{}, failed
	}
	if page.Problem = explain(ctx, err); keep != nil {
		keep(&page)
	}
	again, _ := showAgain(page.Page())
	again.status = statusOf(err)
	return again, nil
}

func (s *Server) setAlertThresholds(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	form := forms.PostedAlerts(r.PostForm)
	change, err := form.Read()
	if err == nil {
		_, err = s.Alerts.SetSettings(r.Context(), viewerOf(r.Context()).actor(), change)
	}
	return s.alertsSet(r, "flash.alert_settings", err, func(page *ui.AlertSettingsPage) { page.Form = form })
}

func (s *Server) setAlertGroups(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	form := forms.PostedGroups(r.PostForm)
	groups, err := forms.ReadGroups(form)
	if err == nil {
		_, err = s.Alerts.SetSettings(r.Context(), viewerOf(r.Context()).actor(), alert.SettingsChange{Groups: &groups})
	}
	return s.alertsSet(r, "flash.alert_settings", err, func(page *ui.AlertSettingsPage) { page.Groups = form })
}

func (s *Server) setAlertMail(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	typed, lang := r.PostFormValue("recipients"), r.PostFormValue("language")
	to := strings.FieldsFunc(typed, betweenTools)
	route := postedRoute(r.PostForm)
	_, err := s.Alerts.SetSettings(r.Context(), viewerOf(r.Context()).actor(),
		alert.SettingsChange{Recipients: &to, MailLang: &lang, MailLeast: &route.Least, MailKinds: &route.Kinds})
	return s.alertsSet(r, "flash.alert_settings", err, func(page *ui.AlertSettingsPage) {
		page.MailLeast, page.MailKinds = route.Least, route.Kinds
		page.Recipients, page.MailLang = fleet.CleanText(strings.Join(to, "\n"), 4000), lang
	})
}

func (s *Server) testAlertMail(r *http.Request) (answer, error) {
	ctx := r.Context()
	status, err := s.Alerts.TestMail(ctx, viewerOf(ctx).actor())
	if err == nil && status.Failure != "" {
		s.flash(ctx, ui.Flash{Bad: true, Text: text(ctx, "flash.alert_mail_failed", "why", status.Failure)})
		return goTo(ui.PathAlertSettings)
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

func (s *Server) newAlertsView(r *http.Request) (view, error) {
	q := r.URL.Query()
	v := &alertsView{server: s, ended: q.Get("state") == "ended", began: s.now(), seen: make(map[uuid.UUID]bool)}
	if id := q.Get("id"); id != "" {
		var err error
		if v.only, err = uuid.Parse(id); err != nil {
			return nil, errNoPage
		}
	}
	if !alert.Sees(viewerOf(r.Context()).actor()) {
		return nil, errNoPage
	}
	return v, nil
}

func (v *alertsView) pace() time.Duration { return paceRows }

func (v *alertsView) wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventAlert && (v.only == uuid.Nil || e.Subject == v.only.String())
}

func (v *alertsView) begin(context.Context) (updates, error) { return updates{}, nil }

func (v *alertsView) render(ctx context.Context, events []fleet.Event) (u updates, err error) {
	for _, e := range events {
		id, err := uuid.Parse(e.Subject)
		if err != nil {
			continue
		}
		a, history, err := v.server.Alerts.Get(ctx, viewerOf(ctx).actor(), id)
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
			u.fresh++
		}
		u.patches = append(u.patches, alertCards(ctx, []alert.Alert{a})[0].View())
	}
	return u, nil
}
