package api

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/web/access"
	"fleetd/web/i18n"
)

func (a *api) registerAlerts() {
	const whole = "Alerts count the whole fleet: a principal that does not see every device sees none of them."
	register(a, operation{id: "list-alerts", method: http.MethodGet, path: "/alerts", role: fleet.RoleViewer,
		reach: access.Fleet, models: fleet.ModelsMay, summary: "List alerts", about: "Newest first. " + whole}, a.listAlerts)
	register(a, operation{id: "get-alert", method: http.MethodGet, path: "/alerts/{id}", role: fleet.RoleViewer,
		reach: access.Fleet, models: fleet.ModelsMay, noun: "alert", summary: "Get an alert with its history", about: whole}, a.getAlert)
	register(a, operation{id: "acknowledge-alert", method: http.MethodPost, path: "/alerts/{id}/acknowledge",
		role: fleet.RoleOperator, reach: access.Fleet, models: fleet.ModelsNever, noun: "alert", summary: "Acknowledge an alert",
		about: "Records that somebody is looking into it. The alert ends once its condition has been clear for a while."},
		a.acknowledgeAlert)
	register(a, operation{id: "reopen-alert", method: http.MethodPost, path: "/alerts/{id}/reopen",
		role: fleet.RoleOperator, reach: access.Fleet, models: fleet.ModelsNever, noun: "alert",
		summary: "Take back an acknowledgement", about: "Only who acknowledged the alert may. Webhooks get it as alert.opened."},
		a.reopenAlert)
	register(a, operation{id: "get-alert-thresholds", method: http.MethodGet, path: "/alerts/thresholds",
		role: fleet.RoleViewer, reach: access.Fleet, models: fleet.ModelsMay, summary: "Get alert thresholds"},
		a.getAlertThresholds)
	register(a, operation{id: "update-alert-thresholds", method: http.MethodPatch, path: "/alerts/thresholds",
		role: fleet.RoleAdmin, reach: access.Fleet, models: fleet.ModelsNever, summary: "Change alert thresholds",
		about: "Omitted conditions and fields stay as they are."}, a.updateAlertThresholds)
	a.registerSilences()
}

// AlertView is an alert. It is exported so that alertWithHistory can embed it.
type AlertView struct {
	ID       uuid.UUID      `json:"id"`
	Kind     alert.Kind     `json:"kind" enum:"online_dropped,flapping,devices_offline,group_offline,crash_loop,rolled_back,campaign_stopped,campaign_stuck,tools_changed,certificate_expiring,disk_low,upstream_down,plugin_crashing,record_not_delivered,tool_quarantined,no_standby,edge_gone,versions_differ"`
	Subject  string         `json:"subject" doc:"Id of the campaign, or name of the certificate, disk, voice server, plug-in or device that it is about; empty for the fleet"`
	State    alert.Status   `json:"state" enum:"open,acknowledged,ended"`
	Severity alert.Severity `json:"severity" enum:"warning,bad" doc:"It may rise while the alert lasts, but never falls"`
	Devices  int            `json:"devices" doc:"Number of devices concerned; 0 if it does not concern devices"`
	Query    string         `json:"query" doc:"Lists the devices, or the first of them if there are many; may be empty"`
	Params   fleet.Params   `json:"params,omitempty" doc:"Figures of the kind"`
	Message  string         `json:"message" doc:"The same in words"`
	BeganAt  time.Time      `json:"began_at" doc:"When its condition was first observed"`
	EndedAt  *time.Time     `json:"ended_at" doc:"null while it lasts"`
	AckedBy  *string        `json:"acknowledged_by" doc:"null if nobody has"`
	AckedAt  *time.Time     `json:"acknowledged_at"`
	Note     string         `json:"note"`
	Silence  *silenceView   `json:"silence,omitempty" doc:"The silence that keeps it from being sent; absent if none does"`
}

// TransformSchema marks the properties that may be null.
func (AlertView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "ended_at", "acknowledged_by", "acknowledged_at")
}

func alertOf(a alert.Alert, now time.Time) AlertView {
	v := AlertView{ID: a.ID, Kind: a.Kind, Subject: a.Subject, State: a.State, Severity: a.Severity, Devices: a.Devices,
		Query: a.Query, Params: a.Params, Message: i18n.Detail("alert.what.", a.Reason()), BeganAt: utc(a.Began),
		EndedAt: utcOrNil(a.EndedAt), AckedAt: utcOrNil(a.AckedAt), Note: a.Note}
	if a.AckedAt != nil {
		v.AckedBy = &a.AckedBy.Name
	}
	if a.Silence != nil && a.State != alert.Ended {
		if s := silenceOf(*a.Silence, now); s.Active {
			v.Silence = &s
		}
	}
	return v
}

type listAlertsInput struct {
	State string `query:"state" enum:"open,ended,all" default:"open" doc:"open: has not ended, whether acknowledged or not"`
	Paging
}

func (a *api) listAlerts(ctx context.Context, by fleet.Principal, in *listAlertsInput) (*answer[list[AlertView]],
	error) {
	f := alert.Filter{Limit: in.Limit, Cursor: in.Cursor}
	switch in.State {
	case "open":
		f.States = []alert.Status{alert.Open, alert.Acknowledged}
	case "ended":
		f.States = []alert.Status{alert.Ended}
	}
	found, err := a.Alerts.List(ctx, by, f)
	if err != nil {
		return nil, err
	}
	return pageOf(found, func(v alert.Alert) AlertView { return alertOf(v, time.Now()) }), nil
}

// alertWithHistory is an alert with its history.
type alertWithHistory struct {
	AlertView
	History []alertRecordView `json:"history" nullable:"false" doc:"Oldest first"`
}

type alertRecordView struct {
	At       time.Time      `json:"at"`
	Event    alert.Event    `json:"event" enum:"opened,worsened,acknowledged,reopened,ended,silenced,unsilenced"`
	Severity alert.Severity `json:"severity" enum:"warning,bad"`
	Devices  int            `json:"devices"`
	By       string         `json:"by" doc:"Who acknowledged, reopened or silenced it; empty: fleetd itself"`
	Note     string         `json:"note"`
}

func (a *api) getAlert(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[alertWithHistory], error) {
	found, history, err := a.Alerts.Get(ctx, by, in.uuid())
	if err != nil {
		return nil, err
	}
	v := alertWithHistory{AlertView: alertOf(found, time.Now()), History: make([]alertRecordView, len(history))}
	for i, r := range history {
		v.History[i] = alertRecordView{At: utc(r.At), Event: r.Event, Severity: r.Severity, Devices: r.Devices,
			By: r.By.Name, Note: r.Note}
	}
	return answerWith(v), nil
}

type acknowledgeInput struct {
	IDPath
	Body struct {
		Note string `json:"note,omitempty" maxLength:"500" doc:"Note on what is being done about it"`
	}
}

func (a *api) acknowledgeAlert(ctx context.Context, by fleet.Principal, in *acknowledgeInput) (*answer[AlertView],
	error) {
	found, err := a.Alerts.Acknowledge(ctx, by, in.uuid(), in.Body.Note)
	if err != nil {
		return nil, err
	}
	return answerWith(alertOf(found, time.Now())), nil
}

func (a *api) reopenAlert(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[AlertView], error) {
	found, err := a.Alerts.Reopen(ctx, by, in.uuid())
	if err != nil {
		return nil, err
	}
	return answerWith(alertOf(found, time.Now())), nil
}

// thresholdView is the threshold of one condition.
type thresholdView struct {
	Kind    alert.Kind `json:"kind" enum:"online_dropped,flapping,devices_offline,group_offline,crash_loop,rolled_back,campaign_stopped,campaign_stuck,tools_changed,certificate_expiring,disk_low,upstream_down,plugin_crashing,record_not_delivered,tool_quarantined,no_standby,edge_gone,versions_differ"`
	Enabled bool       `json:"enabled"`
	Percent *int       `json:"percent,omitempty" doc:"online_dropped: points that the share of devices online fell by; devices_offline and flapping: of the fleet, from which on it is bad; disk_low: of the disk that is free"`
	Span    *int64     `json:"span_ms,omitempty" doc:"The period that the condition covers or must last; see docs/alerts.md"`
	Count   *int       `json:"count,omitempty" doc:"Devices; of one device, its restarts for crash_loop and its reconnects for flapping"`
}

// groupView is a rule of group_offline.
type groupView struct {
	Name     string `json:"name" minLength:"1" maxLength:"120" doc:"Subject of its alert"`
	Query    string `json:"query" maxLength:"900" doc:"Filter over id, name, board, chip, kind and tag; empty: the whole fleet"`
	Warning  int    `json:"warning_percent" minimum:"1" maximum:"100" doc:"Share of the devices offline from which on there is a warning"`
	Critical int    `json:"critical_percent" minimum:"0" maximum:"100" doc:"Share from which on the alert is bad; 0: never"`
	Least    int    `json:"least" minimum:"1" maximum:"1000000" doc:"Number of devices that must be offline"`
	Span     int64  `json:"span_ms" minimum:"10000" maximum:"7776000000" doc:"How long a device must have been offline"`
}

type thresholdsView struct {
	Conditions []thresholdView `json:"conditions" nullable:"false"`
	OpenAfter  int64           `json:"open_after_ms" doc:"How long a condition must hold before its alert opens"`
	EndAfter   int64           `json:"end_after_ms" doc:"How long a condition must be clear before its alert ends"`
	Groups     []groupView     `json:"groups" nullable:"false" doc:"Rules of group_offline"`
	Settle     int64           `json:"settle_ms" doc:"How long devices have to reconnect after fleetd starts, before presence conditions apply; less if most are back earlier"`
}

func thresholdsOf(s alert.Settings) thresholdsView {
	v := thresholdsView{OpenAfter: s.OpenAfter.Milliseconds(), EndAfter: s.EndAfter.Milliseconds(),
		Settle: s.Settle.Milliseconds(), Groups: []groupView{}}
	for _, g := range s.Groups {
		v.Groups = append(v.Groups, groupView{Name: g.Name, Query: g.Query, Warning: g.Warning, Critical: g.Critical,
			Least: g.Least, Span: g.Span.Milliseconds()})
	}
	for _, c := range alert.Conditions {
		t := s.Thresholds[c.Kind]
		row := thresholdView{Kind: c.Kind, Enabled: t.Enabled}
		if c.Most.Percent > 0 {
			row.Percent = &t.Percent
		}
		if c.Most.Span > 0 {
			row.Span = ptr(t.Span.Milliseconds())
		}
		if c.Most.Count > 0 {
			row.Count = &t.Count
		}
		v.Conditions = append(v.Conditions, row)
	}
	return v
}

func (a *api) getAlertThresholds(ctx context.Context, by fleet.Principal, _ *struct{}) (*answer[thresholdsView],
	error) {
	s, err := a.Alerts.Settings(ctx, by)
	if err != nil {
		return nil, err
	}
	return answerWith(thresholdsOf(s)), nil
}

type updateThresholdsInput struct {
	Body struct {
		Conditions []struct {
			Kind    alert.Kind `json:"kind" enum:"online_dropped,flapping,devices_offline,group_offline,crash_loop,rolled_back,campaign_stopped,campaign_stuck,tools_changed,certificate_expiring,disk_low,upstream_down,plugin_crashing,record_not_delivered,tool_quarantined,no_standby,edge_gone,versions_differ"`
			Enabled *bool      `json:"enabled,omitempty"`
			Percent *int       `json:"percent,omitempty" minimum:"0" maximum:"100"`
			Span    *int64     `json:"span_ms,omitempty" minimum:"0" maximum:"31536000000"`
			Count   *int       `json:"count,omitempty" minimum:"0" maximum:"1000000"`
		} `json:"conditions,omitempty" nullable:"false" maxItems:"50"`
		Groups    *[]groupView `json:"groups,omitempty" nullable:"false" maxItems:"50" doc:"All of them; replaces the previous ones"`
		OpenAfter *int64       `json:"open_after_ms,omitempty" minimum:"0" maximum:"3600000"`
		EndAfter  *int64       `json:"end_after_ms,omitempty" minimum:"0" maximum:"3600000"`
		Settle    *int64       `json:"settle_ms,omitempty" minimum:"0" maximum:"3600000"`
	}
}

func (a *api) updateAlertThresholds(ctx context.Context, by fleet.Principal, in *updateThresholdsInput) (
	*answer[thresholdsView], error) {
	s, err := a.Alerts.Settings(ctx, by)
	if err != nil {
		return nil, err
	}
	b := &in.Body
	change := alert.SettingsChange{Thresholds: make(map[alert.Kind]alert.Threshold), OpenAfter: milliseconds(b.OpenAfter),
		EndAfter: milliseconds(b.EndAfter), Settle: milliseconds(b.Settle)}
	for _, c := range b.Conditions {
		t := s.Thresholds[c.Kind]
		setIf(&t.Enabled, c.Enabled)
		setIf(&t.Percent, c.Percent)
		setIf(&t.Count, c.Count)
		setIf(&t.Span, milliseconds(c.Span))
		change.Thresholds[c.Kind] = t
	}
	if b.Groups != nil {
		groups := []alert.Group{}
		for _, g := range *b.Groups {
			groups = append(groups, alert.Group{Name: g.Name, Query: g.Query, Warning: g.Warning, Critical: g.Critical,
				Least: g.Least, Span: time.Duration(g.Span) * time.Millisecond})
		}
		change.Groups = &groups
	}
	if s, err = a.Alerts.SetSettings(ctx, by, change); err != nil {
		return nil, err
	}
	return answerWith(thresholdsOf(s)), nil
}

func setIf[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

func milliseconds(n *int64) *time.Duration {
	if n == nil {
		return nil
	}
	return ptr(time.Duration(*n) * time.Millisecond)
}

func (a *api) registerAlertMail() {
	register(a, operation{id: "get-alert-mail", method: http.MethodGet, path: "/alerts/mail", role: fleet.RoleAdmin,
		reach: access.Fleet, models: fleet.ModelsNever, summary: "Get alert mail settings"}, a.getAlertMail)
	register(a, operation{id: "update-alert-mail", method: http.MethodPatch, path: "/alerts/mail", role: fleet.RoleAdmin,
		reach: access.Fleet, models: fleet.ModelsNever, summary: "Change alert mail settings",
		about: "Omitted fields stay as they are."}, a.updateAlertMail)
	register(a, operation{id: "test-alert-mail", method: http.MethodPost, path: "/alerts/mail/test",
		role: fleet.RoleAdmin, reach: access.Fleet, models: fleet.ModelsNever, summary: "Send a test mail to the recipients now",
		about: "Always answers 200; failure says whether it worked."}, a.testAlertMail)
}

type alertMailView struct {
	Enabled    bool           `json:"enabled" doc:"fleetd has a mail server: --smtp-url and --smtp-from"`
	Recipients []string       `json:"recipients" nullable:"false"`
	Language   string         `json:"language" enum:"en,zh-CN"`
	Severity   alert.Severity `json:"severity" enum:"warning,bad" doc:"Lowest severity in mails"`
	Kinds      []alert.Kind   `json:"kinds" nullable:"false" doc:"Kinds of alerts in mails; empty: all"`
	LastAt     *time.Time     `json:"last_at" doc:"When fleetd last tried to send a mail since it started; null if never"`
	Failure    string         `json:"failure" doc:"Why it was not sent, in the mail server's words; empty if it was"`
}

// TransformSchema marks the properties that may be null.
func (alertMailView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "last_at")
}

func (a *api) alertMail(s alert.Settings, status alert.MailStatus) *answer[alertMailView] {
	return answerWith(alertMailView{Enabled: status.Enabled, Recipients: append([]string{}, s.Recipients...),
		Language: s.MailLang, Severity: cmp.Or(s.MailLeast, alert.Warning), Kinds: append([]alert.Kind{}, s.MailKinds...),
		LastAt: utcOrNil(&status.At), Failure: status.Failure})
}

func (a *api) getAlertMail(ctx context.Context, by fleet.Principal, _ *struct{}) (*answer[alertMailView], error) {
	s, err := a.Alerts.Settings(ctx, by)
	if err != nil {
		return nil, err
	}
	return a.alertMail(s, a.Alerts.MailStatus()), nil
}

type updateAlertMailInput struct {
	Body struct {
		Recipients *[]string       `json:"recipients,omitempty" nullable:"false" maxItems:"20" doc:"All of them; replaces the previous ones"`
		Language   *string         `json:"language,omitempty" enum:"en,zh-CN"`
		Severity   *alert.Severity `json:"severity,omitempty" enum:"warning,bad"`
		Kinds      *[]alert.Kind   `json:"kinds,omitempty" nullable:"false" maxItems:"50" doc:"All of them; replaces the previous ones"`
	}
}

func (a *api) updateAlertMail(ctx context.Context, by fleet.Principal, in *updateAlertMailInput) (
	*answer[alertMailView], error) {
	s, err := a.Alerts.SetSettings(ctx, by, alert.SettingsChange{Recipients: in.Body.Recipients,
		MailLang: in.Body.Language, MailLeast: in.Body.Severity, MailKinds: in.Body.Kinds})
	if err != nil {
		return nil, err
	}
	return a.alertMail(s, a.Alerts.MailStatus()), nil
}

func (a *api) testAlertMail(ctx context.Context, by fleet.Principal, _ *struct{}) (*answer[alertMailView], error) {
	status, err := a.Alerts.TestMail(ctx, by)
	if err != nil {
		return nil, err
	}
	s, err := a.Alerts.Settings(ctx, by)
	if err != nil {
		return nil, err
	}
	return a.alertMail(s, status), nil
}
