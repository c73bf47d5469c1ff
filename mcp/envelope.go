package mcp

import (
	"encoding/json"
	"fmt"

	"fleetd/internal/jsonscan"
)

const (
	maxEnvelope = 512 << 10 // longest uplink that ParseEnvelope parses
	maxType     = 32        // Envelope.Type; stock types have up to 7 bytes
	maxSession  = 128       // Envelope.SessionID
)

// TypeMCP is the [Envelope.Type] whose payload goes to [Session.Receive].
const TypeMCP = "mcp"

// An Envelope is the outer object of each message that a device exchanges with
// its server.
type Envelope struct {
	Type      string // "mcp", "hello", "goodbye", "listen", "abort", …; empty if the device sent no string
	SessionID string // of the audio channel, often empty or stale: never route by it

	// Payload is the value of "payload" within the parsed bytes, nil without
	// that member. It is valid JSON of any kind.
	Payload json.RawMessage
}

// ParseEnvelope reads one uplink in one pass without decoding the payload.
// Payload aliases raw. The error wraps [ErrMalformed] if raw is not a JSON
// object, or [ErrTooLarge] above 512 KiB. Healthy stock firmware also sends
// invalid JSON: see [Session.ReceiveBroken].
func ParseEnvelope(raw []byte) (Envelope, error) {
	if len(raw) > maxEnvelope {
		return Envelope{}, fmt.Errorf("uplink of %d bytes: %w", len(raw), ErrTooLarge)
	}
	var e Envelope
	err := jsonscan.Members(raw, func(key, value []byte) error {
		switch string(key) {
		case "type":
			e.Type = envelopeType(value)
		case "session_id":
			if e.SessionID = ""; jsonscan.IsString(value) {
				e.SessionID = cleanLine(value, maxSession)
			}
		case "payload":
			e.Payload = value
		}
		return nil
	})
	if err != nil {
		return Envelope{}, fmt.Errorf("uplink: %w: %w", ErrMalformed, err)
	}
	return e, nil
}

func envelopeType(value []byte) string {
	switch {
	case string(value) == `"mcp"`: // saves the hot path a copy
		return TypeMCP
	case jsonscan.IsString(value):
		return cleanLine(value, maxType)
	}
	return ""
}

// A Scope states on whose behalf a message is sent. It is a member of the
// envelope, next to the payload. Firmware that guards its user-only tools reads
// it; stock firmware ignores it.
type Scope string

const (
	ScopeNone     Scope = ""         // a language model, or unspecified
	ScopeOperator Scope = "operator" // a person, or a program that a person runs
)

// AppendEnvelope appends the downlink that carries payload, one bare JSON-RPC
// message, to a device.
func AppendEnvelope(dst, payload []byte, scope Scope) []byte {
	dst = append(dst, `{"type":"mcp",`...)
	if scope != ScopeNone {
		dst = append(append(append(dst, `"scope":"`...), scope...), `",`...)
	}
	dst = append(dst, `"payload":`...)
	return append(append(dst, payload...), '}')
}
