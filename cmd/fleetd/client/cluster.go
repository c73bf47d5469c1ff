package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

// ClusterStatus prints the nodes of a cluster, and which core leads.
type ClusterStatus struct{ clientFlags }

func (c *ClusterStatus) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodGet, "/cluster", nil)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var v Cluster
	if err := json.Unmarshal(answer, &v); err != nil {
		return fmt.Errorf("the server's answer is not the status of a cluster: %w", err)
	}
	rows := make([][]string, len(v.Nodes))
	for i, n := range v.Nodes {
		rows[i] = []string{n.Name, n.Role, n.State, strconv.FormatInt(n.Connections, 10), n.Version,
			n.Since.Format(time.DateTime)}
	}
	if err := terminal.Table("NAME ROLE STATE CONNECTIONS VERSION SINCE", rows); err != nil {
		return err
	}
	fmt.Printf("\n%s has led since %s (term %d, %s)\n", terminal.Printable(v.Leader), v.Since.Format(time.DateTime), v.Term,
		terminal.Printable(v.Reason))
	return nil
}

// DrainNode moves the devices of an edge to other edges, or lets another core lead.
type DrainNode struct {
	clientFlags
	Node   string `arg:"" help:"Name of the node, as fleetd cluster status shows it."`
	Cancel bool   `help:"Cancel the drain of an edge: it accepts connections again."`
	NoWait bool   `name:"no-wait" help:"Return when the drain has begun. Default: wait until all devices have left the edge, or another core leads."`
}

// Run prints the node as it is at the end.
func (c *DrainNode) Run(ctx context.Context) error {
	method := http.MethodPost
	if c.Cancel {
		method = http.MethodDelete
	}
	answer, err := c.do(ctx, method, "/cluster/nodes/"+url.PathEscape(c.Node)+"/drain", nil)
	if err != nil {
		return err
	}
	var n ClusterNode
	if err := json.Unmarshal(answer, &n); err != nil {
		return fmt.Errorf("the server's answer is not a node: %w", err)
	}
	if !c.Cancel && !c.NoWait {
		if answer, err = c.wait(ctx, n); err != nil {
			return err
		}
	}
	switch {
	case !c.human():
		return terminal.JSON(answer)
	case c.Cancel:
		fmt.Printf("%s accepts connections again\n", terminal.Printable(c.Node))
	case c.NoWait:
		fmt.Printf("the drain of %s has begun; see fleetd cluster status\n", terminal.Printable(c.Node))
	}
	return nil
}

const (
	drainLook = time.Second
	// unreachableTimeout is how long the cluster may be without a leader, or the edge that passes the
	// requests on be restarted, while a drain is followed.
	unreachableTimeout = time.Minute
)

// wait follows the drain, and returns the node as it is at the end.
func (c *DrainNode) wait(ctx context.Context, n ClusterNode) (json.RawMessage, error) {
	shown, reached, began := "", time.Now(), n.Drain != nil
	for {
		select {
		case <-time.After(drainLook):
		case <-ctx.Done():
			return nil, fmt.Errorf("stopped following; the drain of %s goes on", c.Node)
		}
		answer, err := c.do(ctx, http.MethodGet, "/cluster", nil)
		if err != nil {
			if ctx.Err() == nil && time.Since(reached) > unreachableTimeout {
				return nil, err
			}
			continue
		}
		reached = time.Now()
		var v Cluster
		if err := json.Unmarshal(answer, &v); err != nil {
			return nil, fmt.Errorf("the server's answer is not the status of a cluster: %w", err)
		}
		line, done, err := c.progress(v, began)
		if line != shown && c.human() {
			fmt.Println(line)
		}
		if shown = line; done || err != nil {
			text, _ := json.Marshal(v.node(c.Node)) // it was read from JSON
			return text, err
		}
	}
}

// progress describes the drain. began means that the node is an edge.
func (c *DrainNode) progress(v Cluster, began bool) (line string, done bool, err error) {
	n, name := v.node(c.Node), terminal.Printable(c.Node)
	switch {
	case !began && v.Leader == c.Node:
		return name + " hands over", false, nil
	case !began:
		return fmt.Sprintf("%s leads now (term %d)", terminal.Printable(v.Leader), v.Term), true, nil
	case n == nil:
		return name + " has stopped", true, nil
	case n.State == "silent" || n.State == "gone":
		return fmt.Sprintf("%s does not respond (%s)", name, n.State), n.State == "gone", nil
	case n.Drain == nil:
		return "", true, fmt.Errorf("%s is no longer being drained: the drain was cancelled, or the edge has restarted", name)
	}
	d := n.Drain
	line = fmt.Sprintf("%s: %d moved, %d remaining, since %s", name, d.Moved, d.Remaining, d.Since.Format(time.DateTime))
	return line, d.Remaining == 0, nil
}

func (v Cluster) node(name string) *ClusterNode {
	for i := range v.Nodes {
		if v.Nodes[i].Name == name {
			return &v.Nodes[i]
		}
	}
	return nil
}
