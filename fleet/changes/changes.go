// Package changes sums up what happened to the fleet since a moment: how many devices came and went, crashed or run
// another version, and who did what.
//
// It compares the present with the [history], and reads counts of records from a [Store]. It keeps nothing, and has no
// goroutines and no locks. Every count is about the devices that exist for the principal of the context.
package changes

import (
	"cmp"
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/history"
)

// Spans are the lengths of time to choose from; queries can name them. The first is the usual one.
var Spans = []string{"1h", "15m", "6h", "1d"}

var lengths = map[string]time.Duration{"15m": 15 * time.Minute, "1h": time.Hour, "6h": 6 * time.Hour, "1d": 24 * time.Hour}

// A Summary is what happened since a moment.
type Summary struct {
	Since   time.Time
	Span    string    // one of [Spans]
	Compare time.Time // of Fields and Versions: Since, or the beginning of the history if that is later
	Now     time.Time // the other moment that Fields and Versions compare

	Fields   map[history.Field]int // devices that differ
	Versions []Version             // whose number of devices differs, those with the largest difference first
	Crashed  int                   // devices that restarted after a crash
	Away     int                   // devices that were seen in this time and are offline now
	Events
}

// A Version is how many devices in service ran a version then and now.
type Version struct {
	Version     string
	Before, Now int
}

// Events are counts of records since a moment.
type Events struct {
	Offline, Online        int // devices that went offline, or came online, at least once
	Rebuilt                int // devices that began to run a build
	Configured             []fleet.DeviceID
	ConfiguredMore         bool // there are more than [MaxNamed]
	Updated, NotUpdated    int  // devices of campaigns that reached their end
	Calls, FailedCalls     int
	AlertsBegan, AlertsEnd int // 0 for a principal for whom alerts do not exist
	Acts                   []Act
	ActCount               int // all acts
}

// An Act is an action that principals took, as in the audit log.
type Act struct {
	Action string
	Count  int
	Names  []string // of the principals, at most [MaxNames]
}

// Limits of a summary.
const (
	MaxNamed    = 50 // devices that are named
	MaxActs     = 8
	MaxNames    = 3
	maxVersions = 8
)

// Store counts records of the devices that exist for the principal of the context.
type Store interface {
	EventsSince(ctx context.Context, since time.Time) (Events, error)
}

// Devices counts devices.
type Devices interface {
	CountEach(ctx context.Context, queries []fleet.Query) ([]int, error)
}

// A Service sums up.
type Service struct {
	store   Store
	history *history.Service
	devices Devices
	now     func() time.Time
}

// New returns a service. now is usually time.Now.
func New(store Store, past *history.Service, devices Devices, now func() time.Time) *Service {
	return &Service{store, past, devices, now}
}

// Since sums up a span, one of [Spans]; "" is the first.
func (s *Service) Since(ctx context.Context, by fleet.Principal, span string) (Summary, error) {
	span = cmp.Or(span, Spans[0])
	length, ok := lengths[span]
	if !ok {
		return Summary{}, fleet.Refuse(fleet.ErrInvalid, "invalid_changes_span", "value", fleet.CleanText(span, 40)).At("since")
	}
	now := s.now().UTC()
	sum := Summary{Span: span, Now: now, Since: now.Add(-length).Truncate(time.Second)}
	begin, err := s.history.Begin(ctx)
	if err != nil {
		return sum, err
	}
	sum.Compare = sum.Since
	if begin.States.After(sum.Since) {
		sum.Compare = begin.States
	}
	g, ctx := errgroup.WithContext(ctx)
	var counts [2]history.Counts
	if sum.Compare.Before(now) {
		for i, at := range []time.Time{sum.Compare, now} {
			g.Go(func() (err error) {
				counts[i], err = s.history.Counts(ctx, at, fleet.Query{})
				return err
			})
		}
		g.Go(func() error {
			diff, err := s.history.Diff(ctx, history.DiffFilter{From: sum.Compare, To: now, Limit: 1})
			sum.Fields = diff.Counts
			return err
		})
	}
	g.Go(func() (err error) {
		sum.Events, err = s.store.EventsSince(ctx, sum.Since)
		return err
	})
	g.Go(func() error {
		n, err := s.count(ctx, AwayQuery(span), CrashedQuery(span))
		if err == nil {
			sum.Away, sum.Crashed = n[0], n[1]
		}
		return err
	})
	err = g.Wait()
	sum.Versions = difference(counts[0].Versions, counts[1].Versions)
	if !alert.Sees(by) {
		sum.AlertsBegan, sum.AlertsEnd = 0, 0
	}
	return sum, err
}

// AwayQuery selects the devices that Away counts, CrashedQuery those that Crashed counts.
func AwayQuery(span string) string { return "presence:offline -transport:ws seen<" + span }

// CrashedQuery selects the devices that Crashed counts.
func CrashedQuery(span string) string { return "crashed<" + span }

func (s *Service) count(ctx context.Context, texts ...string) ([]int, error) {
	queries := make([]fleet.Query, len(texts))
	for i, text := range texts {
		var err error
		if queries[i], err = fleet.ParseQuery(text); err != nil {
			return nil, err
		}
	}
	return s.devices.CountEach(ctx, queries)
}

// difference returns the versions whose numbers differ, except of devices that report none.
func difference(before, now []fleet.DeviceCount) (all []Version) {
	numbers := make(map[string]Version)
	for _, c := range before {
		numbers[c.Value] = Version{Version: c.Value, Before: c.Count}
	}
	for _, c := range now {
		numbers[c.Value] = Version{c.Value, numbers[c.Value].Before, c.Count}
	}
	for _, v := range numbers {
		if v.Version != "" && v.Before != v.Now {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b Version) int {
		return cmp.Or(cmp.Compare(abs(b.Now-b.Before), abs(a.Now-a.Before)), cmp.Compare(a.Version, b.Version))
	})
	return all[:min(maxVersions, len(all))]
}

func abs(n int) int { return max(n, -n) }
