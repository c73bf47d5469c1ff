package device

import (
	"cmp"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// LingerOptions configures a [Lingerer]. The zero value is ready to use.
type LingerOptions struct {
	// For is how long a connection stays open after an answer to a device,
	// unless the device closes it first. Default: 2s.
	For time.Duration
	// Max bounds the connections that stay open so; for a further one the oldest
	// is closed. Default: 4,096, at most a 32nd of the process's descriptors.
	Max int
}

// A Lingerer lets devices close their connections first. The HTTP client of
// stock boards uses memory it has freed if the server's FIN arrives while the
// request object is destroyed, and the board restarts: it asks for the
// connection to be closed and destroys the object as soon as it has the answer,
// so a server that closes at once hits that moment often.
//
// What waits is the socket alone: net/http is done with it, and has taken back
// goroutine and buffers. One goroutine looks at all of them now and then.
type Lingerer struct {
	o LingerOptions

	mu      sync.Mutex
	queue   []lingering // by deadline, which is the order of their coming
	working bool        // a goroutine looks at the queue
	stopped bool
}

type lingering struct {
	conn  *net.TCPConn
	until time.Time
}

// lookEvery is how often it is looked whether devices have closed.
const lookEvery = 100 * time.Millisecond

// NewLingerer makes a Lingerer; [Lingerer.Listener] puts it to use.
func NewLingerer(o LingerOptions) *Lingerer {
	o.For = cmp.Or(o.For, 2*time.Second)
	if o.Max == 0 {
		o.Max = 4096
		var limit syscall.Rlimit
		if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
			o.Max = int(min(uint64(o.Max), max(1, uint64(limit.Cur)/32)))
		}
	}
	return &Lingerer{o: o}
}

// Listener returns ln with connections that linger after answers to devices,
// for an [http.Server] with [WithConn].
func (l *Lingerer) Listener(ln net.Listener) net.Listener { return lingerListener{ln, l} }

// Stop closes all that linger. From now on connections are closed at once.
func (l *Lingerer) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for _, w := range l.queue {
		_ = w.conn.Close()
	}
	l.queue = nil
}

// Waiting returns how many connections linger now.
func (l *Lingerer) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

// add queues c, which its device closes, or the Lingerer later.
func (l *Lingerer) add(c *net.TCPConn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return c.Close()
	}
	if len(l.queue) >= l.o.Max {
		_ = l.queue[0].conn.Close()
		l.queue = l.queue[1:]
	}
	l.queue = append(l.queue, lingering{c, time.Now().Add(l.o.For)})
	if !l.working {
		l.working = true
		go l.work()
	}
	return nil
}

// work closes connections until none is left.
func (l *Lingerer) work() {
	buf := make([]byte, 16<<10)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for range tick.C {
		if !l.look(buf, time.Now()) {
			return
		}
	}
}

// look closes what is due or closed by its device, and reports whether any
// connection is left. The lock is held for a system call per connection.
func (l *Lingerer) look(buf []byte, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.queue[:0:len(l.queue)]
	for _, w := range l.queue {
		if now.Before(w.until) && !ended(w.conn, buf) {
			kept = append(kept, w)
			continue
		}
		_ = w.conn.Close()
	}
	clear(l.queue[len(kept):])
	if l.queue = kept; len(kept) == 0 {
		l.queue = nil
	}
	l.working = len(kept) > 0
	return l.working
}

// ended reports whether the device has closed the connection. What it sends
// instead, such as the rest of a refused upload, is thrown away: closing a
// socket with unread bytes would reset it.
func ended(c *net.TCPConn, buf []byte) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	over := false
	err = raw.Control(func(fd uintptr) {
		for range 16 { // the rest at the next look
			n, _, err := syscall.Recvfrom(int(fd), buf, syscall.MSG_DONTWAIT)
			switch {
			case err == syscall.EINTR:
			case err == syscall.EAGAIN:
				return
			case err != nil || n == 0:
				over = true
				return
			}
		}
	})
	return over || err != nil
}

type lingerListener struct {
	net.Listener
	lingerer *Lingerer
}

func (ln lingerListener) Accept() (net.Conn, error) {
	c, err := ln.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		return &lingerConn{TCPConn: tcp, lingerer: ln.lingerer}, nil
	}
	return c, nil
}

// A lingerConn is what net/http serves.
type lingerConn struct {
	*net.TCPConn
	lingerer *Lingerer
	waits    atomic.Bool // for the device to close
}

// Close hands the socket over, if it has an answer to a device in it.
func (c *lingerConn) Close() error {
	if !c.waits.Swap(false) {
		return c.TCPConn.Close()
	}
	return c.lingerer.add(c.TCPConn)
}

// CloseWrite is how net/http sends the FIN first when a body was not read.
func (c *lingerConn) CloseWrite() error {
	if c.waits.Load() {
		return nil
	}
	return c.TCPConn.CloseWrite()
}

// lingers lets devices close first after what next answers, unless it breaks
// the connection.
func lingers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := r.Context().Value(connKey{}).(*lingerConn)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		c.waits.Store(false) // also if next panics
		next.ServeHTTP(w, r)
		c.waits.Store(true)
	})
}
