package ui_test

import (
	"fmt"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

func alertCard(kind alert.Kind, severity alert.Severity, devices int, params fleet.Params) ui.AlertCard {
	a := alert.Alert{ID: uuid.NewSHA1(uuid.Nil, []byte(string(kind)+fmt.Sprint(params["name"]))), Kind: kind, State: alert.Open,
		Severity: severity, Devices: devices, Params: params, Began: now.Add(-time.Duration(20+devices) * time.Minute)}
	if devices > 0 {
		a.Query = "presence:offline"
	}
	return ui.AlertCard{Alert: a, MayAct: true, MaySilence: true}
}

// alertCards has an alert in each state.
func alertCards() []ui.AlertCard {
	anna := fleet.Principal{Kind: fleet.KindOperator, Name: "anna", Role: fleet.RoleOperator}
	dropped := alertCard(alert.OnlineDropped, alert.Bad, 1307,
		fleet.Params{"n": 1307, "all": 5028, "now": 74, "before": 99})
	stopped := alertCard(alert.CampaignStopped, alert.Bad, 0, fleet.Params{"name": "Echo fix for the lobby"})
	disk := alertCard(alert.DiskLow, alert.Warning, 0, fleet.Params{"name": "/var/lib/fleetd", "percent": 8,
		"free_bytes": int64(3 << 30)})
	crash := alertCard(alert.CrashLoop, alert.Warning, 4, fleet.Params{"n": 4, "restarts": 5, "span_ms": time.Hour})
	crash.Alert.State, crash.Alert.AckedBy, crash.Alert.Note = alert.Acknowledged, anna, "new speakers, see "+hostile[0]
	crash.Alert.AckedAt = ptr(now.Add(-4 * time.Minute))
	flapping := alertCard(alert.Flapping, alert.Warning, 3, fleet.Params{"n": 3, "times": 6, "span_ms": 10 * time.Minute})
	flapping.Alert.QuietSince = ptr(now.Add(-time.Minute))
	silent := alertCard(alert.DevicesOffline, alert.Warning, 40, fleet.Params{"n": 40, "span_ms": 24 * time.Hour})
	silent.Silenced = true
	silent.Alert.Silence = &alert.Silence{ID: uuid.NewSHA1(uuid.Nil, []byte("s")), Kind: alert.DevicesOffline,
		Query: "tag:site-2/*", By: anna, Reason: "building closed", Until: now.Add(20 * time.Hour)}
	return []ui.AlertCard{dropped, stopped, disk, crash, flapping, silent}
}

func alertsPage(state string) templ.Component {
	v := ui.AlertsPage{List: list(ui.PathAlerts, ""), Silence: forms.Silence{For: forms.SilenceTimes[1]}, MaySilence: true}
	switch state {
	case "open":
		v.Cards = alertCards()
		v.Silences = []ui.SilenceRow{{Silence: *v.Cards[5].Alert.Silence, Alerts: 1, MayEnd: true}}
	case "ended":
		v.List.Values = map[string][]string{"state": {"ended"}}
		for _, c := range alertCards()[:3] {
			c.Alert.State, c.Alert.EndedAt = alert.Ended, ptr(c.Alert.Began.Add(18*time.Minute))
			v.Cards = append(v.Cards, c)
		}
	}
	return v.Page()
}

func alertPage() templ.Component {
	c := alertCards()[3]
	at := func(minutes int) time.Time { return now.Add(time.Duration(minutes) * time.Minute) }
	return ui.AlertPage{Card: c, History: []alert.Record{
		{At: at(-4), Event: alert.Acked, Severity: alert.Warning, Devices: 4, By: c.Alert.AckedBy, Note: c.Alert.Note},
		{At: at(-7), Event: alert.Unacked, Severity: alert.Warning, Devices: 4, By: c.Alert.AckedBy},
		{At: at(-24), Event: alert.Opened, Severity: alert.Warning, Devices: 3},
	}}.Page()
}
