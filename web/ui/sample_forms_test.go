package ui_test

import (
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/endpoint"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/plugin"
	"fleetd/fleet/policy"
	"fleetd/fleet/upstream"
	"fleetd/fleet/webhook"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// formSamples are pages whose forms no other sample has.
var formSamples = []sample{
	{"webhooks", ui.PathWebhooks, webhooksPage(), false},
	{"alert-settings", ui.PathAlertSettings, alertSettingsPage(), false},
	{"policies", ui.PathPolicies, ui.PoliciesPage{Table: &policy.Table{Version: 7, Rules: []policy.Rule{policyRule}},
		Admin: true, Problem: "…"}.Page(), false},
	{"policy", ui.PolicyPath(policyRule.ID), ui.PolicyPage{Rule: policyRule, Version: 7, Admin: true}.Page(), false},
	{"upstreams", ui.PathUpstreams, ui.UpstreamsPage{Rows: []upstream.State{voiceServer}, Admin: true, Problem: "…",
		Form: forms.Upstream{Kind: "websocket", Auth: "secret"}}.Page(), false},
	{"upstream", ui.UpstreamPath(voiceServer.ID), ui.UpstreamPage{Row: voiceServer, Admin: true,
		Form: forms.Upstream{Name: voiceServer.Name, Kind: "websocket", Auth: "secret", SecretSet: true}}.Page(), false},
	{"endpoints-0", ui.PathEndpoints, ui.EndpointsPage{Filters: ui.EndpointFilters{List: list(ui.PathEndpoints, "")},
		Form: forms.NewEndpoint()}.Page(), false},
	{"endpoint", ui.EndpointPath("workshop-pc"), ui.EndpointPage{Row: ui.EndpointRow{Listed: endpoint.Listed{
		Endpoint: endpoint.Endpoint{Name: "workshop-pc", Settings: endpoint.Settings{Second: endpoint.Replace}}}}, Form: forms.NewEndpoint(),
		Problems: ui.FieldProblems{"tools": "…"}}.Page(), false},
	{"plugins-0", ui.PathPlugins, ui.PluginsPage{Directory: "/srv/fleetd/plugins", Form: forms.NewPlugin()}.Page(), false},
	{"plugin", ui.PluginPath("weather"), pluginPage(), false},
	{"rules", ui.PathRules, ui.RulesPage{Mode: "code", Admin: true}.Page(), false},
	{"rule", ui.RulePath("x"), ui.RulePage{Rule: enrolment.RuleRow{Rule: enrolment.Rule{Name: hostile[1],
		Enabled: true, Action: enrolment.RuleAccept, CreatedBy: "anna", CreatedAt: now}}, Place: 1, Admin: true,
		Problem: "…"}.Page(), false},
	{"operator", "/settings/operators/2", ui.OperatorPage{Row: ui.OperatorRow{ID: "2", Name: hostile[0],
		Role: fleet.RoleOperator, Created: now}, Fleet: true}.Page(), false},
	{"account", ui.PathAccount, ui.OperatorPage{Row: ui.OperatorRow{ID: "1", Name: "anna", Role: fleet.RoleAdmin,
		Created: now, Self: true}, Fleet: true}.Page(), false},
	{"import", ui.PathImport, ui.ImportPage{}.Page(), false},
	{"replace", ui.DevicePath("a085e3112233", "replace"), ui.ReplacePage{Head: head(""), CanAct: true}.Page(), false},
	{"claim-admin", ui.PathClaim, ui.ClaimPage{Mode: "code", CanAct: true, Admin: true, Setup: setup("code"),
		MQTT5: ui.MQTT5Form{Open: true}}.Page(), false},
	{"confirm", "/confirm", ui.ConfirmPage{Path: "/settings/tokens", Name: "anna"}.Page(), false},
	{"devices-filter", "/devices?q=tag:lab", devicesFilterPage(), false},
	{"serials-0", ui.PathSerials, ui.SerialsPage{List: list(ui.PathSerials, ""), Admin: true}.Page(), false},
}

func init() { samples = append(samples, formSamples...) }

var (
	policyRule = policy.Rule{ID: uuid.NewSHA1(uuid.Max, []byte("policy")), Name: "no screens in the lab", Enabled: true,
		Decision: "deny", Tools: []string{"self.screen.*"}, UpdatedBy: "anna", UpdatedAt: now}
	voiceServer = upstream.State{Server: upstream.Server{ID: uuid.NewSHA1(uuid.Max, []byte("voice")), Name: "lab",
		Kind: upstream.WebSocket, Auth: "secret", URL: "wss://voice.example.org/xiaozhi/v1/", Enabled: true, UpdatedBy: "anna", UpdatedAt: now}}
)

func webhooksPage() templ.Component {
	at := now.Add(-time.Hour)
	row := ui.WebhookRow{ID: "w", Name: hostile[0], URL: "https://hooks.example.org/…", Enabled: true, At: &at, OK: true,
		Status: 204, Events: []string{"alert.opened"}, Open: true,
		Form: ui.WebhookForm{ID: "w", Name: hostile[0], Shape: webhook.Slack, Lang: "en"}}
	return ui.WebhooksPage{Rows: []ui.WebhookRow{row}, Form: ui.WebhookForm{Shape: webhook.Fleetd, Lang: "en"}}.Page()
}

func alertSettingsPage() templ.Component {
	return ui.AlertSettingsPage{Form: forms.FillAlerts(alert.DefaultSettings()), Groups: []forms.Group{{Name: "room 2",
		Query: "tag:site-1/room-2", Warning: "50", Critical: "80", Least: "2", Span: "5m"}, {}}, MailLang: "en",
		Mail: alert.MailStatus{Enabled: true}, Admin: true}.Page()
}

func pluginPage() templ.Component {
	row := ui.PluginRow{Listed: plugin.Listed{Plugin: plugin.Plugin{Name: "weather"},
		Status: plugin.Status{State: plugin.Running}}}
	return ui.PluginPage{Row: row, Form: forms.Plugin{Name: "weather", Runs: forms.PluginCommand, Command: "./weather"},
		Problems: ui.FieldProblems{"command": "…"}}.Page()
}

func devicesFilterPage() templ.Component {
	return ui.DevicesPage{Query: "tag:lab", List: list("/devices", "q=tag%3Alab"), Rows: deviceRows(3), Total: 3, Fleet: 9,
		CanAct: true, Setup: setup("code"), Saved: ui.SavedFilters{CanSave: true, Problem: "…",
			Filters: []fleet.Filter{{ID: uuid.NewSHA1(uuid.Max, []byte("filter")), Name: "hall", Title: "Hall", Query: "tag:hall"}}}}.Page()
}
