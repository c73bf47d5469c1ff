package cluster

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"fleetd/fleet"
)

const ticketSize = 16

// A ticket proves to a later core that an earlier one admitted a connection at this edge. Without it,
// an edge could announce connections of devices whose credentials it has never seen.
func ticket(key []byte, edge string, f fleet.Connection) []byte {
	mac := hmac.New(sha256.New, key)
	var text []byte
	for _, part := range []string{"connection", edge, string(f.Device), f.ClientID} {
		text = appendField(text, part)
	}
	mac.Write(binary.BigEndian.AppendUint64(text, uint64(f.Epoch)))
	return mac.Sum(nil)[:ticketSize]
}

// An admission is the body of frameAdmitted.
type admission struct {
	Facts  fleet.Connection `json:"facts"`
	Ticket []byte           `json:"ticket"`
}
