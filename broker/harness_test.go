package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

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
func (d *domain) Disconnected(c fleet.Connection, clean bool, cause fleet.Cause) {
	d.note("disconnected %s clean=%v: %s %s", c.Device, clean, cause.Reason.Code, cause.Text)
}
func (d *domain) Seen(fleet.DeviceID)         {}
func (d *domain) Responded(id fleet.DeviceID) { d.note("responded %s", id) }
func (d *domain) Unresponsive(c fleet.Connection, cause fleet.Cause) {
	d.note("unresponsive %s: %s", c.Device, cause.Text)
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

// start runs a broker on a free port until the test ends. Tools are not listed unless the test
// requests it.
func start(t testing.TB, change func(*Options)) (*Broker, *domain) {
	t.Helper()
	d := &domain{fresh: true}
	// With a vision URL every device gets a request at every connection, which lets these tests
	// detect that a connection is up.
	o := Options{Addr: "127.0.0.1:0", Devices: d, Node: "test", Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		VisionURL: func(string) (url, token string) { return "http://192.0.2.1/vision/explain", "token" }}
	if change != nil {
		change(&o)
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return b, d
}

// makeCall calls a tool as the domain does.
func makeCall(b *Broker, id fleet.DeviceID, tool, args string, wait time.Duration,
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
func callInVain(b *Broker, id fleet.DeviceID, tool string, late func(fleet.Answer)) error {
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
