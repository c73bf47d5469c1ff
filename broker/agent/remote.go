package agent

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"fleetd/broker/dialect"
	"fleetd/broker/edge"
	"fleetd/fleet"
)

// Remote passes agents on from an edge to the core that leads. It implements [edge.Agents].
//
// The core does all that has a meaning. A core that is replaced ends the connections of agents: they
// connect again and initialize their sessions with the next one.
type Remote struct {
	dial func(ctx context.Context) (io.ReadWriteCloser, error)
}

var _ edge.Agents = (*Remote)(nil)

// NewRemote returns a Remote. dial opens a connection that [Service.Serve] serves, and may wait for a
// core. Its error matches [edge.ErrNoAgents] if the core serves no agents of edges.
func NewRemote(dial func(ctx context.Context) (io.ReadWriteCloser, error)) *Remote {
	return &Remote{dial}
}

// Admit implements [edge.Agents].
func (r *Remote) Admit(said edge.AgentConnect) (edge.Agent, error) {
	ctx, cancel := context.WithTimeout(context.Background(), admitTimeout)
	defer cancel()
	conn, err := r.dial(ctx)
	if err != nil {
		return nil, err
	}
	a := &remoteAgent{frames: newFrames(conn), filters: map[string]struct{}{}}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var answer frame
	if err = a.write(frame{Connect: &said}); err == nil {
		answer, err = a.read()
	}
	if err == nil && answer.Admitted == nil {
		err = errors.New("the core did not answer the CONNECT of an agent")
	}
	if err == nil {
		switch a.principal = answer.Admitted.Principal; answer.Admitted.Refused {
		case "":
		case refusedToken:
			err = fleet.ErrForbidden
		case refusedLimit:
			err = fleet.ErrTooMany
		default:
			err = fleet.ErrUnavailable
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	a.unused = time.AfterFunc(connectTimeout, func() { _ = conn.Close() })
	return a, nil
}

// A remoteAgent is an agent at this edge. Its methods belong to the goroutine that reads the agent's
// connection.
type remoteAgent struct {
	*frames
	principal string
	filters   map[string]struct{} // of presence
	unused    *time.Timer         // ends the connection to the core unless the agent connects
	work      sync.WaitGroup
}

// Principal implements [edge.Agent].
func (a *remoteAgent) Principal() string { return a.principal }

// MayPublish implements [edge.Agent].
func (a *remoteAgent) MayPublish(topic string) bool { return parse(topic).kind != foreign }

// MaySubscribe implements [edge.Agent].
func (a *remoteAgent) MaySubscribe(filter string) bool { return mayAdd(a.filters, filter) }

// Connected implements [edge.Agent].
func (a *remoteAgent) Connected(link edge.AgentLink) {
	a.unused.Stop()
	a.work.Go(func() {
		for {
			m, err := a.read()
			switch {
			case err != nil: // another core leads, or will
				link.End(edge.AgentCoreGone)
				return
			case m.Publish != nil:
				_ = link.Publish(*m.Publish) // if it fails, the connection has ended
			case m.End != 0:
				link.End(m.End)
				return
			}
		}
	})
}

// Subscribed implements [edge.Agent].
func (a *remoteAgent) Subscribed(filter string) {
	if strings.HasPrefix(filter, dialect.MCPPresence) {
		a.filters[filter] = struct{}{}
	}
	a.pass(frame{Subscribed: filter})
}

// Unsubscribed implements [edge.Agent].
func (a *remoteAgent) Unsubscribed(filter string) {
	delete(a.filters, filter)
	a.pass(frame{Unsubscribed: filter})
}

// Received implements [edge.Agent].
func (a *remoteAgent) Received(topic string, payload []byte, sender string) {
	a.pass(frame{Received: &received{topic, payload, sender}})
}

// pass writes to the core. If it fails, the connection ends, and with it that of the agent.
func (a *remoteAgent) pass(m frame) { _ = a.write(m) }

// Disconnected implements [edge.Agent].
func (a *remoteAgent) Disconnected() {
	_ = a.conn.Close()
	a.work.Wait()
}
