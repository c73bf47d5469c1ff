package server

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// The roles of a process.
const (
	RoleAll  = "all"  // everything in one process
	RoleCore = "core" // decides; one leads, others stand by
	RoleEdge = "edge" // holds the connections of devices and people
)

// ClusterConfig makes the process a node of a cluster. It is empty in a single process.
type ClusterConfig struct {
	// Role is what this process does. Default: all.
	Role string `help:"What this process does: everything (all), or as a node of a cluster decide (core) or hold the connections of devices and people (edge)." enum:"all,core,edge" default:"all" env:"FLEETD_ROLE"`

	// ClusterDir is the directory of the node, from fleetd cluster cert: its certificate, which has
	// its name and role.
	ClusterDir string `name:"cluster-dir" help:"Directory of this node with its certificate, from fleetd cluster cert." env:"FLEETD_CLUSTER_DIR" type:"path" placeholder:"DIR"`

	// ClusterListen is where a core's NATS server listens for nodes; the next port is for the other
	// cores. Default: :4222.
	ClusterListen string `name:"cluster-listen" help:"With --role core: address of the embedded NATS server for nodes; the next port is for the other cores." default:":4222" env:"FLEETD_CLUSTER_LISTEN" placeholder:"ADDR"`

	// ClusterRoutes are the addresses on which the other cores listen (their ClusterListen).
	ClusterRoutes []string `name:"cluster-routes" help:"With --role core: host:port of --cluster-listen of the other cores." env:"FLEETD_CLUSTER_ROUTES" placeholder:"ADDR,..."`

	// ClusterServers are the addresses of the cores' NATS servers, for an edge.
	ClusterServers []string `name:"cluster-servers" help:"With --role edge: host:port of --cluster-listen of the cores." env:"FLEETD_CLUSTER_SERVERS" placeholder:"ADDR,..."`

	// NATSURL is an existing NATS cluster, in place of the embedded servers.
	NATSURL string `name:"nats-url" help:"Existing NATS cluster to use in place of the embedded servers: nats://user:password@host:4222,..." env:"FLEETD_NATS_URL" placeholder:"URL,..."`

	// DrainTimeout is how long an edge that is stopped may take to ask its devices to connect to
	// another one. Default: 90s; 0 closes all connections at once.
	DrainTimeout time.Duration `name:"drain-timeout" help:"With --role edge: how long a stop may take to move the devices to other edges, 500 a second; those left are disconnected then. 0 disconnects all at once." default:"90s" env:"FLEETD_DRAIN_TIMEOUT" placeholder:"DURATION"`

	// InternalAddr is the address of a core's HTTP for edges, with mutual TLS. Default: :8443.
	InternalAddr string `name:"internal-addr" help:"With --role core: address of HTTP for the edges, with mutual TLS. The edges must reach its host; without a host, an address of this machine." default:":8443" env:"FLEETD_INTERNAL_ADDR" placeholder:"ADDR"`
}

func (c *Config) checkCluster() error {
	if c.Role == RoleAll {
		if c.ClusterDir != "" || len(c.ClusterRoutes)+len(c.ClusterServers) > 0 || c.NATSURL != "" {
			return errors.New("the settings of a cluster need --role core or --role edge")
		}
		return nil
	}
	if c.DrainTimeout < 0 {
		return fmt.Errorf("--drain-timeout must not be negative, but is %v", c.DrainTimeout)
	}
	if c.Role != RoleCore && c.Role != RoleEdge {
		return fmt.Errorf("unknown --role %q; use all, core or edge", c.Role)
	}
	if c.ClusterDir == "" {
		return fmt.Errorf("--role %s needs the certificate of this node: give --cluster-dir; create it with fleetd cluster cert", c.Role)
	}
	if c.Role == RoleEdge {
		switch {
		case (len(c.ClusterServers) == 0) == (c.NATSURL == ""):
			return errors.New("--role edge needs the cores: give --cluster-servers host:port, or --nats-url with an existing NATS cluster")
		case c.DatabaseURL != "":
			return errors.New("--role edge has no database; remove --database-url, whose password an edge must not have")
		case c.EventsMQTTAddr != "" || c.EventsMQTTSAddr != "":
			return errors.New("--role edge has no record: give --events-mqtt-addr and --events-mqtts-addr to the cores")
		case c.VoiceUpstream != "" || c.VoiceSecret != "":
			return errors.New("--role edge has no voice server: give --voice-upstream and its secret to the cores")
		case c.Demo > 0 || c.DemoVoice || c.DemoVirtual != "":
			return errors.New("--role edge runs no demo; remove its flags")
		}
		return nil
	}
	if c.PublicURL == "" || c.MQTTEndpoint == "" {
		return errors.New("--role core needs the addresses at which devices and people reach the edges: give --public-url and --mqtt-endpoint")
	}
	return nil
}

// announced returns the address that edges are given for a listener on an address without a host.
func announced(listen string, bound net.Addr) string {
	host, _, _ := net.SplitHostPort(listen)
	return net.JoinHostPort(reachableHost(host), portOf(bound))
}
