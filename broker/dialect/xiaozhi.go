package dialect

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"

	"fleetd/fleet"
	"fleetd/mcp"
)

// xiaozhi is the common part of stock firmware's dialects over MQTT and over WebSockets: each
// message is a JSON object with a type, and MCP is one of the types.
type xiaozhi struct{}

// Decode implements [Dialect].
func (xiaozhi) Decode(_ string, payload []byte, _ []Property) (Message, error) {
	e, err := mcp.ParseEnvelope(payload)
	if err != nil {
		return Message{}, err
	}
	switch e.Type {
	case mcp.TypeMCP:
		if e.Payload == nil {
			return Message{}, nil
		}
		return Message{Kind: RPC, Payload: e.Payload}, nil
	case "hello":
		return Message{Kind: Hello, Payload: payload, Greeting: greetingOf(payload)}, nil
	case "goodbye":
		return Message{Kind: Goodbye, Payload: payload, Type: e.Type, Session: e.SessionID}, nil
	}
	return Message{Kind: Text, Payload: payload, Type: e.Type, Session: e.SessionID}, nil
}

// greetingOf parses a hello. An error in one part does not affect the other.
func greetingOf(hello []byte) (g Greeting) {
	var tools struct {
		Features struct {
			MCP bool `json:"mcp"`
		} `json:"features"`
	}
	g.MCP = json.Unmarshal(hello, &tools) == nil && tools.Features.MCP
	var audio struct {
		Version json.Number `json:"version"`
	}
	if json.Unmarshal(hello, &audio) == nil && audio.Version != "" {
		n, _ := audio.Version.Int64()
		if g.AudioVersion = int(n); n < 1 || n > 3 {
			g.AudioVersion = 1 // raw frames, as for a device that names no version
		}
	}
	return g
}

// Follow implements [Dialect].
func (xiaozhi) Follow(Dialect) {}

// State implements [Dialect].
func (xiaozhi) State() []byte { return nil }

// Restore implements [Dialect].
func (xiaozhi) Restore([]byte) {}

// Listed implements [Dialect].
func (xiaozhi) Listed(tools []mcp.Tool) []mcp.Tool { return tools }

// Wrap implements [Dialect].
func (xiaozhi) Wrap(dst, msg []byte, scope mcp.Scope) []byte {
	return mcp.AppendEnvelope(dst, msg, scope)
}

// Call implements [Dialect].
func (xiaozhi) Call(inv fleet.Invocation) (mcp.CallToolParams, error) {
	p := mcp.CallToolParams{Name: inv.Tool, Arguments: inv.Arguments}
	if inv.ForOperator {
		p.Scope = mcp.ScopeOperator
	}
	return p, nil
}

// A serverHello opens an audio channel.
type serverHello struct {
	Type        string      `json:"type"`
	Version     int         `json:"version,omitempty"`
	Transport   string      `json:"transport"`
	SessionID   string      `json:"session_id"`
	AudioParams audioParams `json:"audio_params"`
	UDP         *udpChannel `json:"udp,omitempty"` // nil over a WebSocket
}

type audioParams struct {
	Format        string `json:"format"`
	SampleRate    int    `json:"sample_rate"`
	Channels      int    `json:"channels"`
	FrameDuration int    `json:"frame_duration"`
}

type udpChannel struct {
	Server     string `json:"server"`
	Port       int    `json:"port"`
	Encryption string `json:"encryption"`
	Key        string `json:"key"`
	Nonce      string `json:"nonce"`
}

func newServerHello(transport string) serverHello {
	return serverHello{Type: "hello", Transport: transport, SessionID: "s-" + hex.EncodeToString(random(8)),
		AudioParams: audioParams{Format: "opus", SampleRate: 24000, Channels: 1, FrameDuration: 60}}
}

func (h serverHello) encode() (session string, hello []byte) {
	hello, _ = json.Marshal(h) // strings and numbers: cannot fail
	return h.SessionID, hello
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}
