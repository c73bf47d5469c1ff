package server

import (
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// A chaosProxy is a proxy in front of a listener, or a balancer in front of several: a connection goes
// to the next one that accepts.
//
// It works on TCP streams, where lost and reordered packets look alike: later
// bytes wait for the retransmission of earlier ones. A loss rule simulates that
// delay; the kernel's own handling of lost packets is not tested here.
type chaosProxy struct {
	listener net.Listener
	turn     atomic.Int64

	mu      sync.Mutex
	targets []string
	pairs   map[*proxyPair]struct{}
	rule    proxyRule
	changed chan struct{} // closed when the rule changes
}

// A proxyRule is a disturbance of a share of the connections.
type proxyRule struct {
	share     float64       // 0 to 1
	delay     time.Duration // delay of every piece, in both directions
	loss      float64       // share of pieces that arrive a retransmission time later
	stallUp   bool          // nothing passes from the devices to fleetd
	stallDown bool          // nothing passes from fleetd to the devices
}

// A proxyPair is a connection of a device and its counterpart to fleetd.
type proxyPair struct {
	device, server net.Conn
	luck           float64 // 0 to 1; a rule hits it if this is below the share
}

// Bounds of the time that the retransmission of a lost packet takes.
const (
	shortestRetransmission = 200 * time.Millisecond
	longestRetransmission  = 1200 * time.Millisecond
)

func newChaosProxy(targets ...string) (*chaosProxy, error) {
	return newChaosProxyAt("127.0.0.1:0", targets...)
}

func newChaosProxyAt(addr string, targets ...string) (*chaosProxy, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &chaosProxy{listener: listener, targets: targets, pairs: map[*proxyPair]struct{}{}, changed: make(chan struct{})}
	go p.accept()
	return p, nil
}

func (p *chaosProxy) addr() string { return p.listener.Addr().String() }

func (p *chaosProxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		go p.serve(conn)
	}
}

func (p *chaosProxy) serve(device net.Conn) {
	server := p.dial()
	if server == nil {
		reset(device)
		return
	}
	pair := &proxyPair{device: device, server: server, luck: rand.Float64()}
	p.mu.Lock()
	p.pairs[pair] = struct{}{}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pump(pair, device, server, func(r proxyRule) bool { return r.stallUp }) })
	both.Go(func() { p.pump(pair, server, device, func(r proxyRule) bool { return r.stallDown }) })
	both.Wait()
	device.Close()
	server.Close()
	p.mu.Lock()
	delete(p.pairs, pair)
	p.mu.Unlock()
}

func (p *chaosProxy) setTargets(targets []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.targets = targets
}

// dial connects to the next target that accepts; nil: none does.
func (p *chaosProxy) dial() net.Conn {
	p.mu.Lock()
	targets := p.targets
	p.mu.Unlock()
	first := int(p.turn.Add(1))
	for i := range targets {
		network, target := "tcp", targets[(first+i)%len(targets)]
		if filepath.IsAbs(target) {
			network = "unix"
		}
		if server, err := net.DialTimeout(network, target, 5*time.Second); err == nil {
			return server
		}
	}
	return nil
}

// A piece is the data of one read, to be written at its due time. A piece
// without data is the end of the stream.
type piece struct {
	data []byte
	due  time.Time
}

// pump copies one direction in order, under the current rule.
func (p *chaosProxy) pump(pair *proxyPair, from, to net.Conn, stalled func(proxyRule) bool) {
	line := make(chan piece, 256)
	go func() {
		defer close(line)
		for {
			data := make([]byte, 4096)
			n, err := from.Read(data)
			rule, _ := p.ruleFor(pair)
			due := time.Now().Add(rule.delay)
			if rand.Float64() < rule.loss {
				due = due.Add(shortestRetransmission + rand.N(longestRetransmission-shortestRetransmission))
			}
			if n > 0 {
				line <- piece{data[:n], due}
			}
			if err != nil {
				line <- piece{nil, due}
				return
			}
		}
	}()
	for next := range line {
		time.Sleep(time.Until(next.due))
		for rule, changed := p.ruleFor(pair); stalled(rule); rule, changed = p.ruleFor(pair) {
			<-changed
		}
		if next.data == nil {
			_ = to.(interface{ CloseWrite() error }).CloseWrite()
			break
		}
		if _, err := to.Write(next.data); err != nil {
			reset(from)
			break
		}
	}
	for range line { // the reader ends with its connection
	}
}

// ruleFor returns the current rule for a pair, and a channel that closes when
// it changes.
func (p *chaosProxy) ruleFor(pair *proxyPair) (proxyRule, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pair.luck >= p.rule.share {
		return proxyRule{}, p.changed
	}
	return p.rule, p.changed
}

func (p *chaosProxy) set(rule proxyRule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = rule
	close(p.changed)
	p.changed = make(chan struct{})
}

// resetShare breaks a share of the connections at both ends.
func (p *chaosProxy) resetShare(share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pair := range p.pairs {
		if pair.luck < share {
			reset(pair.device)
			reset(pair.server)
		}
	}
}

func (p *chaosProxy) close() {
	p.listener.Close()
	p.set(proxyRule{})
	p.resetShare(1)
}

// reset closes a connection with RST in place of FIN.
func reset(c io.Closer) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}
