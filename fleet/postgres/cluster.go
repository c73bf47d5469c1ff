package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/cluster"
)

var _ cluster.Store = (*Store)(nil)

// RecordClusterAct records what an operator does to a node. The act itself changes no row.
func (s *Store) RecordClusterAct(ctx context.Context, by fleet.Principal, act cluster.Act, node string) error {
	return s.audited(ctx, by, string(act), node, nil, func(pgx.Tx) error { return nil })
}
