package alert

import (
	"context"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/cluster"
)

// noStandby finds that the leader could not be replaced. Its time begins with the leader's term.
func (s *Service) noStandby(_ context.Context, v view) ([]finding, bool, error) {
	if s.o.Nodes == nil {
		return nil, true, nil
	}
	if !since(&s.alone, v, !cluster.HasStandby(s.o.Nodes())) {
		return nil, true, nil
	}
	return []finding{{severity: Warning, since: s.alone, params: figures("since_at", s.alone)}}, true, nil
}

// edgesGone finds edges that were heard in the last hour, but not in the last minute. A leader may not know
// an edge that was gone before it ran: the alert about it stays open as long.
func (s *Service) edgesGone(_ context.Context, v view) (found []finding, ok bool, err error) {
	if s.o.Nodes == nil {
		return nil, true, nil
	}
	for _, n := range s.o.Nodes() {
		s.heard[n.Name] = true
		if n.Role == cluster.Edge && n.State == cluster.Gone {
			found = append(found, finding{subject: n.Name, severity: Bad, since: n.Heard,
				params: figures("name", n.Name, "since_at", n.Heard)})
		}
	}
	for name, a := range v.open {
		if !s.heard[name] && v.now.Sub(a.Began) < cluster.ForgottenAfter {
			found = append(found, finding{subject: name, severity: Bad, since: a.Began, params: a.Params})
		}
	}
	return found, true, nil
}

// versionsDiffer finds an upgrade that was not finished.
func (s *Service) versionsDiffer(_ context.Context, v view) ([]finding, bool, error) {
	if s.o.Nodes == nil {
		return nil, true, nil
	}
	versions := cluster.Versions(s.o.Nodes())
	if !since(&s.mixed, v, len(versions) > 1) {
		return nil, true, nil
	}
	return []finding{{severity: Warning, since: s.mixed,
		params: figures("since_at", s.mixed, "versions", fleet.CleanText(strings.Join(versions, ", "), 200))}}, true, nil
}

// since reports whether something has been true for the threshold's span, or an alert about it is
// open. It keeps in at since when it is true.
func since(at *time.Time, v view, holds bool) bool {
	if !holds {
		*at = time.Time{}
		return false
	}
	if at.IsZero() {
		*at = v.now
		if a, open := v.open[""]; open { // of the previous leader
			*at = a.Began
		}
	}
	_, open := v.open[""]
	return open || v.now.Sub(*at) >= v.threshold.Span
}
