package forms

import (
	"net/url"
	"strings"
	"time"

	"fleetd/fleet/alert"
	"fleetd/fleet/webhook"
)

func silenceEquivalent(v url.Values, now time.Time) Equivalent {
	f := PostedSilence(v)
	e := Equivalent{Operation: "create-silence", Method: "POST", Path: "/alerts/silences",
		Body: map[string]any{"reason": f.Reason}}
	e.member("alert_id", f.Alert)
	e.member("kind", f.Kind)
	e.member("query", f.Query)
	f.Alert = "" // read above; a wrong one is refused when it is sent
	switch r, err := f.Read(now.Location()); {
	case err != nil:
	case !r.Until.IsZero():
		e.Body["until"] = r.Until.UTC().Format(time.RFC3339)
	case r.For > 0:
		e.Body["duration_ms"] = r.For.Milliseconds()
	}
	return e
}

func redactionEquivalent(v url.Values, _ time.Time) Equivalent {
	tool, path, note := v.Get("tool"), v.Get("path"), v.Get("note")
	e := Equivalent{Operation: "create-redaction-rule", Method: "POST", Path: "/redaction/rules",
		Body: map[string]any{"tool": tool, "path": path}, Args: []string{"redaction", "create"}}
	e.member("note", note)
	e.flag("note", note)
	return e.arguments(tool, path)
}

func endpointEquivalent(v url.Values, _ time.Time) Equivalent {
	f := PostedEndpoint(v)
	e := Equivalent{Operation: "create-endpoint", Method: "POST", Path: "/endpoints",
		Body: map[string]any{"name": f.Name, "offer_to_voice": f.OfferToVoice, "disabled": f.Disabled}}
	e.member("second_connection", f.Second)
	e.member("audience", f.Audience)
	if tools := words(f.Tools); len(tools) > 0 {
		e.Body["tools"] = tools
	}
	return e
}

func filterEquivalent(v url.Values, _ time.Time) Equivalent {
	e := Equivalent{Operation: "create-filter", Method: "POST", Path: "/filters",
		Body: map[string]any{"name": v.Get("name"), "q": v.Get(EquivalentOf)}}
	e.member("title", v.Get("title"))
	return e
}

// webhookEquivalent takes the address from the environment: anyone who knows the address of a chat
// service can post there.
func webhookEquivalent(v url.Values, _ time.Time) Equivalent {
	e := Equivalent{Operation: "create-webhook", Method: "POST", Path: "/webhooks", Secret: "WEBHOOK_URL",
		SecretMember: "url", Body: map[string]any{"name": v.Get("name")}}
	if events := v["events"]; len(events) > 0 {
		e.Body["events"] = events
	}
	if shape := webhook.Shape(v.Get("shape")); shape != "" && shape != webhook.Fleetd {
		e.Body["shape"] = shape
		e.member("language", v.Get("language"))
		if shape == webhook.Telegram {
			e.member("chat_id", v.Get("chat"))
		}
	}
	route := map[string]any{}
	if query := strings.TrimSpace(v.Get("query")); query != "" {
		route["query"] = query
	}
	if severity := v.Get("severity"); severity != "" && severity != string(alert.Warning) {
		route["severity"] = severity
	}
	if kinds := v["kinds"]; len(kinds) > 0 {
		route["kinds"] = kinds
	}
	if len(route) > 0 {
		e.Body["route"] = route
	}
	return e
}
