// Package attempts bounds how often passwords are guessed.
//
// It counts the tries that did not succeed: of a name from a network, of a network
// for all names, and, more slowly, of a name from everywhere. So whoever guesses at
// one operator's password from elsewhere does not lock that operator out. A browser
// in which the operator was signed in before is counted alone: it gets in however
// many others guess. The package knows no password, no cookie and no HTTP.
package attempts

import (
	"net/netip"
	"strings"
	"sync"
	"time"

	"fleetd/internal/bounded"
)

// A bound allows so many tries at once, and one more each time that passed.
type bound struct {
	burst int
	each  time.Duration
}

// Bounds of tries that did not succeed.
var (
	perPair    = bound{10, time.Minute}     // of a name from a network
	perNetwork = bound{20, 3 * time.Second} // for all names
	perName    = bound{60, 3 * time.Second} // from all networks: slows many of them down
	perBrowser = bound{10, time.Minute}     // of a browser that was signed in before
)

// maxKept bounds the counts. If a caller with 100,000 networks at hand pushes older
// counts out, argon2id still slows it down: two passwords are checked at a time.
const maxKept = 100_000

// A Try is one attempt to sign in.
type Try struct {
	Name    string
	Address string
	Browser string // of one that was signed in before, as this operator; "" for others
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

// A count is the tries that have not been made up for, at the time of the latest.
type count struct {
	tries float64
	at    time.Time
}

// New returns a limiter that reads the time from now.
func New(now func() time.Time) *Limiter {
	return &Limiter{now: now, counts: bounded.New[key, count](maxKept)}
}

// Begin counts a try, before it is known how it ends: many at one time must not
// pass together. It reports false, and counts nothing, if there were too many.
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

// Succeeded takes back what Begin counted.
func (l *Limiter) Succeeded(t Try) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, k := range t.keys() {
		l.counts.Add(k, count{max(0, l.current(k, now)-1), now})
	}
}

// current is the count of a key by now.
func (l *Limiter) current(k key, now time.Time) float64 {
	c, _ := l.counts.Peek(k)
	return max(0, c.tries-float64(now.Sub(c.at))/float64(k.bound.each))
}

func (t Try) keys() []key {
	if t.Browser != "" {
		return []key{{&perBrowser, t.Browser, ""}}
	}
	name, network := strings.ToLower(strings.TrimSpace(t.Name)), Network(t.Address)
	if len(name) > 100 { // longer than any operator's
		name = name[:100]
	}
	return []key{{&perPair, name, network}, {&perNetwork, "", network}, {&perName, name, ""}}
}

// Network is the network of an address: 24 bits of IPv4, 64 of IPv6, which one
// customer has. What is no address is its own network.
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
	p, _ := ip.Prefix(bits) // of an address without a zone, and fewer bits than it has
	return p.String()
}
