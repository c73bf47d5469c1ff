package alert

import (
	"slices"

	"fleetd/fleet"
)

// A Route limits the alerts that a receiver gets. The zero value limits nothing.
type Route struct {
	Query string   // a filter that one of the alert's devices must match; "" for all alerts
	Least Severity // lowest severity; "" means [Warning]
	Kinds []Kind   // none means all
}

// Limits reports whether the route excludes some alerts.
func (r Route) Limits() bool { return r.Query != "" || r.Least == Bad || len(r.Kinds) > 0 }

// Admits reports whether alerts of the kind and severity are within the route. The devices are not checked.
func (r Route) Admits(k Kind, s Severity) bool {
	return (r.Least != Bad || s == Bad) && (len(r.Kinds) == 0 || slices.Contains(r.Kinds, k))
}

// Check returns the route with its kinds in the order of the table, or refuses it.
func (r Route) Check() (Route, error) {
	q, err := fleet.ParseQuery(r.Query)
	if err != nil {
		return r, err
	}
	r.Query = q.Text
	if r.Least == "" {
		r.Least = Warning
	}
	if r.Least != Warning && r.Least != Bad {
		return r, fleet.Refuse(fleet.ErrInvalid, "invalid_severity", "value", string(r.Least)).At("severity")
	}
	var kinds []Kind
	for _, k := range Kinds {
		if slices.Contains(r.Kinds, k) {
			kinds = append(kinds, k)
		}
	}
	for _, k := range r.Kinds {
		if !slices.Contains(Kinds, k) {
			return r, unknownKind(k)
		}
	}
	r.Kinds = kinds
	return r, nil
}

func unknownKind(k Kind) error {
	return fleet.Refuse(fleet.ErrInvalid, "invalid_alert_kind", "value", string(k)).At("kind")
}
