package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fleetd/broker/cluster/clustertest"
	"fleetd/broker/edge"
	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline bounds every wait of these tests. The awaited events take milliseconds, except on a
// busy machine.
const deadline = time.Minute

// domain is the broker's Devices: it admits a device whose password is its client id backwards,
// and records the broker's reports.
type domain struct {
	mu       sync.Mutex
	events   []string
	listings []fleet.ToolListing
	fresh    bool  // no listing is needed
	software bool  // no device names its hardware
	saveErr  error // returned by the next SaveListing
}

// earlierCall is the id of a call that an earlier process made.
const earlierCall = 77

func (d *domain) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events = append(d.events, fmt.Sprintf(format, args...))
}

func passwordOf(clientID string) string {
	b := []byte(clientID)
	slices.Reverse(b)
	return string(b)
}

func (d *domain) Authenticate(clientID, _ string, password []byte, _ string) (fleet.DeviceID, error) {
	if string(password) != passwordOf(clientID) {
		return "", enrolment.CredentialsForged
	}
	return deviceOfClientID(clientID), nil
}

func (d *domain) AuthenticateToken(id fleet.DeviceID, clientID, token, _ string) (string, error) {
	mqttID := "GID_default@@@" + strings.ReplaceAll(id.MAC(), ":", "_") + "@@@" + clientID
	if token != passwordOf(mqttID) {
		return "", enrolment.CredentialsForged
	}
	return mqttID, nil
}

func (d *domain) Connected(c fleet.Connection) { d.note("connected %s", c.Device) }
func (d *domain) Adopted(c fleet.Connection)   { d.note("adopted %s", c.Device) }
func (d *domain) Disconnected(c fleet.Connection, clean bool, cause fleet.Cause) {
	d.note("disconnected %s clean=%v: %s %s", c.Device, clean, cause.Reason.Code, cause.Text)
}
func (d *domain) Seen(fleet.DeviceID)         {}
func (d *domain) Responded(id fleet.DeviceID) { d.note("responded %s", id) }
func (d *domain) Unresponsive(c fleet.Connection, cause fleet.Cause) {
	d.note("unresponsive %s: %s", c.Device, cause.Text)
}

func (d *domain) AnsweredLate(id fleet.DeviceID, rpcID int32, as func(tool string) fleet.Answer) bool {
	d.note("answered late %s %d: %s", id, rpcID, as("x").Text)
	return rpcID == earlierCall
}

func (d *domain) IsSoftware(fleet.DeviceID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.software
}

func (d *domain) NeedsListing(fleet.DeviceID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.fresh
}

func (d *domain) SaveListing(_ context.Context, l fleet.ToolListing) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.saveErr; err != nil {
		d.saveErr = nil
		return err
	}
	d.listings = append(d.listings, l)
	return nil
}

func (d *domain) Notified(id fleet.DeviceID, method string, params json.RawMessage) {
	d.note("notified %s %s %s", id, method, params)
}

func (d *domain) count(prefix string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.events {
		if strings.HasPrefix(e, prefix) {
			n++
		}
	}
	return n
}

func (d *domain) listed() []fleet.ToolListing {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.listings)
}

func (d *domain) happened() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.events, "\n")
}

// options are those of a broker and of an edge in the same process.
type options struct {
	Options
	edgeOptions // Core is the broker

	Logger *slog.Logger // of both
}

type (
	edgeOptions = edge.Options
	edgeStats   = edge.Stats
)

// A system is a broker and its edge.
type system struct {
	*Broker
	edge *edge.Edge
	link *clustertest.Link // nil in one process
	stop func()
}

func (s *system) Addr() net.Addr    { return s.edge.Addr() }
func (s *system) TLSAddr() net.Addr { return s.edge.TLSAddr() }

// Stats returns the numbers of both.
func (s *system) Stats() (all struct {
	Stats
	edgeStats
	Connects, Hellos int64
}) {
	all.Stats, all.edgeStats = s.Broker.Stats(), s.edge.Stats()
	all.Connects, all.Hellos = all.Stats.Connects, all.Stats.Hellos+all.edgeStats.Hellos
	if s.link != nil {
		all.Panics += s.link.Core.Stats().Panics
	}
	return all
}

// start runs a broker and its edge on a free port until the test ends. Tools are not listed unless
// the test requests it.
func start(t testing.TB, change func(*options)) (*system, *domain) {
	t.Helper()
	d := &domain{fresh: true}
	// With a vision URL every device gets a request at every connection, which lets these tests
	// detect that a connection is up.
	var o options
	o.Addr, o.Devices, o.Node, o.Logger = "127.0.0.1:0", d, "test", slog.New(slog.NewTextHandler(t.Output(), nil))
	o.VisionURL = func(string) (url, token string) { return "http://192.0.2.1/vision/explain", "token" }
	if change != nil {
		change(&o)
	}
	o.Options.Logger, o.edgeOptions.Logger = o.Logger, o.Logger
	var s system
	var err error
	if s.Broker, err = New(o.Options); err != nil {
		t.Fatal(err)
	}
	o.Core = s.Broker
	endLink := func() {}
	if clustertest.Wanted() {
		s.link = clustertest.Join(t, o.Node, s.Broker, o.Logger)
		o.Core, endLink = s.link.Edge, s.link.Stop
	}
	if s.edge, err = edge.New(o.edgeOptions); err != nil {
		t.Fatal(err)
	}
	endBroker, endEdge := run(t, s.Broker.Run), run(t, s.edge.Run)
	s.stop = sync.OnceFunc(func() { endEdge(); endLink(); endBroker() })
	t.Cleanup(s.stop)
	return &s, d
}

// run runs a part and returns the function that ends it.
func run(t testing.TB, part func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	return func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(drainTimeout + deadline):
			t.Error("a part does not stop")
		}
	}
}

// Limits that devices meet, from the documentation and not from the code under test.
const (
	maxPacket        = 512 << 10
	maxConnect       = 2 << 10
	maxProxyHeader   = 2 << 10
	receiveMaximum   = 16
	defaultKeepalive = 240
	evictAfter       = time.Second

	voiceHelloEvery, voiceHelloBurst = time.Second, 5
	badTokensPerMinute               = 60
	textBurst                        = 200
)

// makeCall calls a tool as the domain does.
func makeCall(b *system, id fleet.DeviceID, tool, args string, wait time.Duration,
	late func(fleet.Answer)) (fleet.Answer,
	error) {
	turn, err := b.Queue(id, fleet.KindOperator)
	if err != nil {
		return fleet.Answer{}, err
	}
	defer turn.Done()
	select {
	case <-turn.Ready():
	case <-turn.Lost():
		return fleet.Answer{}, fleet.ErrLost
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	return turn.Send(ctx, fleet.Invocation{Tool: tool, Arguments: json.RawMessage(args)}, late)
}

// A timeUp is a context whose deadline passes when up is closed.
type timeUp struct {
	context.Context
	up <-chan struct{}
}

func (c timeUp) Deadline() (time.Time, bool) { return time.Now().Add(deadline), true }
func (c timeUp) Done() <-chan struct{}       { return c.up }
func (c timeUp) Err() error {
	select {
	case <-c.up:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// callInVain calls a tool that the device does not answer. The call times out as soon as it has
// been written, however long the write takes.
func callInVain(b *system, id fleet.DeviceID, tool string, late func(fleet.Answer)) error {
	turn, err := b.Queue(id, fleet.KindOperator)
	if err != nil {
		return err
	}
	defer turn.Done()
	<-turn.Ready()
	written := make(chan struct{})
	_, err = turn.Send(timeUp{context.Background(), written},
		fleet.Invocation{Tool: tool, Arguments: json.RawMessage(`{}`), OnWritten: func() { close(written) }}, late)
	return err
}

// A lockedWriter lets a test read what several goroutines log.
type lockedWriter struct {
	mu sync.Mutex
	w  bytes.Buffer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func (l *lockedWriter) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.String()
}
