package policy

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// A Use is the number of calls of a tool by a caller.
type Use struct {
	Kind  fleet.PrincipalKind
	ID    string // the name if the caller has no id
	Tool  string
	Calls int64
}

// A meter counts allowed calls: per minute for rates, in this process only, and per day for
// budgets.
//
// A budget counts all calls of a tool by a caller, whichever rule allowed them. Therefore the
// records of calls are enough to restore it at start.
type meter struct {
	budget atomic.Bool // a rule has a budget, so days are counted

	mu    sync.Mutex
	rates map[rateKey]bucket
	swept time.Time // when full buckets were last dropped
	day   int64
	spent map[useKey]int64
}

type useKey struct {
	kind     fleet.PrincipalKind
	id, tool string
}

type rateKey struct {
	rule uuid.UUID
	useKey
}

// A bucket holds the calls that may be made at once: one minute's worth. It refills at a
// constant rate.
type bucket struct {
	left float64
	at   time.Time
}

// Limits of the counts in a meter. Beyond them, all tools of a caller share one count,
// because a device can offer any number of tools.
const (
	maxBuckets = 20_000
	maxUses    = 100_000
)

func keyOf(p *call.Proposal) useKey {
	k := useKey{p.Principal.Kind, p.Principal.ID, p.Tool.Name}
	if k.id == "" {
		k.id = p.Principal.Name
	}
	return k
}

// pass counts the call, unless it is a preview or is judged again, or returns the error if it
// exceeds a limit of the rule. r is nil if no rule applies to the call.
func (m *meter) pass(r *Rule, p *call.Proposal) *fleet.CallError {
	if p.Again {
		return nil
	}
	limited := r != nil && (r.RatePerMinute > 0 || r.DailyBudget > 0)
	if !limited && (!m.budget.Load() || p.Preview) {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := keyOf(p)
	today := dayOf(p.At)
	if today > m.day {
		m.day, m.spent = today, make(map[useKey]int64)
	}
	use := key
	if _, known := m.spent[use]; !known && len(m.spent) >= maxUses {
		use.tool = ""
	}
	if limited && r.DailyBudget > 0 && m.spent[use] >= int64(r.DailyBudget) {
		return fleet.NewCallError("budget_spent", "rule", r.Name, "tool", p.Tool.Name,
			"limit", r.DailyBudget, "resets_at", time.Unix((m.day+1)*secondsOfDay, 0))
	}
	if limited && r.RatePerMinute > 0 {
		if wait := m.takeFrom(rateKey{r.ID, key}, r.RatePerMinute, p); wait > 0 {
			return fleet.NewCallError("rate_exceeded", "rule", r.Name, "tool", p.Tool.Name,
				"limit", r.RatePerMinute, "retry_after_ms", wait)
		}
	}
	if m.budget.Load() && !p.Preview {
		m.spent[use]++
	}
	return nil
}

// takeFrom takes a call from a bucket, or returns the time until the bucket has one.
func (m *meter) takeFrom(key rateKey, perMinute int, p *call.Proposal) (wait time.Duration) {
	if m.rates == nil {
		m.rates = make(map[rateKey]bucket)
	}
	b, known := m.rates[key]
	if !known && len(m.rates) >= maxBuckets && !m.dropFull(p.At) {
		key.tool = ""
		b, known = m.rates[key]
	}
	most := float64(perMinute)
	if !known {
		b = bucket{most, p.At}
	}
	if passed := p.At.Sub(b.at); passed > 0 {
		b.left, b.at = b.left+passed.Minutes()*most, p.At
	}
	if b.left = min(b.left, most); b.left < 1 {
		return time.Duration(math.Ceil((1-b.left)/most*60_000)) * time.Millisecond
	}
	if !p.Preview {
		b.left--
		m.rates[key] = b
	}
	return 0
}

// dropFull drops buckets that are full by now, which equals having none. It runs at most once
// a second because there are many.
func (m *meter) dropFull(now time.Time) (dropped bool) {
	if now.Sub(m.swept).Abs() < time.Second {
		return false
	}
	m.swept = now
	for key, b := range m.rates {
		if now.Sub(b.at) >= time.Minute {
			delete(m.rates, key)
			dropped = true
		}
	}
	return dropped
}

// follow starts or stops counting days. It reports whether counting has just started, in
// which case the caller must add the earlier calls of the day.
func (m *meter) follow(budget bool, now time.Time) (begins bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if begins = !m.budget.Swap(budget) && budget; begins {
		m.day, m.spent = dayOf(now), make(map[useKey]int64)
	}
	return begins
}

// add adds the calls made on a day before counting started.
func (m *meter) add(day int64, uses []Use) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if day != m.day {
		return
	}
	for _, u := range uses {
		key := useKey{u.Kind, u.ID, u.Tool}
		if _, known := m.spent[key]; !known && len(m.spent) >= maxUses {
			key.tool = ""
		}
		m.spent[key] += u.Calls
	}
}

const secondsOfDay = 24 * 60 * 60

// dayOf returns the number of the UTC day.
func dayOf(t time.Time) int64 { return t.Unix() / secondsOfDay }
