package agent

import (
	"errors"
	"net"
	"time"

	"fleetd/broker/edge"
	"fleetd/fleet"
)

// Serve serves an agent whose connection another process holds, an edge, until conn or the agent ends.
// The edge has a [Remote].
func (s *Service) Serve(conn net.Conn) {
	defer conn.Close()
	f := newFrames(conn)
	_ = conn.SetReadDeadline(time.Now().Add(connectTimeout)) // an error shows at the read
	first, err := f.read()
	if err != nil || first.Connect == nil {
		s.log.Debug("no agent", "from", conn.RemoteAddr(), "err", err)
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	agent, err := s.Admit(*first.Connect)
	if err != nil {
		_ = f.write(frame{Admitted: &admission{Refused: s.refusalOf(err)}}) // the edge may have gone
		return
	}
	if f.write(frame{Admitted: &admission{Principal: agent.Principal()}}) != nil {
		return
	}
	agent.Connected(&edgeLink{f, first.Connect.MaxPacket})
	defer agent.Disconnected()
	for {
		m, err := f.read()
		switch {
		case err != nil:
			return
		case m.Subscribed != "" && agent.MaySubscribe(m.Subscribed):
			agent.Subscribed(m.Subscribed)
		case m.Unsubscribed != "":
			agent.Unsubscribed(m.Unsubscribed)
		case m.Received != nil && agent.MayPublish(m.Received.Topic):
			agent.Received(m.Received.Topic, m.Received.Payload, m.Received.Sender)
		}
	}
}

func (s *Service) refusalOf(err error) refusal {
	switch {
	case errors.Is(err, fleet.ErrForbidden):
		return refusedToken
	case errors.Is(err, fleet.ErrTooMany):
		return refusedLimit
	}
	s.log.Error("agent not admitted", "err", err)
	return refusedForNow
}

// An edgeLink sends to an agent over its edge.
type edgeLink struct {
	*frames
	max uint32 // bytes of a packet that the agent accepts; 0 is no limit
}

// Publish implements [edge.AgentLink]. It returns when the message is on its way to the edge.
func (l *edgeLink) Publish(m edge.AgentMessage) error {
	if l.max > 0 && m.Size() > int(l.max) {
		return edge.ErrAgentPacket
	}
	return l.write(frame{Publish: &m})
}

// End implements [edge.AgentLink].
func (l *edgeLink) End(why edge.AgentEnd) {
	_ = l.write(frame{End: why}) // if it fails, the connection has ended
	_ = l.conn.Close()
}
