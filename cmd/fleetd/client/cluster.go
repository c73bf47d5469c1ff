package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
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
