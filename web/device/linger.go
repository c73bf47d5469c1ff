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
	// For is how long a connection stays open after a response to a device, unless the device
	// closes it first. Default: 2s.
	For time.Duration
	// Max bounds the lingering connections; a further one closes the oldest. Default: 4,096, at
	// most a 32nd of the process's file descriptors.
	Max int
}

// A Lingerer lets devices close their connections first. The HTTP client of stock boards uses freed
// memory if the server's FIN arrives while the board destroys the request object, and the board
// restarts. The board requests that the connection be closed and destroys the object as soon as it
// has the response, so a server that closes at once often hits that moment.
//
// Only the socket waits: net/http has finished with it, and has released its goroutine and buffers.
// One goroutine checks all sockets at intervals.
type Lingerer struct {
	o LingerOptions

	mu      sync.Mutex
	queue   []lingering // by deadline, which is also the order of arrival
	working bool        // a goroutine checks the queue
	stopped bool
}

type lingering struct {
	conn  *net.TCPConn
	until time.Time
}

// lookEvery is the interval of the check whether devices have closed.
const lookEvery = 100 * time.Millisecond

// NewLingerer returns a Lingerer; [Lingerer.Listener] activates it.
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

// Listener returns ln with connections that linger after responses to devices, for an [http.Server]
// with [WithConn].
func (l *Lingerer) Listener(ln net.Listener) net.Listener { return lingerListener{ln, l} }

// Stop closes all lingering connections. Later connections are closed at once.
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

// add queues c until the device closes it or its time is over.
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

// work closes connections until the queue is empty.
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

// look closes the connections that are due or closed by their device, and reports whether any
// connection remains. The lock is held for one system call per connection.
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

// ended reports whether the device has closed the connection. It discards other bytes from the
// device, such as the rest of a refused upload: closing a socket with unread bytes would reset it.
func ended(c *net.TCPConn, buf []byte) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	over := false
	err = raw.Control(func(fd uintptr) {
		for range 16 { // the next look reads the rest
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

// A lingerConn is the connection that net/http serves.
type lingerConn struct {
	*net.TCPConn
	lingerer *Lingerer
	waits    atomic.Bool // until the device closes
}

// Close hands the socket to the Lingerer if the connection carried a response to a device.
func (c *lingerConn) Close() error {
	if !c.waits.Swap(false) {
		return c.TCPConn.Close()
	}
	return c.lingerer.add(c.TCPConn)
}

// CloseWrite is called by net/http, which sends the FIN first if a body was not read.
func (c *lingerConn) CloseWrite() error {
	if c.waits.Load() {
		return nil
	}
	return c.TCPConn.CloseWrite()
}

// lingers lets devices close first after a response of next, unless next breaks the connection.
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
