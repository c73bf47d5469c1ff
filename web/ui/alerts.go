package ui

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"fleetd/fleet"

	"fleetd/fleet/alert"
	"fleetd/web/forms"
	"fleetd/web/i18n"
)

// Addresses of alerts.
const (
	PathAlerts        = "/alerts"          // GET state ("ended" or none), limit, cursor
	PathSilences      = "/alerts/silences" // POST alert, kind, query, for, until, reason
	PathAlertSettings = "/settings/alerts" // GET page, POST thresholds
)

// AlertPath is the page of an alert; POST "acknowledge" accepts a note.
func AlertPath(id string, parts ...string) string {
	path := PathAlerts + "/" + url.PathEscape(id)
	for _, p := range parts {
		path += "/" + p
	}
	return path
}

// SilencePath ends a silence: POST.
func SilencePath(id string) string { return PathSilences + "/" + url.PathEscape(id) + "/end" }

// An AlertsPage lists open or ended alerts: GET [PathAlerts].
type AlertsPage struct {
	List    ListURL // with state
	Cards   []AlertCard
	Next    string
	Problem string // why the last act failed, in the page's language
	Admin   bool

	Silences   []SilenceRow // that have not ended; of the list of open alerts
	Silence    forms.Silence
	MaySilence bool
}

// A SilenceRow is a silence in the list.
type SilenceRow struct {
	Silence alert.Silence
	Alert   *alert.Alert // the only alert that it is about, if that has not ended
	Alerts  int          // open alerts that it keeps from being sent
	MayEnd  bool
}

func (v AlertsPage) ended() bool { return v.List.Get("state") == "ended" }

// An AlertPage is one alert with its history: GET [AlertPath].
type AlertPage struct {
	Card    AlertCard
	History []alert.Record
	Problem string
	Typed   string // note of a refused acknowledgement
}

// An AlertCard is one alert. A live stream sends it as a patch.
type AlertCard struct {
	Alert  alert.Alert
	MayAct bool // the viewer may acknowledge it

	MaySilence bool // the viewer may silence alerts
	Silenced   bool // it is not sent, and does not count
}

// AlertsNow is the first part of the overview; a live stream replaces it as a whole.
type AlertsNow struct {
	Cards    []AlertCard
	Hidden   bool // the viewer does not see the whole fleet
	Settling bool // fleetd has just started: presence does not count yet
}

// An alertGroup is alerts of one kind, severity and state, about different subjects.
type alertGroup []AlertCard

// groups groups the cards in their order; a group is at the position of its first card.
func (v AlertsNow) groups() (all []alertGroup) {
	alike := func(x, y AlertCard) bool {
		a, b := x.Alert, y.Alert
		return x.Silenced == y.Silenced && a.Kind == b.Kind && a.Severity == b.Severity && a.State == b.State &&
			i18n.Has("alert.many."+string(a.Kind))
	}
	for _, c := range v.Cards {
		i := slices.IndexFunc(all, func(g alertGroup) bool { return alike(g[0], c) })
		if i < 0 {
			all = append(all, alertGroup{c})
		} else {
			all[i] = append(all[i], c)
		}
	}
	return all
}

// names returns the subjects of the alerts.
func (g alertGroup) names() string {
	var all []string
	for _, c := range g {
		if name, ok := c.Alert.Params["name"].(string); ok && len(all) < 3 {
			all = append(all, shorten(name, 40))
		}
	}
	if len(all) < len(g) {
		all = append(all, "…")
	}
	return strings.Join(all, " · ")
}

// began returns the earliest beginning of the alerts.
func (g alertGroup) began() time.Time {
	first := g[0].Alert.Began
	for _, c := range g {
		if c.Alert.Began.Before(first) {
			first = c.Alert.Began
		}
	}
	return first
}

// An AlertSettingsPage shows the thresholds of alerts, and the recipients of mails: GET
// [PathAlertSettings]. Administrators post the form to it, groups to "/groups", recipients and language to "/mail", and
// an empty form to "/mail/test".
type AlertSettingsPage struct {
	Form       forms.Alerts
	Groups     []forms.Group
	Recipients string // one per line
	MailLang   string
	MailLeast  alert.Severity
	MailKinds  []alert.Kind
	Mail       alert.MailStatus
	Admin      bool
	Problem    string // why the last change failed, in the page's language
}

func (v AlertCard) id() string { return v.Alert.ID.String() }

// what returns the alert as text.
func (v AlertCard) what(ctx context.Context) string {
	p := page(ctx)
	return i18n.BecauseMarked(p.Lang, p.Zone, "alert.what.", v.Alert.Reason())
}

// remarked reports whether the card has a second line.
func (v AlertCard) remarked() bool {
	a := v.Alert
	return a.AckedAt != nil && a.State != alert.Open || v.Silenced && a.State != alert.Ended ||
		a.QuietSince != nil && a.EndedAt == nil
}

// lineURL returns the address of an alert's line in the overview: the page that the alert is about.
func (v AlertCard) lineURL(ctx context.Context) string {
	if to, _ := v.place(ctx); to != "" {
		return to
	}
	return AlertPath(v.id())
}

// place returns the page that the alert is about; key is the message of the link.
func (v AlertCard) place(ctx context.Context) (to, key string) {
	switch {
	case v.Alert.Query != "":
		return QueryPath(v.Alert.Query), "alert.devices"
	case v.Alert.Kind == alert.CampaignStopped || v.Alert.Kind == alert.CampaignStuck:
		return CampaignPath(v.Alert.Subject), "alert.campaign"
	case v.Alert.Kind == alert.PluginCrashing && page(ctx).Admin:
		return PluginPath(v.Alert.Subject), "alert.plugin"
	case v.Alert.Kind == alert.RecordRefused:
		return PathRecord, "record.title"
	case v.Alert.Kind == alert.NoStandby || v.Alert.Kind == alert.EdgeGone || v.Alert.Kind == alert.VersionsDiffer:
		return PathCluster, "alert.cluster"
	case v.Alert.Kind == alert.ToolQuarantined:
		return DevicePath(fleet.DeviceID(v.Alert.Subject), "tools"), "alert.tools"
	}
	return "", ""
}

var alertTones = map[alert.Severity]tone{alert.Warning: toneWarn, alert.Bad: toneBad}

func (v AlertCard) tone() tone {
	if v.Alert.State == alert.Ended || v.Silenced {
		return toneNone
	}
	return alertTones[v.Alert.Severity]
}

// faviconOf returns the icon of the browser tab for the severity of the worst open alert.
func faviconOf(worst alert.Severity) string {
	switch worst {
	case alert.Bad:
		return "favicon-bad.svg"
	case alert.Warning:
		return "favicon-warn.svg"
	}
	return "favicon.svg"
}
