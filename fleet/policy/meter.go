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

// A Use is how often a caller has called a tool.
type Use struct {
	Kind  fleet.PrincipalKind
	ID    string // the name, of a caller without an id
	Tool  string
	Calls int64
}

// A meter counts the calls that are allowed: by the minute for rates, in this
// process alone, and by the day for budgets.
//
// A budget counts all calls of a caller of a tool, whichever rule let them
// through: so the record of calls says at any start how much of it is left.
type meter struct {
	budget atomic.Bool // a rule has one: the day is counted

	mu    sync.Mutex
	rates map[rateKey]bucket
	swept time.Time // when full buckets were last forgotten
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

// A bucket holds the calls that may be made at once: one minute's. It fills
// evenly.
type bucket struct {
	left float64
	at   time.Time
}

// Bounds of what a meter remembers. Beyond them, the tools of a caller share one
// count: a device can offer any number of tools.
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

// pass counts the call, unless it is a preview or judged again, or returns why it passes a limit
// of the rule; r is nil for a call that no rule applies to.
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

// takeFrom takes a call from a bucket, or returns how long it takes until there
// is one.
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

// dropFull forgets buckets that are full by now, whose absence means the same. It
// looks at most once a second: there are many.
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

// follow begins or ends counting days. It reports whether counting begins now,
// so that what was called before has to be added.
func (m *meter) follow(budget bool, now time.Time) (begins bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if begins = !m.budget.Swap(budget) && budget; begins {
		m.day, m.spent = dayOf(now), make(map[useKey]int64)
	}
	return begins
}

// add adds what was called on a day before counting began.
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

// dayOf counts days of UTC.
func dayOf(t time.Time) int64 { return t.Unix() / secondsOfDay }
