package server

import (
	"context"
	"errors"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/broker/agent"
	"fleetd/broker/edge"
	"fleetd/fleet"
	"fleetd/mcp/gateway"
	"fleetd/web/door"
	"fleetd/web/i18n"
)

// openAgents makes what serves MCP clients that connect to the edge. The gateway must be open.
func (s *Server) openAgents() {
	s.agents = agent.New(agent.Options{Authenticate: s.Operators.Authenticate, Follow: s.authority.Follow,
		Servers: agentServers{s.gateway}, Events: s.Events, Text: voiceTexts(i18n.English).Error, Log: s.log})
	s.stages.add("presence for agents", s.agents.Run)
}

// agentTunnel is the name of the tunnels in which edges pass on agents.
const agentTunnel = "agents"

// agentTunnel opens a tunnel for an agent.
func (s *EdgeServer) agentTunnel(ctx context.Context) (io.ReadWriteCloser, error) {
	conn, err := s.door.Tunnel(ctx, agentTunnel)
	if errors.Is(err, door.ErrNoTunnel) {
		return nil, edge.ErrNoAgents
	}
	return conn, err
}

// edgeAgents gives the edge access to what serves agents, which is made after it.
type edgeAgents struct{ *Server }

// Admit implements [edge.Agents].
func (a edgeAgents) Admit(said edge.AgentConnect) (edge.Agent, error) {
	return a.agents.Admit(said)
}

// agentServers are the servers of the gateway.
type agentServers struct{ *gateway.Gateway }

// Open implements [agent.Servers].
func (s agentServers) Open(ctx context.Context, by fleet.Principal, device fleet.DeviceID, t mcp.Transport) (
	agent.Session, error) {
	session, err := s.Gateway.Open(ctx, by, device, t)
	if err != nil {
		return nil, err
	}
	return session, nil
}

// Online implements [agent.Servers].
func (s agentServers) Online(ctx context.Context, by fleet.Principal, limit int) (list []agent.Server, err error) {
	online, err := s.Gateway.Online(ctx, by, limit)
	for _, d := range online {
		list = append(list, agent.Server(d))
	}
	return list, err
}
