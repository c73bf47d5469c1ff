package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/internal/program"
	"fleetd/mcp"
)

// A unit is a device of the host. It outlives its sessions.
type unit struct {
	host *Host
	id   fleet.DeviceID
	kind fleet.DeviceKind
	ids  atomic.Int32 // of calls

	mu       sync.Mutex
	session  *session // nil while it is not connected
	offers   func(tool string) bool
	audience fleet.Audience
	log      func(level, text string) // nil: its log messages are only passed on
	listed   func()                   // called after each listing; may be nil
}

func (u *unit) current() *session {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.session
}

// A session is one conversation with a unit, from initialize to the end of the connection.
type session struct {
	fleet.Connection
	unit   *unit
	client *sdk.ClientSession
	build  string        // fingerprint of the program; "" if unknown
	lost   chan struct{} // closed at the end of the connection
	failed error         // of the transport; set before lost is closed
	source source
	closed chan struct{} // closed by close
	once   sync.Once
	listed atomic.Bool
	hung   atomic.Bool // it was closed because it answered no ping
	ponged bool        // it has answered a ping; used by watch only

	process *program.Process // of a plug-in; may be nil

	lists sync.Mutex // one listing at a time
	again chan struct{}

	prompts, resources atomic.Int32
	recount            chan struct{}

	mu       sync.Mutex
	inFlight int
	waiting  []*turn // in order of arrival
	ended    bool    // no call is accepted any more
	idle     chan struct{}
	silent   bool
	cause    fleet.Cause                     // why fleetd ends the connection; zero if the server ended it
	progress map[string]func(fleet.Progress) // by token
}

// A source is a way to reach an MCP server.
type source struct {
	transport sdk.Transport
	name      string // of the transport, in connections: "stdio", "http", "endpoint"
	address   string
	build     string
	// definition is a fingerprint of what the manifest starts or connects to.
	definition string
	close      func()       // ends the connection at once
	received   func() int64 // bytes so far; nil if unknown
	// findsDead says that the transport itself finds peers that are gone, so that a server that
	// never answers a ping may just not know it.
	findsDead bool
	silent    func() bool // whether the transport ended because the peer was silent; nil if unknown
}

// Protocol versions that the host asks for, in this order. The first has ping, log messages and
// errors of subscriptions, which 2026-07-28 does not have.
var versions = []string{"2025-11-25", "2026-07-28"}

// connect begins a session with a server. The session is not the unit's before [session.begin].
func (u *unit) connect(ctx context.Context, open func() (source, error)) (*session, error) {
	return u.connectAs(ctx, versions, open)
}

// connectAs is connect with the versions to ask for. Each version needs a new connection.
func (u *unit) connectAs(ctx context.Context, versions []string, open func() (source, error)) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, u.host.o.StartTimeout)
	defer cancel()
	var failed error
	for i, version := range versions {
		src, err := open()
		if err != nil {
			return nil, err
		}
		s := &session{unit: u, lost: make(chan struct{}), again: make(chan struct{}, 1),
			recount: make(chan struct{}, 1), build: src.build, source: src,
			closed:   make(chan struct{}),
			progress: map[string]func(fleet.Progress){}}
		client := sdk.NewClient(&sdk.Implementation{Name: "fleetd", Version: u.host.o.Version}, s.options())
		client.AddReceivingMiddleware(refuse)
		s.client, err = client.Connect(ctx, src.transport, &sdk.ClientSessionOptions{ProtocolVersion: version})
		if err == nil {
			now := time.Now().UTC()
			s.Connection = fleet.Connection{Device: u.id, Node: u.host.o.Node, Epoch: u.host.epoch.next(now),
				Transport: src.name, RemoteAddr: src.address, At: now}
			return s, nil
		}
		if i == 0 {
			failed = err
		}
		if _, answered := jsonrpcError(err); !answered || ctx.Err() != nil {
			break // only a server that answers may know another version
		}
	}
	return nil, fmt.Errorf("%w: %w", errInitialize, failed)
}

var errInitialize = errors.New("initialize failed")

// begin makes the session the unit's: calls go to it from now on. It returns the session that it
// replaces, if any.
func (s *session) begin(ctx context.Context) (before *session, err error) {
	info := s.server()
	if err := s.unit.host.o.Devices.SaveProgram(ctx, s.Device, s.unit.kind, info.Version); err != nil {
		return nil, err
	}
	u := s.unit
	u.mu.Lock()
	before, u.session = u.session, s
	u.mu.Unlock()
	u.host.o.Devices.Connected(s.Connection)
	u.host.sessions.Go(s.watch)
	s.setLogLevel(ctx)
	if err := s.list(ctx); err != nil {
		u.host.o.Log.Warn("tools not listed", "device", s.Device, "err", err)
		s.listAgain()
	}
	s.countAgain()
	u.host.changed(Change{Device: s.Device, Lists: true})
	return before, nil
}

// server returns what the server says it is.
func (s *session) server() sdk.Implementation {
	r := s.client.InitializeResult()
	if r == nil || r.ServerInfo == nil {
		return sdk.Implementation{}
	}
	info := *r.ServerInfo
	info.Name, info.Version = fleet.CleanText(info.Name, 100), fleet.CleanText(info.Version, 60)
	return info
}

func (s *session) protocol() string {
	if r := s.client.InitializeResult(); r != nil {
		return r.ProtocolVersion
	}
	return ""
}

// watch waits for the end of the connection, and pings the server until then.
func (s *session) watch() {
	gone := make(chan error, 1)
	go func() { gone <- s.client.Wait() }()
	tick := time.NewTicker(s.unit.host.o.PingEvery)
	defer tick.Stop()
	failures := 0
	for {
		select {
		case err := <-gone:
			s.end(err)
			return
		case <-s.closed:
			select {
			case <-gone:
			case <-time.After(closeTimeout): // the SDK may try to reconnect
			}
			s.end(nil)
			return
		case <-s.again:
			ctx, cancel := context.WithTimeout(context.Background(), listTimeout)
			if err := s.list(ctx); err != nil && !s.hasEnded() {
				s.unit.host.o.Log.Warn("tools not listed", "device", s.Device, "err", err)
			}
			cancel()
		case <-s.recount:
			s.count()
		case <-tick.C:
			if failures = s.ping(failures); failures >= s.maxPingFailures() {
				s.unit.note("error", "it answered no ping: the connection is closed")
				s.hung.Store(true)
				s.close()
				failures = 0
			}
		}
	}
}

// close ends the connection. Calls in flight have a moment to end.
func (s *session) close() {
	s.once.Do(func() {
		close(s.closed)
		polite := make(chan struct{})
		go func() { defer close(polite); _ = s.client.Close() }() // waits for calls, and says goodbye over HTTP
		go func() {
			select {
			case <-polite:
			case <-time.After(closeTimeout / 2):
			}
			s.source.close()
		}()
	})
}

const (
	closeTimeout = 2 * time.Second
)

// maxPingFailures returns the number of pings without an answer after which the connection is
// closed. A program that works on a call may have no time for pings.
func (s *session) maxPingFailures() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inFlight > 0 {
		return 8
	}
	return 3
}

// ping returns the number of pings in a row without an answer.
func (s *session) ping(failures int) int {
	if s.protocol() >= "2026-07-28" {
		return 0 // that version has no ping
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.unit.host.o.PingTimeout)
	defer cancel()
	before := s.received()
	err := s.client.Ping(ctx, nil)
	_, answered := jsonrpcError(err)
	switch {
	case s.hasEnded():
		return 0
	case err == nil || answered:
		s.ponged = true
		s.answered()
		return 0
	case s.source.findsDead && !s.ponged:
		return 0
	}
	s.unanswered("ping")
	if s.received() != before {
		return 0 // the answer waits behind a long message
	}
	return failures + 1
}

// received returns the number of bytes that the server has sent, 0 if it is not known.
func (s *session) received() int64 {
	if s.source.received == nil {
		return 0
	}
	return s.source.received()
}

func (s *session) answered() {
	s.mu.Lock()
	was := s.silent
	s.silent = false
	s.mu.Unlock()
	if was {
		s.unit.host.o.Devices.Responded(s.Device)
	}
}

func (s *session) unanswered(request string) {
	s.mu.Lock()
	first := !s.silent
	s.silent = true
	s.mu.Unlock()
	if first {
		s.unit.host.o.Devices.Unresponsive(s.Connection, fleet.Cause{
			Reason: fleet.Because(fleet.CauseNoAnswer, "request", request), Text: "no answer to " + request})
	}
}

func (s *session) hasEnded() bool {
	select {
	case <-s.lost:
		return true
	default:
		return false
	}
}

// end handles the end of the connection.
func (s *session) end(err error) {
	u := s.unit
	s.stop()
	s.failed = err
	close(s.lost)
	u.mu.Lock()
	current := u.session == s
	if current {
		u.session = nil
	}
	u.mu.Unlock()
	u.host.o.Devices.Disconnected(s.Connection, false, s.endCause(err))
	if current {
		u.host.changed(Change{Device: s.Device, Lists: true})
	}
}

// isHung reports whether the connection ended because the server answered no ping.
func (s *session) isHung() bool { return s.hung.Load() || s.source.silent != nil && s.source.silent() }

// endCause returns why the connection ended.
func (s *session) endCause(err error) fleet.Cause {
	s.mu.Lock()
	cause := s.cause
	s.mu.Unlock()
	switch {
	case !cause.Reason.Is(""):
		return cause
	case s.isHung():
		return fleet.Cause{Reason: fleet.Because(fleet.CauseNoAnswer, "request", "ping"), Text: "no answer to ping"}
	case err != nil:
		text := fleet.CleanText(err.Error(), 120)
		return fleet.Cause{Reason: fleet.Because(fleet.CauseSocketError, "detail", text), Text: text}
	}
	return fleet.Cause{Reason: fleet.Because(fleet.CauseSocketClosed), Text: "the connection ended"}
}

// listTimeout bounds the requests of one listing.
const listTimeout = time.Minute

// Limits of a list of tools.
const (
	maxTools     = 512
	maxListBytes = 1 << 20
)

// list stores the tools that the unit offers.
func (s *session) list(ctx context.Context) error {
	s.lists.Lock()
	defer s.lists.Unlock()
	u := s.unit
	u.mu.Lock()
	offers, audience, listed := u.offers, u.audience, u.listed
	u.mu.Unlock()
	var tools, all []fleet.Tool
	names := map[string]bool{}
	size, partial := 0, false
	if s.capabilities().Tools != nil {
		for tool, err := range s.client.Tools(ctx, nil) {
			if err != nil {
				if len(tools) == 0 {
					return err
				}
				partial = true
				break
			}
			data, err := json.Marshal(tool)
			size += len(data)
			if size > maxListBytes || len(tools) == maxTools {
				partial = true
				u.note("error", fmt.Sprintf("its list of tools exceeds %d tools or %d KiB; the rest is left out", maxTools,
					maxListBytes>>10))
				break
			}
			parsed, bad := mcp.ParseTool(data)
			if err != nil || bad != nil {
				u.note("error", fmt.Sprintf("tool %q is left out: %v", fleet.CleanText(tool.Name, 100), errors.Join(err, bad)))
				continue
			}
			if names[parsed.Name] {
				continue
			}
			names[parsed.Name] = true
			t := fleet.Tool{Name: parsed.Name, Description: parsed.Description, InputSchema: parsed.InputSchema,
				Audience: fleet.AudienceModel}
			if parsed.UserOnly() {
				t.Audience = fleet.AudienceUser
			}
			all = append(all, t)
			if offers != nil && !offers(t.Name) {
				continue
			}
			if audience == fleet.AudienceUser {
				t.Audience = fleet.AudienceUser
			}
			tools = append(tools, t)
		}
	}
	info := s.server()
	err := u.host.o.Devices.SaveListing(ctx, fleet.ToolListing{Device: s.Device, ServerName: info.Name,
		ServerVersion: info.Version, Version: info.Version, ELFSHA256: s.build, Partial: partial, At: time.Now().UTC(),
		Listed: all, Definition: s.source.definition,
		Inventory: fleet.Inventory{ID: fleet.InventoryID(tools), Tools: tools, CreatedAt: time.Now().UTC()}})
	if err == nil {
		s.listed.Store(true)
		if listed != nil {
			listed()
		}
	}
	return err
}

// listAgain makes the session list its tools again soon. Many requests become one.
func (s *session) listAgain() {
	time.AfterFunc(200*time.Millisecond, func() {
		select {
		case s.again <- struct{}{}:
		default:
		}
	})
}

func (s *session) capabilities() sdk.ServerCapabilities {
	if r := s.client.InitializeResult(); r != nil && r.Capabilities != nil {
		return *r.Capabilities
	}
	return sdk.ServerCapabilities{}
}

// note adds a line to the unit's log.
func (u *unit) note(level, text string) {
	u.mu.Lock()
	log := u.log
	u.mu.Unlock()
	if log != nil {
		log(level, fleet.CleanText(text, 1000))
	}
}
