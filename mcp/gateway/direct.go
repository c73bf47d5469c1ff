package gateway

import (
	"context"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
)

// A Direct is a session whose messages do not arrive in requests of HTTP: its transport is the
// caller's, who also authenticates each message.
type Direct struct {
	session *mcp.ServerSession
	slot    *slot
}

// Open opens a session of a principal with the server of a device, or of the whole fleet for "".
// The transport has an id that no other session has. The session counts against the limit of the
// principal's token, and ends with the token.
func (g *Gateway) Open(ctx context.Context, by fleet.Principal, device fleet.DeviceID, t mcp.Transport) (*Direct,
	error) {
	path := serverPath(device)
	c := &caller{token: by.ID}
	c.by.Store(&by)
	var err error
	c.server, c.only, err = g.serverFor(fleet.WithScope(ctx, by), by, path)
	if err != nil {
		return nil, err
	}
	if c.slot = g.sessions.reserve(c, "direct "+path); c.slot == nil {
		return nil, fleet.Refuse(fleet.ErrTooMany, "too_many_sessions", "limit", maxSessionsByToken)
	}
	c.slot.lasts = true
	session, err := c.server.Connect(context.WithValue(ctx, callerKey{}, c), t, nil)
	if err != nil {
		c.slot.settle()
		return nil, err
	}
	c.slot.opened(session)
	return &Direct{session: session, slot: c.slot}, nil
}

// serverPath returns the address of a device's server below /mcp.
func serverPath(id fleet.DeviceID) string {
	for kind, prefix := range programPrefixes {
		if name, ok := strings.CutPrefix(string(id), prefix); ok {
			return "/" + kind + "/" + name
		}
	}
	if id == "" {
		return ""
	}
	return "/devices/" + string(id)
}

// Received records who sent the next message, with the rights that the sender has now.
func (d *Direct) Received(by fleet.Principal) { d.slot.caller.by.Store(&by) }

// Wait returns when the session has ended.
func (d *Direct) Wait() { _ = d.session.Wait() }

// Close ends the session.
func (d *Direct) Close() { _ = d.session.Close() }

// A Served device is one whose tools have a server.
type Served struct {
	ID    fleet.DeviceID
	Kind  fleet.DeviceKind
	Name  string // chosen by a person
	Board string // written by the device
}

// Online returns the devices that the principal sees and that are connected, by id, at most limit.
func (g *Gateway) Online(ctx context.Context, by fleet.Principal, limit int) ([]Served, error) {
	ctx = fleet.WithScope(ctx, by)
	q, err := fleet.ParseQuery("presence:online,unresponsive")
	if err != nil {
		return nil, err
	}
	ids, err := g.o.Devices.DeviceIDs(ctx, q)
	if err != nil {
		return nil, err
	}
	list, err := g.o.Devices.DevicesByID(ctx, ids[:min(len(ids), limit)])
	if err != nil {
		return nil, err
	}
	served := make([]Served, 0, len(list))
	for _, d := range list {
		if by.Sees(d) {
			served = append(served, Served{d.ID, d.Kind, fleet.CleanText(d.Name, maxName), fleet.CleanText(d.Board, maxShort)})
		}
	}
	return served, nil
}
