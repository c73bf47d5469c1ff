package alert

import (
	"context"
	"time"

	"fleetd/fleet"
)

// A Group is a rule about a part of the fleet: its alert opens when a share of the devices has been offline for
// some time. The name is the subject of the alert.
type Group struct {
	Name     string        `json:"name"`
	Query    string        `json:"query"`    // as in [fleet.ParseScope]; "" is the whole fleet
	Warning  int           `json:"warning"`  // percent offline from which on it is a warning
	Critical int           `json:"critical"` // percent offline from which on it is bad; 0 for never
	Least    int           `json:"least"`    // lowest number of devices offline
	Span     time.Duration `json:"span"`     // how long a device must have been offline
}

// Limits of groups.
const (
	MaxGroups    = 50
	minGroupSpan = 10 * time.Second
	maxGroupSpan = 90 * day
)

// checkGroups refuses rules that cannot be used.
func checkGroups(groups []Group) error {
	if len(groups) > MaxGroups {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_group.many", "limit", MaxGroups).At("groups")
	}
	seen := make(map[string]bool)
	for i := range groups {
		g := &groups[i]
		name, err := fleet.CleanLine("name", g.Name, fleet.MaxNameLength)
		if err != nil {
			return err
		}
		q, err := fleet.ParseQuery(g.Query)
		if err != nil {
			return err
		}
		if _, err := fleet.ParseScope(g.Query); err != nil { // a group does not depend on the state of its devices
			return fleet.Refuse(fleet.ErrInvalid, "invalid_group.filter", "name", name).At("query")
		}
		g.Name, g.Query = name, q.Text
		switch {
		case g.Name == "":
			return fleet.Refuse(fleet.ErrInvalid, "invalid_name.group").At("name")
		case seen[g.Name]:
			return fleet.Refuse(fleet.ErrInvalid, "invalid_group.twice", "name", g.Name).At("name")
		case g.Warning < 1 || g.Warning > 100:
			return fleet.Refuse(fleet.ErrInvalid, "invalid_group.warning", "name", g.Name).At("warning_percent")
		case g.Critical != 0 && (g.Critical < g.Warning || g.Critical > 100):
			return fleet.Refuse(fleet.ErrInvalid, "invalid_group.critical", "name", g.Name).At("critical_percent")
		case g.Least < 1 || g.Least > many:
			return fleet.Refuse(fleet.ErrInvalid, "invalid_group.least", "name", g.Name, "limit", many).At("least")
		case g.Span < minGroupSpan || g.Span > maxGroupSpan || g.Span%time.Second != 0:
			return fleet.Refuse(fleet.ErrInvalid, "invalid_group.span", "name", g.Name, "least_ms", minGroupSpan,
				"limit_ms", maxGroupSpan).At("span_ms")
		}
		if _, _, err := g.queries(); err != nil { // they are longer
			return err
		}
		seen[g.Name] = true
	}
	return nil
}

// queries returns the queries for the devices of the group, and for those that are offline. Like
// [Service.devicesOffline] they exclude devices on a WebSocket.
func (g Group) queries() (group, away fleet.Query, err error) {
	if group, err = fleet.ParseQuery(g.Query + " -transport:ws"); err != nil {
		return group, away, err
	}
	away, err = fleet.ParseQuery(group.Text + " presence:offline seen>" + age(g.Span))
	return group, away, err
}

// groupsOffline looks at each group. The query of a finding finds the devices that it counts.
func (s *Service) groupsOffline(ctx context.Context, v view) (found []finding, ok bool, err error) {
	s.mu.Lock()
	groups := s.settings.Groups
	s.mu.Unlock()
	for _, g := range groups {
		group, away, err := g.queries()
		if err != nil {
			return nil, false, err
		}
		n, all, err := s.o.Facts.Share(ctx, group, away)
		if err != nil {
			return nil, false, err
		}
		if n < g.Least || 100*n < g.Warning*all {
			continue
		}
		f := finding{subject: g.Name, severity: Warning, devices: n,
			query: away.Text,
			params: figures("name", g.Name, "n", n, "all", all, "percent", whole(100*float64(n)/float64(max(1, all))),
				"span_ms", g.Span)}
		if g.Critical > 0 && 100*n >= g.Critical*all {
			f.severity = Bad
		}
		found = append(found, f)
	}
	return found, true, nil
}
