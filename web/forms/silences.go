package forms

import (
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
)

// SilenceTimes are the offered lengths of a silence; SilenceUntil means that it ends at a moment.
var SilenceTimes = []string{"1h", "8h", "24h", "7d"}

// SilenceUntil is the value of the field for that ends a silence at the moment in the field until.
const SilenceUntil = "until"

// Silence holds a silence as typed: the fields alert, kind, query, for, until and reason.
type Silence struct{ Alert, Kind, Query, For, Until, Reason string }

// PostedSilence returns the form as posted.
func PostedSilence(v url.Values) Silence {
	return Silence{Alert: v.Get("alert"), Kind: v.Get("kind"), Query: v.Get("query"), For: v.Get("for"),
		Until: v.Get("until"), Reason: v.Get("reason")}
}

// Values returns the fields of the form.
func (f Silence) Values() url.Values {
	return url.Values{"alert": {f.Alert}, "kind": {f.Kind}, "query": {f.Query}, "for": {f.For}, "until": {f.Until},
		"reason": {f.Reason}}
}

// Read reads the form; zone is the viewer's.
func (f Silence) Read(zone *time.Location) (r alert.SilenceRequest, err error) {
	r = alert.SilenceRequest{Kind: alert.Kind(f.Kind), Query: f.Query, Reason: f.Reason}
	if f.Alert != "" {
		if r.Alert, err = uuid.Parse(f.Alert); err != nil {
			return r, fleet.Refuse(fleet.ErrInvalid, "unknown_alert.id", "id", f.Alert).At("alert")
		}
	}
	if f.For != SilenceUntil {
		r.For, err = readSpan(f.For, "for")
		return r, err
	}
	at, err := parseTime(f.Until, zone)
	if err != nil || at == nil {
		return r, fleet.Refuse(fleet.ErrInvalid, "invalid_silence_end", "limit_ms", alert.MaxSilence).At("until")
	}
	r.Until = *at
	return r, nil
}

// A Group holds the rule of a group as typed.
type Group struct{ Name, Query, Warning, Critical, Least, Span string }

// FillGroups returns the rules, and an empty one to be added.
func FillGroups(groups []alert.Group) (all []Group) {
	for _, g := range groups {
		f := Group{Name: g.Name, Query: g.Query, Warning: strconv.Itoa(g.Warning), Least: strconv.Itoa(g.Least),
			Span: Span(g.Span)}
		if g.Critical > 0 {
			f.Critical = strconv.Itoa(g.Critical)
		}
		all = append(all, f)
	}
	return append(all, newGroup)
}

// newGroup is the proposal for a new rule; without a name it is not stored.
var newGroup = Group{Warning: "50", Critical: "80", Least: "2", Span: "5m"}

// PostedGroups returns the rules as posted: the fields group.name, group.query and so on of each row.
func PostedGroups(v url.Values) (all []Group) {
	at := func(field string, i int) string {
		if list := v["group."+field]; i < len(list) {
			return list[i]
		}
		return ""
	}
	for i := range v["group.name"] {
		if i > alert.MaxGroups {
			break
		}
		all = append(all, Group{Name: at("name", i), Query: at("query", i), Warning: at("warning", i),
			Critical: at("critical", i), Least: at("least", i), Span: at("span", i)})
	}
	return all
}

// ReadGroups reads the rules that have a name.
func ReadGroups(rows []Group) ([]alert.Group, error) {
	groups := []alert.Group{}
	for _, f := range rows {
		if f.Name == "" {
			continue
		}
		g := alert.Group{Name: f.Name, Query: f.Query}
		for _, n := range []struct {
			to          *int
			text, field string
		}{{&g.Warning, f.Warning, "warning"}, {&g.Critical, f.Critical, "critical"}, {&g.Least, f.Least, "least"}} {
			if n.text == "" && n.to == &g.Critical {
				continue
			}
			var err error
			if *n.to, err = wholeNumber(n.text, n.field); err != nil {
				return nil, err
			}
		}
		var err error
		if g.Span, err = readSpan(f.Span, "span"); err != nil {
			return nil, err
		}
		groups = append(groups, g)
	}
	return groups, nil
}
