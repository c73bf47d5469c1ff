package server

import (
	"fmt"
	"time"

	"fleetd/internal/bus"
)

// ClusterCommand works on the files of a cluster. It needs no server.
type ClusterCommand struct {
	Init clusterInit `cmd:"" help:"Create a cluster: a directory with its CA and its id."`
	Cert clusterCert `cmd:"" help:"Issue the certificate of a node, or renew it."`
}

type clusterInit struct {
	Dir string `arg:"" help:"Directory of the cluster; created if it does not exist. Keep it off the nodes: whoever has it can add nodes." type:"path"`
}

func (c *clusterInit) Run() error {
	id, err := bus.Init(c.Dir)
	if err != nil {
		return err
	}
	fmt.Printf("%s: cluster %s; keep this directory offline, and a backup of it\n\n", c.Dir, id)
	fmt.Printf("Next, for each node:  fleetd cluster cert --dir %s NAME --role core|edge\n", c.Dir)
	return nil
}

type clusterCert struct {
	Name string   `arg:"" help:"Name of the node: 1 to 63 of the characters a-z, 0-9 and -. It must be unique in the cluster."`
	Dir  string   `help:"Directory of the cluster, as created by fleetd cluster init." required:"" placeholder:"DIR" type:"path"`
	Role string   `help:"What the node does: core or edge." required:"" enum:"core,edge" placeholder:"core|edge"`
	Out  string   `help:"Directory of the node. Default: a directory with the node's name in the cluster's. If it has a certificate of the same node, this is replaced." placeholder:"DIR" type:"path"`
	Host []string `help:"Further host names and IP addresses for the certificate. Nodes do not need them." placeholder:"NAME,..."`
	Days int      `help:"Days for which the certificate is valid." default:"365"`
}

// Validate makes wrong arguments a mistake of usage.
func (c *clusterCert) Validate() error {
	if c.Days < 1 {
		return fmt.Errorf("--days must be 1 or more, but is %d", c.Days)
	}
	return bus.CheckName(c.Name)
}

func (c *clusterCert) Run() error {
	order := bus.Order{Name: c.Name, Role: bus.Role(c.Role), Hosts: c.Host, Days: c.Days, Out: c.Out}
	out, expires, err := bus.Issue(c.Dir, order)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s %s, valid until %s; copy this directory to the node and keep it private\n", out, c.Role, c.Name,
		expires.Format(time.DateOnly))
	return nil
}
