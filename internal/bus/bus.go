// Package bus connects the nodes of a cluster: cores and edges. It issues the
// certificates of a cluster, runs the NATS server that is embedded in each
// core, and opens connections to it or to an existing NATS cluster.
//
// The bus carries messages between nodes that are connected now. It stores
// nothing, repeats nothing and knows no message: package broker/cluster gives
// messages their meaning. Publishing while disconnected fails at once, and a
// frozen peer is noticed within 5 seconds.
//
// Every connection to an embedded server uses TLS 1.3 with certificates of the
// cluster's CA on both sides. The certificate states name and role of its node,
// and the server derives from them what the node may publish and subscribe to:
// an edge can neither read the messages of another edge nor write those of a
// core. An existing NATS cluster enforces only its own permissions; there, the
// cluster's id keeps clusters apart.
//
// An [Identity], a [Server] and a connection are safe for concurrent use. A
// Server and a connection have goroutines until they are closed.
package bus

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A Role is what a node does. Its certificate states it.
type Role string

// The roles of nodes.
const (
	Core Role = "core" // decides; one leads, others stand by
	Edge Role = "edge" // holds the connections of devices
)

func (r Role) valid() bool { return r == Core || r == Edge }

// A Node is one process of the cluster, as its certificate states it.
type Node struct {
	Name string
	Role Role
}

var (
	nodeName  = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
	clusterID = regexp.MustCompile(`^[0-9a-f]{16}$`)
)

// CheckName returns an error unless name can be the name of a node.
func CheckName(name string) error {
	if !nodeName.MatchString(name) {
		return fmt.Errorf("%q is not a node name: use 1 to 63 of the characters a-z, 0-9 and -", name)
	}
	return nil
}

// A Cluster is the id of a cluster: 16 random hexadecimal digits. Its methods
// return the subjects of the cluster's messages.
type Cluster string

// Term is where the leader publishes its beat.
func (c Cluster) Term() string { return c.subject("term") }

// Edges is where a core publishes to all edges.
func (c Cluster) Edges() string { return c.subject("edges") }

// Node is where the named node publishes its beat.
func (c Cluster) Node(name string) string { return c.subject("node", name) }

// Nodes matches the beats of all nodes; [Sender] returns the node of one.
func (c Cluster) Nodes() string { return c.subject("node", "*") }

// Up is where the named edge publishes to the leader of a term.
func (c Cluster) Up(term int, name string) string { return c.subject("up", strconv.Itoa(term), name) }

// UpAll matches what all edges publish to the leader of a term; [Sender]
// returns the edge.
func (c Cluster) UpAll(term int) string { return c.subject("up", strconv.Itoa(term), "*") }

// Down is where a core publishes to the named edge.
func (c Cluster) Down(name string) string { return c.subject("down", name) }

// Sender returns the node that published on a subject of Node or Up. The
// embedded server lets edges use only their own.
func Sender(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

// all matches every subject of the cluster.
func (c Cluster) all() string { return c.subject(">") }

// inbox is the prefix of the subjects on which the named core receives replies.
func (c Cluster) inbox(name string) string { return c.subject("inbox", name) }

func (c Cluster) subject(parts ...string) string {
	return "fleetd." + string(c) + "." + strings.Join(parts, ".")
}

// A connection is dead when maxPings pings in a row have no answer and the next
// one is due. Both sides ping, so each notices a frozen peer after 2.5 to 4
// seconds, and a pause of less than 2.5 seconds never ends a connection.
const (
	pingInterval = 1250 * time.Millisecond
	maxPings     = 2
)

// writeTimeout bounds how long a write waits for a peer that does not read.
const writeTimeout = 4 * time.Second
