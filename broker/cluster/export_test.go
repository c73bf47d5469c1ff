package cluster

import (
	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
)

// A Forger makes batches of an edge by hand.
type Forger struct {
	Edge, Term, Number uint64
	frames             []byte
}

func (g *Forger) add(k kind, conn uint64, body []byte) *Forger {
	g.frames = appendFrame(g.frames, k, conn, body)
	return g
}

// Batch returns the next batch, with the frames that were added.
func (g *Forger) Batch() []byte {
	g.Number++
	h := header{version: latestVersion, edge: g.Edge, term: g.Term, number: g.Number, round: 1, size: len(g.frames)}
	b := append(appendHeader(nil, h), g.frames...)
	g.frames = nil
	return b
}

func openOf(id fleet.DeviceID, clientID, password string, facts *fleet.Connection, ticket []byte) []byte {
	f := openFrame{Device: id, ClientID: clientID, Username: "user", Password: []byte(password), Transport: link.MQTT,
		Said: dialect.Connect{ClientID: clientID, Version: 4}, Facts: facts, Ticket: ticket}
	return f.append(nil)
}

func (g *Forger) Hello() *Forger { return g.add(frameHello, 0, encode(helloFrame{Version: "forged"})) }

func (g *Forger) Open(conn uint64, id fleet.DeviceID, clientID, password string) *Forger {
	return g.add(frameOpen, conn, openOf(id, clientID, password, nil, nil))
}

// Present announces a connection with the ticket of an edge, as a core without key signs it.
func (g *Forger) Present(conn uint64, id fleet.DeviceID, clientID string, facts fleet.Connection, edge string) *Forger {
	return g.add(framePresent, conn, openOf(id, clientID, "", &facts, ticket(nil, edge, facts)))
}

func (g *Forger) Established(conn uint64) *Forger { return g.add(frameEstablished, conn, nil) }

func (g *Forger) Receive(conn uint64, topic, payload string) *Forger {
	return g.add(frameReceive, conn, append(appendMessage(nil, topic, nil), payload...))
}

func (g *Forger) Raw(kind byte, conn uint64, body []byte) *Forger {
	return g.add(kindOf(kind), conn, body)
}

func kindOf(b byte) kind { return kind(b) }

// Version is where a batch states its format.
const Version = 0
