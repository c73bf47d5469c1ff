package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/broker/edge"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// echoServers answer each request with its parameters.
type echoServers struct{}

type echoSession struct{ end context.CancelFunc }

func (echoSession) Received(fleet.Principal) {}
func (s echoSession) Close()                 { s.end() }

func (echoServers) Open(_ context.Context, _ fleet.Principal, _ fleet.DeviceID, t mcp.Transport) (Session, error) {
	ctx, cancel := context.WithCancel(context.Background())
	conn, err := t.Connect(ctx)
	go func() {
		for {
			m, err := conn.Read(ctx)
			if err != nil {
				return
			}
			if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() {
				_ = conn.Write(ctx, &jsonrpc.Response{ID: r.ID, Result: r.Params})
			}
		}
	}()
	return echoSession{cancel}, err
}

func (echoServers) Online(context.Context, fleet.Principal, int) ([]Server, error) {
	return []Server{{ID: "lamp", Kind: fleet.DeviceESP32, Name: "Lamp"}}, nil
}

// A core has the service, and the edges' connections to it.
type coreOfTest struct {
	*Service
	t       *testing.T
	revoked chan struct{}

	mu    sync.Mutex
	conns []net.Conn
}

func newCore(t *testing.T) *coreOfTest {
	c := &coreOfTest{t: t, revoked: make(chan struct{})}
	c.Service = New(Options{Servers: echoServers{}, Events: new(fleet.Events),
		Text: func(err error) string { return err.Error() },
		Authenticate: func(_ context.Context, token string) (fleet.Principal, error) {
			switch token {
			case "good":
				return fleet.Principal{Kind: fleet.KindProgram, ID: "7"}, nil
			case "away":
				return fleet.Principal{}, fleet.ErrUnavailable
			}
			return fleet.Principal{}, fleet.ErrForbidden
		},
		Follow: func(ctx context.Context, _ fleet.Principal) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			go func() {
				select {
				case <-c.revoked:
					cancel(fleet.ErrActorGone)
				case <-ctx.Done():
				}
			}()
			return ctx, func() { cancel(nil) }
		}})
	return c
}

// dial returns the edge's end of a connection over TCP.
func (c *coreOfTest) dial(context.Context) (io.ReadWriteCloser, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		return nil, err
	}
	far, err := ln.Accept()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.conns = append(c.conns, far)
	c.mu.Unlock()
	served := make(chan struct{})
	go func() { defer close(served); c.Serve(far) }()
	c.t.Cleanup(func() { far.Close(); <-served })
	return conn, nil
}

// deviceLink is what the agent receives.
type agentLink struct {
	mu   sync.Mutex
	got  []edge.AgentMessage
	ends []edge.AgentEnd
}

func (l *agentLink) Publish(m edge.AgentMessage) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got = append(l.got, m)
	return nil
}

func (l *agentLink) End(why edge.AgentEnd) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ends = append(l.ends, why)
}

// awaits waits for a message to the topic that has the text.
func (l *agentLink) awaits(t *testing.T, topic, text string) {
	t.Helper()
	fleettest.Eventually(t, text+" to "+topic, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, m := range l.got {
			if strings.HasPrefix(m.Topic, topic) && strings.Contains(string(m.Payload), text) {
				return true
			}
		}
		return false
	})
}

func (l *agentLink) awaitsEnd(t *testing.T, want edge.AgentEnd) {
	t.Helper()
	fleettest.Eventually(t, fmt.Sprintf("the end %#x", byte(want)), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.ends) == 1 && l.ends[0] == want
	})
}

func (c *coreOfTest) connected() int { return len(c.Service.connected()) }

const initializeLamp = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"hello":"lamp"}}`

// An agent at an edge has what it would have in one process.
func TestRemoteAgent(t *testing.T) {
	c := newCore(t)
	r := NewRemote(c.dial)
	for token, want := range map[string]error{"wrong": fleet.ErrForbidden, "away": fleet.ErrUnavailable} {
		if _, err := r.Admit(edge.AgentConnect{ClientID: "a", Token: token, RemoteAddr: "192.0.2.1"}); !errors.Is(err, want) {
			t.Errorf("token %s: %v", token, err)
		}
	}
	begin := func(max uint32) (edge.Agent, *agentLink) {
		t.Helper()
		a, err := r.Admit(edge.AgentConnect{ClientID: "a", Token: "good", RemoteAddr: "192.0.2.1", MaxPacket: max})
		if err != nil {
			t.Fatal(err)
		}
		l := &agentLink{}
		a.Connected(l)
		return a, l
	}
	a, l := begin(300)
	if a.Principal() != "program-7" {
		t.Errorf("principal %s", a.Principal())
	}
	if a.MayPublish("device/x") || !a.MayPublish("$mcp-server/lamp/x") || a.MaySubscribe("device/#") {
		t.Error("an agent may use topics of devices, or not its own")
	}
	for i := range maxFilters {
		filter := fmt.Sprintf("$mcp-server/presence/%d/#", i)
		if !a.MaySubscribe(filter) {
			t.Errorf("filter %d is refused", i)
		}
		a.Subscribed(filter)
	}
	if a.MaySubscribe("$mcp-server/presence/lamp/#") {
		t.Error("one filter too many")
	}
	a.Unsubscribed("$mcp-server/presence/0/#")
	a.Subscribed("$mcp-server/presence/lamp/#")
	l.awaits(t, "$mcp-server/presence/lamp/esp32", "Lamp")
	a.Received("$mcp-server/lamp/esp32", []byte(initializeLamp), "")
	l.awaits(t, "$mcp-rpc/a/lamp/esp32", "hello")
	large := fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"x","params":{"text":%q}}`, strings.Repeat("x", 300))
	a.Received("$mcp-rpc/a/lamp/esp32", []byte(large), "")
	l.awaits(t, "$mcp-rpc/a/lamp/esp32", "Maximum Packet Size")
	if c.connected() != 1 {
		t.Errorf("%d agents", c.connected())
	}
	a.Disconnected()
	fleettest.Eventually(t, "the core to forget it", func() bool { return c.connected() == 0 })

	_, l = begin(0)
	c.mu.Lock()
	c.conns[len(c.conns)-1].Close() // the core dies
	c.mu.Unlock()
	l.awaitsEnd(t, edge.AgentCoreGone)

	_, l = begin(0)
	fleettest.Eventually(t, "the core to serve it", func() bool { return c.connected() == 1 })
	close(c.revoked)
	l.awaitsEnd(t, edge.AgentRevoked)
	fleettest.Eventually(t, "the core to forget it", func() bool { return c.connected() == 0 })
}

// The limits are those of all edges.
func TestRemoteAgentLimit(t *testing.T) {
	c := newCore(t)
	edges := []*Remote{NewRemote(c.dial), NewRemote(c.dial)}
	for i := range maxByToken {
		a, err := edges[i%2].Admit(edge.AgentConnect{ClientID: fmt.Sprint(i), Token: "good"})
		if err != nil {
			t.Fatal(err)
		}
		a.Connected(&agentLink{})
		fleettest.Eventually(t, "the core to count it", func() bool { return c.connected() == i+1 })
	}
	if _, err := edges[0].Admit(edge.AgentConnect{ClientID: "x", Token: "good"}); !errors.Is(err, fleet.ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
}

// What a hostile edge sends has no effect.
func TestHostileFrames(t *testing.T) {
	c := newCore(t)
	for name, text := range map[string]string{
		"nothing": "", "half a length": "\x00\x00", "huge": "\xff\xff\xff\xff{}", "garbage": "\x00\x00\x00\x02{]",
		"no connect": "\x00\x00\x00\x02{}",
	} {
		conn, err := c.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, text)
		_ = conn.(*net.TCPConn).CloseWrite()
		_ = conn.(*net.TCPConn).SetReadDeadline(time.Now().Add(10 * time.Second))
		if answer, err := io.ReadAll(conn); err != nil || len(answer) > 0 {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
		conn.Close()
	}
	conn, err := c.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f := newFrames(conn)
	defer conn.Close()
	if err := f.write(frame{Connect: &edge.AgentConnect{ClientID: "a", Token: "good"}}); err != nil {
		t.Fatal(err)
	}
	if m, err := f.read(); err != nil || m.Admitted == nil || m.Admitted.Refused != "" {
		t.Fatalf("%+v, %v", m, err)
	}
	for i := range 2 * maxFilters {
		_ = f.write(frame{Subscribed: fmt.Sprintf("$mcp-server/presence/lamp/%d", i)})
	}
	_ = f.write(frame{Subscribed: "device/#"})
	_ = f.write(frame{Connect: &edge.AgentConnect{ClientID: "b", Token: "wrong"}})
	_ = f.write(frame{Received: &received{Topic: "device/x", Payload: []byte(initializeLamp)}})
	_ = f.write(frame{Received: &received{Topic: "$mcp-server/lamp/esp32", Payload: []byte(initializeLamp)}})
	m, err := f.read()
	if err != nil || m.Publish == nil || !json.Valid(m.Publish.Payload) || m.Publish.Topic != "$mcp-rpc/a/lamp/esp32" {
		t.Errorf("%+v, %v", m, err)
	}
	for _, cl := range c.Service.connected() {
		cl.mu.Lock()
		if n := len(cl.filters); n != maxFilters {
			t.Errorf("%d filters", n)
		}
		cl.mu.Unlock()
	}
}
