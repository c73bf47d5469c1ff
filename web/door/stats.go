package door

import (
	"net/http"
	"strings"
	"sync/atomic"

	"fleetd/web/device"
)

// A Kind is a kind of request, for statistics and answers.
type Kind int

// The kinds of request.
const (
	Page   Kind = iota // pages of the console, and all else
	API                // REST
	MCP                // MCP over HTTP
	Socket             // WebSockets of endpoints
	Poll               // boot polls
	Device             // other requests of devices
	Own                // of the edge itself
)

// Kinds has the name of each [Kind], as metrics show it.
var Kinds = [...]string{Page: "page", API: "api", MCP: "mcp", Socket: "socket", Poll: "poll", Device: "device", Own: "edge"}

func (k Kind) String() string { return Kinds[k] }

func kindOf(r *http.Request) Kind {
	path := r.URL.Path
	switch {
	case path == "/xiaozhi/ota" || path == "/xiaozhi/ota/":
		return Poll
	case device.Serves(path) || isSocket(path):
		return Device
	case strings.HasPrefix(path, "/api/"):
		return API
	case path == "/mcp" || strings.HasPrefix(path, "/mcp/"):
		return MCP
	case strings.HasPrefix(path, "/mcp_endpoint/"):
		return Socket
	}
	return Page
}

// Stats are the figures of one kind of request since the start.
type Stats struct {
	Passed  int64 // requests that a core answered
	Held    int64 // now: requests that wait for a leader
	Refused int64 // answered by the door: no core handled them
	Retried int64 // attempts after the first one
	Unknown int64 // answered by the door: a core may have handled them
}

type counts struct{ passed, held, refused, retried, unknown atomic.Int64 }

// Stats returns the figures of one kind of request.
func (d *Door) Stats(k Kind) Stats {
	c := &d.counts[k]
	return Stats{c.passed.Load(), c.held.Load(), c.refused.Load(), c.retried.Load(), c.unknown.Load()}
}

// Leader returns the core to which requests go; the zero Leader while they wait for one.
func (d *Door) Leader() Leader {
	d.gate.mu.Lock()
	defer d.gate.mu.Unlock()
	if d.gate.to == nil || d.gate.away {
		return Leader{}
	}
	return d.gate.to.Leader
}
