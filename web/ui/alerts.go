package ui

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"fleetd/fleet/alert"
	"fleetd/web/forms"
	"fleetd/web/i18n"
)

// Addresses of alerts.
const (
	PathAlerts        = "/alerts"          // GET state ("ended" or none), limit, cursor
	PathAlertSettings = "/settings/alerts" // GET page, POST thresholds
)

// AlertPath is the page of an alert; POST "acknowledge" takes a note.
func AlertPath(id string, parts ...string) string {
	path := PathAlerts + "/" + url.PathEscape(id)
	for _, p := range parts {
		path += "/" + p
	}
	return path
}

// An AlertsPage lists what is wrong, or was: GET [PathAlerts].
type AlertsPage struct {
	List    ListURL // with state
	Cards   []AlertCard
	Next    string
	Problem string // why the last act was not done, in the page's language
	Admin   bool
}

func (v AlertsPage) ended() bool { return v.List.Get("state") == "ended" }

// An AlertPage is one alert with its history: GET [AlertPath].
type AlertPage struct {
	Card    AlertCard
	History []alert.Record
	Problem string
	Typed   string // note of an acknowledgement that was not accepted
}

// An AlertCard is one alert. A live stream sends it as a patch.
type AlertCard struct {
	Alert  alert.Alert
	MayAct bool // the reader may acknowledge it
}

// AlertsNow is what the overview begins with; a live stream replaces it whole.
type AlertsNow struct {
	Cards    []AlertCard
	Hidden   bool // the reader does not see the whole fleet
	Settling bool // fleetd has just started: presence does not count yet
}

// An alertGroup is alerts of one kind, severity and state, which differ in what they
// are about.
type alertGroup []AlertCard

// groups are the cards in their order; those that are alike stand where the first does.
func (v AlertsNow) groups() (all []alertGroup) {
	alike := func(a, b alert.Alert) bool {
		return a.Kind == b.Kind && a.Severity == b.Severity && a.State == b.State && i18n.Has("alert.many."+string(a.Kind))
	}
	for _, c := range v.Cards {
		i := slices.IndexFunc(all, func(g alertGroup) bool { return alike(g[0].Alert, c.Alert) })
		if i < 0 {
			all = append(all, alertGroup{c})
		} else {
			all[i] = append(all[i], c)
		}
	}
	return all
}

// names are what the alerts are about.
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

// began is when the first of them did.
func (g alertGroup) began() time.Time {
	first := g[0].Alert.Began
	for _, c := range g {
		if c.Alert.Began.Before(first) {
			first = c.Alert.Began
		}
	}
	return first
}

// An AlertSettingsPage says from when on something is wrong, and who gets mails:
// GET [PathAlertSettings]. Administrators post the form to it, recipients and
// language to "/mail", and nothing to "/mail/test".
type AlertSettingsPage struct {
	Form       forms.Alerts
	Recipients string // one a line
	MailLang   string
	Mail       alert.MailStatus
	Admin      bool
	Problem    string // why the last change was not made, in the page's language
}

func (v AlertCard) id() string { return v.Alert.ID.String() }

// what is the alert in words.
func (v AlertCard) what(ctx context.Context) string {
	p := page(ctx)
	return i18n.BecauseMarked(p.Lang, p.Zone, "alert.what.", v.Alert.Reason())
}

// place leads to what the alert is about; key is the message of the link.
func (v AlertCard) place() (to, key string) {
	switch {
	case v.Alert.Query != "":
		return QueryPath(v.Alert.Query), "alert.devices"
	case v.Alert.Kind == alert.CampaignStopped || v.Alert.Kind == alert.CampaignStuck:
		return CampaignPath(v.Alert.Subject), "alert.campaign"
	}
	return "", ""
}

var alertTones = map[alert.Severity]tone{alert.Warning: toneWarn, alert.Bad: toneBad}

func (v AlertCard) tone() tone {
	if v.Alert.State == alert.Ended {
		return toneNone
	}
	return alertTones[v.Alert.Severity]
}

// faviconOf is the icon of the tab while the worst alert that is open is so bad.
func faviconOf(worst alert.Severity) string {
	switch worst {
	case alert.Bad:
		return "favicon-bad.svg"
	case alert.Warning:
		return "favicon-warn.svg"
	}
	return "favicon.svg"
}
