// Package attempts bounds how often somebody may guess what is short enough to be guessed: passwords of
// operators, and the codes that waiting devices show.
//
// It counts failed tries in memory, and records them in a store, so that the next process continues with
// the counts: a restart, or a new leader of a cluster, allows no more tries. The store holds keyed
// digests of whom a count is about, because people type passwords into the field for their name. Tokens
// and keys have too many bits to be guessed, and are not counted here. The package handles no passwords,
// no cookies and no HTTP.
package attempts

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"

	"fleetd/internal/bounded"
)

// A Bound allows a number of failed tries at once, and one more after each interval.
type Bound struct {
	Name  string // in the store
	Burst int
	Each  time.Duration
}

// A Key is one thing that is counted: the tries of a subject, such as an operator or a network.
type Key struct {
	Bound   *Bound
	Subject string
}

// A Digest identifies a subject in the store.
type Digest [sha256.Size]byte

// A Count is the number of tries that have not recovered. It falls by one in each interval.
type Count struct {
	Bound   string
	Subject Digest
	Each    time.Duration
	Tries   float64       // as of Age ago
	Age     time.Duration // since the latest failed try, by the store's clock
}

// A Store keeps the counts.
type Store interface {
	// FailedTries returns the counts that have not recovered.
	FailedTries(ctx context.Context) ([]Count, error)
	// AddFailedTries adds one failed try to each of the counts, whose Tries and Age it ignores.
	AddFailedTries(ctx context.Context, counts []Count) error
}

// Options configures a [Limiter]. The zero value is ready to use.
type Options struct {
	Store Store            // nil: the counts end with the process
	Key   []byte           // of the digests. Default: a random one
	Now   func() time.Time // default: time.Now
}

// maxKept bounds the counts in memory. If a caller with 100,000 networks at hand pushes older
// counts out, argon2id still slows it down: two passwords are checked at a time.
const maxKept = 100_000

// recordTimeout bounds the recording of a failed try.
const recordTimeout = 5 * time.Second

// A Limiter counts tries. It is safe for concurrent use.
type Limiter struct {
	o Options

	mu     sync.Mutex
	counts *bounded.Cache[counted, count]
}

// A counted is a [Key] with the digest of its subject.
type counted struct {
	bound   string
	subject Digest
}

// A count is the number of tries that have not recovered, as of the latest try.
type count struct {
	tries float64
	at    time.Time
}

// New returns a limiter. Load gives it the counts of the process before it.
func New(o Options) *Limiter {
	if o.Key == nil {
		o.Key = make([]byte, sha256.Size)
		rand.Read(o.Key)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Limiter{o: o, counts: bounded.New[counted, count](maxKept)}
}

// Load reads the counts from the store.
func (l *Limiter) Load(ctx context.Context) error {
	if l.o.Store == nil {
		return nil
	}
	all, err := l.o.Store.FailedTries(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.o.Now()
	for _, c := range all {
		l.counts.Add(counted{c.Bound, c.Subject}, count{c.Tries, now.Add(-c.Age)})
	}
	return nil
}

// Begin counts a try before its outcome is known, because many concurrent tries must not pass
// together. It returns false, and counts nothing, if one of the keys had too many. After true the
// caller calls Succeeded or Failed; without either the try counts in memory alone.
func (l *Limiter) Begin(keys ...Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.o.Now()
	for _, k := range keys {
		if l.current(k, now)+1 > float64(k.Bound.Burst) {
			return false
		}
	}
	for _, k := range keys {
		l.counts.Add(l.digest(k), count{l.current(k, now) + 1, now})
	}
	return true
}

// Succeeded undoes the count of Begin.
func (l *Limiter) Succeeded(keys ...Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.o.Now()
	for _, k := range keys {
		l.counts.Add(l.digest(k), count{max(0, l.current(k, now)-1), now})
	}
}

// Failed records a failed try that Begin has counted. After an error the caller must not say whether the
// guess was right.
func (l *Limiter) Failed(ctx context.Context, keys ...Key) error {
	if l.o.Store == nil {
		return nil
	}
	counts := make([]Count, len(keys))
	for i, k := range keys {
		c := l.digest(k)
		counts[i] = Count{Bound: c.bound, Subject: c.subject, Each: k.Bound.Each}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	return l.o.Store.AddFailedTries(ctx, counts)
}

// current returns the present count of a key.
func (l *Limiter) current(k Key, now time.Time) float64 {
	c, _ := l.counts.Peek(l.digest(k))
	return max(0, c.tries-float64(now.Sub(c.at))/float64(k.Bound.Each))
}

func (l *Limiter) digest(k Key) counted {
	mac := hmac.New(sha256.New, l.o.Key)
	mac.Write([]byte(k.Bound.Name + "\x00" + k.Subject))
	c := counted{bound: k.Bound.Name}
	mac.Sum(c.subject[:0])
	return c
}
