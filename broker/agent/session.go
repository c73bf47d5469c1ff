package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/broker/dialect"
	"fleetd/broker/edge"
	"fleetd/fleet"
)

const maxAsking = 32 // requests of one session at a time

// A session is the transport of one session: its server reads what the agent published to the RPC
// topic, and what it writes is published there.
type session struct {
	c        *client
	key      key
	id       string
	topic    string // of RPC
	lists    string // topic of changed lists and resources
	direct   Session
	received chan jsonrpc.Message
	over     chan struct{}
	stopping sync.Once
	asking   atomic.Int32
}

var (
	_ mcp.Transport  = (*session)(nil)
	_ mcp.Connection = (*session)(nil)
)

func newSession(c *client, to destination) *session {
	server := to.server + "/" + to.name
	return &session{c: c, key: key{to.client, to.server, to.name}, id: "mqtt-" + rand.Text(),
		topic: dialect.MCPRPC + to.client + "/" + server, lists: dialect.MCPCapability + server,
		received: make(chan jsonrpc.Message, 8), over: make(chan struct{})}
}

// begin counts a request, and reports whether there is room for it.
func (s *session) begin() bool {
	if s.asking.Add(1) <= maxAsking {
		return true
	}
	s.asking.Add(-1)
	return false
}

// done counts the answer to a request.
func (s *session) done() { s.asking.Add(-1) }

// deliver passes a message to the server. It reports false if the session has ended.
func (s *session) deliver(m jsonrpc.Message, by fleet.Principal) bool {
	s.direct.Received(by)
	select {
	case s.received <- m:
		return true
	case <-s.over:
		return false
	}
}

// refuse answers a request in the place of the server.
func (s *session) refuse(id jsonrpc.ID, code int64, text string) {
	_ = s.send(&jsonrpc.Response{ID: id, Error: &jsonrpc.Error{Code: code, Message: text}})
}

// stop ends the session.
func (s *session) stop() {
	s.stopping.Do(func() { close(s.over) })
	if s.direct != nil {
		go s.direct.Close()
	}
}

// Connect implements [mcp.Transport].
func (s *session) Connect(context.Context) (mcp.Connection, error) { return s, nil }

// SessionID implements [mcp.Connection].
func (s *session) SessionID() string { return s.id }

// Close implements [mcp.Connection].
func (s *session) Close() error {
	s.stopping.Do(func() { close(s.over) })
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.c.sessions[s.key] == s {
		delete(s.c.sessions, s.key)
	}
	return nil
}

// Read implements [mcp.Connection].
func (s *session) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-s.received:
		return m, nil
	case <-s.over:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write implements [mcp.Connection].
func (s *session) Write(_ context.Context, m jsonrpc.Message) error {
	r, answers := m.(*jsonrpc.Response)
	if answers {
		defer s.done()
	}
	err := s.send(m)
	if errors.Is(err, edge.ErrAgentPacket) && answers {
		return s.send(&jsonrpc.Response{ID: r.ID, Error: &jsonrpc.Error{Code: codeRefused,
			Message: "the answer is longer than the Maximum Packet Size of your CONNECT"}})
	}
	return err
}

// onCapability are the notifications that belong to the capability topic.
var onCapability = map[string]bool{"notifications/tools/list_changed": true, "notifications/prompts/list_changed": true,
	"notifications/resources/list_changed": true, "notifications/resources/updated": true}

func (s *session) send(m jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	topic := s.topic
	if r, ok := m.(*jsonrpc.Request); ok && onCapability[r.Method] {
		topic = s.lists
	}
	return s.c.link.Publish(edge.AgentMessage{Topic: topic, Payload: data, ServerID: s.key.server})
}
