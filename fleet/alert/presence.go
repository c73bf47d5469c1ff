package alert

import (
	"context"
	"slices"
	"time"

	"fleetd/fleet"
)

// Times of the presence watch.
const (
	presenceEvery = time.Second      // how often the broker's count is checked
	settlingEvery = 5 * time.Second  // how often the fleet is counted while devices reconnect
	settleLeast   = 30 * time.Second // after a start: boards retry within 10 s, longer with TLS
	goneHolds     = 15 * time.Second // half of the fleet does not disconnect by chance
	pointsKept    = 10 * time.Minute
	beforeStop    = 3 * time.Minute // before a start: its samples may be of a stopping server
	givenUp       = 24 * time.Hour  // a count that has stayed low is the new normal; DevicesOffline continues
)

// presenceWatch tracks how many devices are online. It reads the broker's count from memory
// each second and counts the fleet, as pages do, only if that has changed, so that an alert
// and the tiles agree. The broker's count dates a fall, independently of the database.
//
// Only the loop of conditions uses it.
type presenceWatch struct {
	points  []point                // when the number of devices online changed, oldest first
	counted fleet.PresenceSample   // the last count
	online  int                    // the broker's count at the last count of the fleet
	silent  int                    // of these, devices that did not answer
	exact   []fleet.PresenceSample // counts of the last minutes, oldest first
	stored  []fleet.PresenceSample // samples in the store
	readAt  time.Time              // when stored was read
}

// A point is the number of devices online from a moment on.
type point struct {
	at     time.Time
	online int
}

// observe records the broker's count.
func (w *presenceWatch) observe(at time.Time, online int) {
	if n := len(w.points); n > 0 && w.points[n-1].online == online {
		return
	}
	w.points = append(w.points, point{at, online})
	for len(w.points) > 1 && at.Sub(w.points[1].at) > pointsKept { // the first point applies until the second
		w.points = w.points[1:]
	}
}

// moved reports whether the fleet must be counted again: the broker's count changed by a
// hundredth of the fleet or, if any is set, by one device.
func (w *presenceWatch) moved(online, silent int, any bool) bool {
	n := abs(online-w.online) + abs(silent-w.silent)
	return n > 0 && (any || 100*n >= w.counted.Joined())
}

func abs(n int) int { return max(n, -n) }

// fellAt returns the time since which at most the given number of devices has been online
// without a break; zero if that was so before the first observation.
func (w *presenceWatch) fellAt(most float64) (at time.Time) {
	for _, p := range slices.Backward(w.points) {
		if float64(p.online) > most {
			return at
		}
		at = p.at
	}
	return time.Time{}
}

// before returns the share of the fleet and the number of devices that were online before a
// fall of the given points. Of the times from which the fall is that large, it uses the one
// with the most devices online.
func (w *presenceWatch) before(now fleet.PresenceSample, fall float64) (percent float64, online int) {
	for _, p := range slices.Concat(w.stored, w.exact) {
		if share(p)-share(now) >= fall && p.Online >= online {
			percent, online = share(p), p.Online
		}
	}
	return percent, online
}

// presenceDue reports whether online_dropped must be checked before its interval is over.
func (s *Service) presenceDue(now time.Time) bool {
	if s.o.Connected == nil || s.o.Presence == nil {
		return s.o.Presence != nil
	}
	online, silent := s.o.Connected()
	w := &s.presence
	w.observe(now, online)
	s.mu.Lock()
	settled := s.settled
	_, pending := s.pending[key{OnlineDropped, ""}]
	open := s.counts[OnlineDropped] > 0
	s.mu.Unlock()
	since := now.Sub(w.counted.At)
	if !settled && !open {
		return now.Sub(s.started) >= settleLeast && since >= settlingEvery
	}
	return pending || since >= lookEvery || w.moved(online, silent, open)
}

// count counts the fleet as pages do, and reads the samples within the span.
func (s *Service) count(ctx context.Context, now time.Time, span time.Duration) (counted fleet.PresenceSample,
	err error) {
	w := &s.presence
	online, silent := 0, 0
	if s.o.Connected != nil {
		online, silent = s.o.Connected()
	}
	if counted, err = s.o.Presence(ctx); err != nil {
		return counted, err
	}
	counted.At = now
	if s.o.Connected == nil {
		w.observe(now, counted.Online)
	}
	w.counted, w.online, w.silent = counted, online, silent
	w.exact = append(w.exact, counted)
	for len(w.exact) > 1 && now.Sub(w.exact[0].At) > min(pointsKept, span) {
		w.exact = w.exact[1:]
	}
	if !w.readAt.IsZero() && now.Sub(w.readAt) < lookEvery {
		return counted, nil
	}
	s.mu.Lock()
	start, settle := s.started, s.settings.Settle
	s.mu.Unlock()
	if now.Sub(start) >= settle+span {
		start = time.Time{}
	}
	w.stored, err = s.o.Facts.PresenceSince(ctx, now.Add(-span), start, span)
	if err == nil {
		w.readAt = now
	}
	return counted, err
}

// settlePresence decides whether presence counts after a start of fleetd: it does once the
// settling time is over or most of the previously online devices have reconnected.
func (s *Service) settlePresence(ctx context.Context, now time.Time) {
	s.mu.Lock()
	settled, settle, t := s.settled, s.settings.Settle, s.settings.Thresholds[OnlineDropped]
	s.mu.Unlock()
	if settled {
		return
	}
	ran := now.Sub(s.started)
	if ran < settle {
		if ran < settleLeast || s.o.Presence == nil {
			return
		}
		within, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		counted, err := s.count(within, now, t.Span)
		before := onlineBefore(s.presence.stored, s.started)
		// The missing devices must be few enough that no alert opens at once.
		if err != nil || 100*(before-counted.Online) > min(10, t.Percent/2)*before {
			return
		}
	}
	s.mu.Lock()
	s.settled = true
	s.mu.Unlock()
	s.o.Log.Info("presence counts", "after", ran.Round(time.Second))
}

// onlineBefore returns how many devices were online before a start.
func onlineBefore(samples []fleet.PresenceSample, start time.Time) (most int) {
	var last time.Time
	for _, p := range slices.Backward(samples) {
		switch {
		case !p.At.Before(start):
		case last.IsZero():
			last, most = p.At, p.Online
		case last.Sub(p.At) <= beforeStop:
			most = max(most, p.Online)
		}
	}
	return most
}

// onlineDropped compares the fleet with its state within the span. While the alert is open,
// it compares with the share before the fall; otherwise a fleet that stays away would soon be
// compared with itself. The alert ends only after half of the fall is recovered.
func (s *Service) onlineDropped(ctx context.Context, v view) ([]finding, bool, error) {
	if s.o.Presence == nil {
		return nil, false, nil
	}
	now, err := s.count(ctx, v.now, v.threshold.Span)
	if err != nil {
		return nil, false, err
	}
	fall := float64(v.threshold.Percent)
	before, was := s.presence.before(now, fall)
	a, open := v.open[""]
	if open {
		fall /= 2
		if n := paramOf(a, "was"); n > 0 { // older versions did not record it
			before, was = float64(paramOf(a, "before")), int(n)
		}
	}
	missing := max(0, min(was-now.Online, now.Away()))
	lost := int(paramOf(a, "lost"))
	if !v.settling { // devices that have yet to reconnect after a start are not lost
		lost = max(lost, missing)
	}
	holds := before-share(now) >= fall && missing > 0
	if open {
		holds = holds && v.now.Sub(a.Began) <= givenUp
	} else {
		holds = holds && (missing >= v.threshold.Count || now.Online == 0)
	}
	f := finding{severity: Warning, devices: now.Away(), query: "presence:offline,unresponsive"}
	if now.Between > 0 {
		f.query += " -transport:ws"
	}
	switch {
	case holds:
		f.params = figures("case", "now", "n", now.Offline, "silent", now.Unresponsive, "all", now.Joined(), "now", whole(share(now)),
			"before", whole(before), "was", was, "lost", lost, "missing", missing)
		if now.Unresponsive > 0 {
			f.params["case"] = "silent"
		}
		if share(now) <= before/2 {
			f.severity, f.holds = Bad, goneHolds
		}
		if f.since = s.presence.fellAt((before - fall) / 100 * float64(now.Joined())); f.since.IsZero() {
			f.since = s.started // it began with the start or before it
		}
	case open:
		f.over, f.devices = true, lost
		f.params = over(a, v.now, missing != int(paramOf(a, "missing")), "n", lost, "was", was, "before", whole(before),
			"lost", lost, "missing", missing, "back", max(0, lost-missing))
		if missing > 0 {
			f.params["case"] = "part"
		}
	default:
		return nil, true, nil
	}
	return []finding{f}, true, nil
}

// over returns the parameters of an alert whose condition no longer holds: when it began and
// ended. moved means that the recovery continues.
func over(a Alert, now time.Time, moved bool, params ...any) fleet.Params {
	p := figures(append(params, "case", "over", "from_time", a.Began, "to_time", now)...)
	if until, ok := a.Params["to_time"]; ok && !moved {
		p["to_time"] = until
	}
	return p
}

// whole rounds a share; only none is 0 % and only all is 100 %.
func whole(share float64) int {
	switch {
	case share > 0 && share < 1:
		return 1
	case share > 99 && share < 100:
		return 99
	}
	return int(share + 0.5)
}

// share returns the percentage of devices online among those that were ever online.
func share(p fleet.PresenceSample) float64 {
	return 100 * float64(p.Online) / float64(max(1, p.Joined()))
}
