package agent

import (
	"strings"

	"fleetd/broker/dialect"
	"fleetd/fleet"
)

// The server of the whole fleet.
const (
	FleetServerID   = "fleetd"
	FleetServerName = "fleetd"
)

const (
	maxClientID   = 128
	maxServerName = 256
)

// A topicKind is the purpose of a topic to which agents publish.
type topicKind int

const (
	foreign       topicKind = iota
	control                 // initialize
	rpc                     // all other messages of a session
	presence                // the client leaves
	clientChanged           // the client's roots changed: fleetd asks for none
)

// A destination is a topic to which agents publish, in parts.
type destination struct {
	kind                 topicKind
	client, server, name string
}

// parse returns the parts of a topic without wildcards.
func parse(topic string) destination {
	if client, ok := strings.CutPrefix(topic, dialect.MCPClientPresence); ok && validClient(client) {
		return destination{kind: presence, client: client}
	}
	if client, ok := strings.CutPrefix(topic, dialect.MCPClientCapability); ok && validClient(client) {
		return destination{kind: clientChanged, client: client}
	}
	to := destination{kind: control}
	rest, ok := strings.CutPrefix(topic, dialect.MCPControl)
	if !ok {
		if rest, ok = strings.CutPrefix(topic, dialect.MCPRPC); !ok {
			return destination{}
		}
		to.kind = rpc
		to.client, rest, _ = strings.Cut(rest, "/")
	}
	to.server, to.name, _ = strings.Cut(rest, "/")
	switch {
	case to.server == "", to.server == "presence", to.server == "capability", to.name == "" || len(to.name) > maxServerName,
		strings.ContainsAny(to.server+to.name, "+#"), to.kind == rpc && !validClient(to.client):
		return destination{}
	}
	return to
}

func validClient(id string) bool {
	return id != "" && len(id) <= maxClientID && !strings.ContainsAny(id, "/+#")
}

// subscribable reports whether an agent may subscribe with the filter. Whatever the filter, fleetd
// sends it only the messages of its sessions, and the presence of what it sees.
func subscribable(filter string) bool {
	for _, prefix := range []string{dialect.MCPPresence, dialect.MCPCapability, dialect.MCPRPC} {
		if strings.HasPrefix(filter, prefix) {
			return true
		}
	}
	return false
}

// matches reports whether a valid filter matches a topic.
func matches(filter, topic string) bool {
	for {
		f, moreFilter, deeper := strings.Cut(filter, "/")
		if f == "#" {
			return true
		}
		t, moreTopic, more := strings.Cut(topic, "/")
		if f != "+" && f != t {
			return false
		}
		switch {
		case !deeper && !more:
			return true
		case !more:
			return moreFilter == "#"
		case !deeper:
			return false
		}
		filter, topic = moreFilter, moreTopic
	}
}

// serverName returns the server-name of a device: its kind, and its board or the program's name.
func serverName(s Server) string {
	name := string(s.Kind)
	switch s.Kind {
	case fleet.DevicePlugin, fleet.DeviceEndpoint:
		_, program, _ := strings.Cut(string(s.ID), ".")
		return name + "/" + program
	case fleet.DeviceESP32:
		if board := level(s.Board); board != "" {
			return name + "/" + board
		}
	}
	return name
}

// level returns text as one level of a topic.
func level(text string) string {
	text = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-' {
			return r
		}
		return '-'
	}, text)
	return text[:min(len(text), 64)]
}
