// Package attempts bounds how often passwords are guessed.
//
// It counts failed tries: of a name from one network, of all names from one network and, more
// slowly, of a name from all networks. Someone who guesses an operator's password from elsewhere
// therefore does not lock out that operator. A browser in which the operator has signed in before
// is counted separately: it gets in no matter how many others guess. The package handles no
// passwords, no cookies and no HTTP.
package attempts

import (
	"net/netip"
	"strings"
	"sync"
	"time"

	"fleetd/internal/bounded"
)

// A bound allows a number of tries at once, and one more after each interval.
type bound struct {
	burst int
	each  time.Duration
}

// Bounds of failed tries.
var (
	perPair    = bound{10, time.Minute}     // of a name from one network
	perNetwork = bound{20, 3 * time.Second} // of all names from one network
	perName    = bound{60, 3 * time.Second} // of a name from all networks: slows many networks down
	perBrowser = bound{10, time.Minute}     // of a browser that has signed in before
)

// maxKept bounds the counts. If a caller with 100,000 networks at hand pushes older
// counts out, argon2id still slows it down: two passwords are checked at a time.
const maxKept = 100_000

// A Try is one try to sign in.
type Try struct {
	Name    string
	Address string
	Browser string // a browser in which this operator has signed in before; "" for others
}

// A Limiter counts tries. It is safe for concurrent use.
type Limiter struct {
	now func() time.Time

	mu     sync.Mutex
	counts *bounded.Cache[key, count]
}

type key struct {
	bound         *bound
	name, network string
}

// A count is the number of tries that have not recovered, as of the latest try.
type count struct {
	tries float64
	at    time.Time
}

// New returns a limiter that reads the time from now.
func New(now func() time.Time) *Limiter {
	return &Limiter{now: now, counts: bounded.New[key, count](maxKept)}
}

// Begin counts a try before its outcome is known, because many concurrent tries must not pass
// together. It returns false, and counts nothing, if there were too many.
func (l *Limiter) Begin(t Try) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	keys := t.keys()
	for _, k := range keys {
		if l.current(k, now)+1 > float64(k.bound.burst) {
			return false
		}
	}
	for _, k := range keys {
		l.counts.Add(k, count{l.current(k, now) + 1, now})
	}
	return true
}

// Succeeded undoes the count of Begin.
func (l *Limiter) Succeeded(t Try) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, k := range t.keys() {
		l.counts.Add(k, count{max(0, l.current(k, now)-1), now})
	}
}

// current returns the present count of a key.
func (l *Limiter) current(k key, now time.Time) float64 {
	c, _ := l.counts.Peek(k)
	return max(0, c.tries-float64(now.Sub(c.at))/float64(k.bound.each))
}

func (t Try) keys() []key {
	if t.Browser != "" {
		return []key{{&perBrowser, t.Browser, ""}}
	}
	name, network := strings.ToLower(strings.TrimSpace(t.Name)), Network(t.Address)
	if len(name) > 100 { // longer than the name of any operator
		name = name[:100]
	}
	return []key{{&perPair, name, network}, {&perNetwork, "", network}, {&perName, name, ""}}
}

// Network returns the network of an address: 24 bits of IPv4 or 64 bits of IPv6, which is what one
// customer has. A string that is not an address is its own network.
func Network(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	ip = ip.Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 24
	}
	p, _ := ip.Prefix(bits) // cannot fail: the address has no zone, and more bits than this
	return p.String()
}
