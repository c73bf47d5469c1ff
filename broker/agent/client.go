package agent

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"fleetd/broker/dialect"
	"fleetd/broker/edge"
	"fleetd/fleet"
)

const (
	maxSessions  = 32
	maxFilters   = 32   // of presence
	maxAnnounced = 1000 // devices
)

// codeRefused is the JSON-RPC error of a message that fleetd does not accept. Its message is a text
// for the agent.
const codeRefused = -32000

// A client is the connection of an agent. The methods of [edge.Agent] belong to the goroutine
// that reads the connection.
type client struct {
	all   *Service
	id    string // of MQTT
	token string
	by    fleet.Principal
	link  edge.AgentLink

	life context.Context
	end  context.CancelFunc
	soon chan struct{} // receives a value when the presence of servers may have changed
	work sync.WaitGroup

	mu       sync.Mutex
	sessions map[key]*session
	filters  map[string]struct{} // of presence
	fresh    []string            // filters for which nothing was announced yet
}

// A key identifies a session of a client: one initialize replaces the session of an earlier one.
type key struct{ client, server, name string }

var _ edge.Agent = (*client)(nil)

func newClient(s *Service, said edge.AgentConnect, by fleet.Principal) *client {
	c := &client{all: s, id: said.ClientID, token: said.Token, by: by, soon: make(chan struct{}, 1),
		sessions: map[key]*session{}, filters: map[string]struct{}{}}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// Principal implements [edge.Agent].
func (c *client) Principal() string { return string(c.by.Kind) + "-" + c.by.ID }

// MayPublish implements [edge.Agent].
func (c *client) MayPublish(topic string) bool { return parse(topic).kind != foreign }

// MaySubscribe implements [edge.Agent].
func (c *client) MaySubscribe(filter string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return mayAdd(c.filters, filter)
}

// mayAdd reports whether an agent with these filters of presence may subscribe with one more.
func mayAdd(filters map[string]struct{}, filter string) bool {
	_, again := filters[filter]
	room := again || len(filters) < maxFilters || !strings.HasPrefix(filter, dialect.MCPPresence)
	return room && subscribable(filter)
}

// Connected implements [edge.Agent].
func (c *client) Connected(link edge.AgentLink) {
	c.link = link
	c.all.join(c)
	c.all.log.Info("agent connected", "token", c.by.Name, "client", c.id)
	c.work.Go(c.watch)
	c.work.Go(c.announce)
}

// Disconnected implements [edge.Agent].
func (c *client) Disconnected() {
	c.end()
	c.closeSessions(func(key) bool { return true })
	c.work.Wait()
	c.all.leave(c)
	c.all.log.Info("agent disconnected", "token", c.by.Name, "client", c.id)
}

// watch ends the connection when the token no longer has the access with which it connected.
func (c *client) watch() {
	ctx, cancel := c.all.o.Follow(c.life, c.by)
	defer cancel()
	<-ctx.Done()
	switch {
	case c.life.Err() != nil:
	case errors.Is(context.Cause(ctx), fleet.ErrActorGone):
		c.link.End(edge.AgentRevoked)
	default:
		c.link.End(edge.AgentChanged)
	}
}

// Subscribed implements [edge.Agent].
func (c *client) Subscribed(filter string) {
	if !strings.HasPrefix(filter, dialect.MCPPresence) {
		return // messages of sessions are sent without a subscription
	}
	c.mu.Lock()
	c.filters[filter] = struct{}{}
	c.fresh = append(c.fresh, filter)
	c.mu.Unlock()
	c.announceSoon()
}

// Unsubscribed implements [edge.Agent].
func (c *client) Unsubscribed(filter string) {
	c.mu.Lock()
	delete(c.filters, filter)
	c.mu.Unlock()
	c.announceSoon()
}

func (c *client) announceSoon() {
	select {
	case c.soon <- struct{}{}:
	default:
	}
}

// announce publishes the presence of servers, and its changes.
func (c *client) announce() {
	announced := map[string]string{} // payload by topic
	for {
		select {
		case <-c.life.Done():
			return
		case <-c.soon:
		}
		if err := c.announceNow(announced); err != nil && c.life.Err() == nil {
			c.all.log.Warn("presence not announced to an agent", "token", c.by.Name, "client", c.id, "err", err)
			c.all.changed.Store(true) // try again
		}
	}
}

func (c *client) announceNow(announced map[string]string) error {
	c.mu.Lock()
	filters, fresh := slices.Collect(maps.Keys(c.filters)), c.fresh
	c.fresh = nil
	c.mu.Unlock()
	now, err := c.present(filters)
	if err != nil {
		c.mu.Lock()
		c.fresh = append(fresh, c.fresh...)
		c.mu.Unlock()
		return err
	}
	wanted := func(topic string, by []string) bool {
		return slices.ContainsFunc(by, func(filter string) bool { return matches(filter, topic) })
	}
	for topic := range announced {
		if _, still := now[topic]; still {
			continue
		}
		delete(announced, topic)
		if wanted(topic, filters) {
			if err := c.publish(topic, nil, false); err != nil {
				return err
			}
		}
	}
	for topic, payload := range now {
		again := wanted(topic, fresh)
		if announced[topic] == payload && !again {
			continue
		}
		announced[topic] = payload
		if err := c.publish(topic, []byte(payload), again); err != nil {
			return err
		}
	}
	return nil
}

// present returns the presence messages of the servers that match a filter, by topic.
func (c *client) present(filters []string) (map[string]string, error) {
	now := map[string]string{}
	if len(filters) == 0 {
		return now, nil
	}
	ctx, cancel := context.WithTimeout(c.life, actTimeout)
	defer cancel()
	list, err := c.all.o.Servers.Online(ctx, c.by, maxAnnounced)
	if err != nil {
		return nil, err
	}
	add := func(id, name, about string) {
		topic := dialect.MCPPresence + id + "/" + name
		if slices.ContainsFunc(filters, func(filter string) bool { return matches(filter, topic) }) {
			now[topic] = online(name, about)
		}
	}
	add(FleetServerID, FleetServerName, "All devices of the fleet that this token sees")
	for _, s := range list {
		add(string(s.ID), serverName(s), s.Name)
	}
	return now, nil
}

// online returns the presence message of a server.
func online(name, about string) string {
	type params struct {
		ServerName  string `json:"server_name"`
		Description string `json:"description,omitempty"`
	}
	data, _ := json.Marshal(struct { // strings
		Version string `json:"jsonrpc"`
		Method  string `json:"method"`
		Params  params `json:"params"`
	}{"2.0", "notifications/server/online", params{name, about}})
	return string(data)
}

func (c *client) publish(topic string, payload []byte, retain bool) error {
	id, _, _ := strings.Cut(strings.TrimPrefix(topic, dialect.MCPPresence), "/")
	return c.link.Publish(edge.AgentMessage{Topic: topic, Payload: payload, ServerID: id, Retain: retain})
}

// Received implements [edge.Agent].
func (c *client) Received(topic string, payload []byte, sender string) {
	to := parse(topic)
	switch to.kind {
	case control:
		if to.client = sender; sender == "" {
			to.client = c.id
		}
		if validClient(to.client) {
			c.initialize(to, payload)
		}
	case rpc:
		c.pass(to, payload)
	case presence:
		if !left(payload) {
			return
		}
		c.closeSessions(func(k key) bool { return k.client == to.client })
	}
}

// left reports whether a message says that its sender leaves.
func left(payload []byte) bool {
	m, err := jsonrpc.DecodeMessage(payload)
	r, ok := m.(*jsonrpc.Request)
	return len(payload) == 0 || err == nil && ok && r.Method == "notifications/disconnected"
}

// initialize opens a session, and passes the request to it.
func (c *client) initialize(to destination, payload []byte) {
	s := newSession(c, to)
	m, err := jsonrpc.DecodeMessage(payload)
	r, ok := m.(*jsonrpc.Request)
	switch {
	case err != nil:
		s.refuse(jsonrpc.ID{}, jsonrpc.CodeParseError, "this is not a JSON-RPC message")
		return
	case !ok || !r.IsCall():
		return
	case r.Method != "initialize":
		s.refuse(r.ID, jsonrpc.CodeInvalidRequest, "this topic is for initialize alone; send other requests to "+s.topic)
		return
	}
	ctx, cancel := context.WithTimeout(c.life, actTimeout)
	defer cancel()
	by, err := c.all.o.Authenticate(ctx, c.token)
	if err == nil {
		err = c.open(ctx, s, by, to)
	}
	if err != nil {
		s.refuse(r.ID, codeRefused, c.all.o.Text(err))
		return
	}
	s.begin()
	s.deliver(m, by)
}

// open opens the session in the place of an earlier one.
func (c *client) open(ctx context.Context, s *session, by fleet.Principal, to destination) (err error) {
	device := fleet.DeviceID("")
	if to.server != FleetServerID {
		if device, err = fleet.ParseDeviceID(to.server); err != nil {
			return err
		}
	}
	c.closeSessions(func(k key) bool { return k == s.key })
	c.mu.Lock()
	full := len(c.sessions) >= maxSessions
	c.mu.Unlock()
	if full {
		return fleet.Refuse(fleet.ErrTooMany, "too_many_sessions", "limit", maxSessions)
	}
	if s.direct, err = c.all.o.Servers.Open(ctx, by, device, s); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions[s.key] = s
	return nil
}

// pass passes a message to its session.
func (c *client) pass(to destination, payload []byte) {
	c.mu.Lock()
	s := c.sessions[key{to.client, to.server, to.name}]
	c.mu.Unlock()
	m, err := jsonrpc.DecodeMessage(payload)
	r, _ := m.(*jsonrpc.Request)
	asks := r != nil && r.IsCall()
	switch {
	case err != nil:
		newSession(c, to).refuse(jsonrpc.ID{}, jsonrpc.CodeParseError, "this is not a JSON-RPC message")
		return
	case s == nil && asks:
		c.noSession(to, r)
		return
	case s == nil:
		return
	case r != nil && !asks && r.Method == "notifications/disconnected":
		c.closeSessions(func(k key) bool { return k == s.key })
		return
	case asks && !s.begin():
		s.refuse(r.ID, codeRefused, c.all.o.Text(fleet.Refuse(fleet.ErrTooMany, "too_many_requests.session", "limit", maxAsking)))
		return
	}
	by := c.by
	if asks {
		ctx, cancel := context.WithTimeout(c.life, actTimeout)
		defer cancel()
		if by, err = c.all.o.Authenticate(ctx, c.token); err != nil {
			s.done()
			s.refuse(r.ID, codeRefused, c.all.o.Text(err))
			return
		}
	}
	if !s.deliver(m, by) && asks {
		c.noSession(to, r)
	}
}

func (c *client) noSession(to destination, r *jsonrpc.Request) {
	newSession(c, to).refuse(r.ID, codeRefused, "there is no session: send initialize to "+
		dialect.MCPControl+to.server+"/"+to.name)
}

func (c *client) closeSessions(which func(key) bool) {
	var ended []*session
	c.mu.Lock()
	for k, s := range c.sessions {
		if which(k) {
			ended = append(ended, s)
			delete(c.sessions, k)
		}
	}
	c.mu.Unlock()
	for _, s := range ended {
		s.stop()
	}
}
