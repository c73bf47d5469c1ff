package cluster

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"fleetd/fleet"
)

// A Store records what operators do to nodes.
type Store interface {
	// RecordClusterAct adds an entry to the record before the act.
	RecordClusterAct(ctx context.Context, by fleet.Principal, act Act, node string) error
}

// An Act is an act of an operator on a node, as it is on record.
type Act string

// The acts.
const (
	ActDrain  Act = "cluster.drain"
	ActCancel Act = "cluster.cancel_drain"
)

// Options configures a [Service].
type Options struct {
	Store  Store
	Status func() Status // of the cluster, as the leader sees it; required
	// Drain starts or cancels the drain of an edge, which confirms by its beat. It returns false if the
	// edge is not linked to this core. Nil in a single process.
	Drain func(edge string, drain bool) bool
	// HandOver lets a core that stands by lead. It does not wait.
	HandOver func()
	Log      *slog.Logger
}

// A Service is what an operator sees of the cluster and does to it.
type Service struct{ o Options }

// NewService returns the service.
func NewService(o Options) *Service {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{o}
}

// Status returns the state of the cluster.
func (s *Service) Status() Status { return s.o.Status() }

// confirmTimeout is how long an edge may take to confirm: it sends a beat each second, and one at once.
const confirmTimeout = 5 * time.Second

// Drain drains a node and returns its state. An edge asks its devices to connect to another edge, which
// continues after Drain has returned. A core that leads hands over to one that stands by.
func (s *Service) Drain(ctx context.Context, by fleet.Principal, name string) (Node, error) {
	return s.act(ctx, by, ActDrain, name)
}

// CancelDrain cancels the drain of an edge, which accepts connections again.
func (s *Service) CancelDrain(ctx context.Context, by fleet.Principal, name string) (Node, error) {
	return s.act(ctx, by, ActCancel, name)
}

func (s *Service) act(ctx context.Context, by fleet.Principal, act Act, name string) (Node, error) {
	if err := by.May(fleet.RoleAdmin, "drain_node"); err != nil {
		return Node{}, err
	}
	status := s.o.Status()
	n, ok := status.Node(name)
	if !ok {
		return Node{}, fleet.Refuse(fleet.ErrNotFound, "unknown_node.id", "id", fleet.CleanText(name, 63))
	}
	if err := refusal(act, n, status.Nodes); err != nil {
		return Node{}, err
	}
	if err := s.o.Store.RecordClusterAct(ctx, by, act, name); err != nil {
		return Node{}, err
	}
	s.o.Log.Info("an operator acts on a node", "act", string(act), "node", name, "actor", by.Name)
	if n.Role == Core {
		s.o.HandOver()
		return n, nil
	}
	return s.drain(ctx, n, act == ActDrain)
}

// refusal returns why an act on a node is not possible.
func refusal(act Act, n Node, all []Node) error {
	switch {
	case n.Role == All:
		return fleet.Refuse(fleet.ErrConflict, "drain_single", "node", n.Name)
	case !n.Running():
		return fleet.Refuse(fleet.ErrConflict, "drain_silent", "node", n.Name)
	case n.Role == Core && n.State != Leads:
		return fleet.Refuse(fleet.ErrConflict, "drain_standby", "node", n.Name)
	case n.Role == Core && act == ActCancel:
		return fleet.Refuse(fleet.ErrConflict, "drain_no_cancel", "node", n.Name)
	case n.Role == Core && !HasStandby(all):
		return fleet.Refuse(fleet.ErrConflict, "drain_no_standby", "node", n.Name)
	case n.Role == Edge && act == ActDrain && n.Drain == nil && !hasOtherEdge(all, n.Name):
		return fleet.Refuse(fleet.ErrConflict, "drain_last_edge", "node", n.Name)
	}
	return nil
}

// hasOtherEdge reports whether devices can connect to another edge.
func hasOtherEdge(nodes []Node, name string) bool {
	return slices.ContainsFunc(nodes, func(n Node) bool {
		return n.Role == Edge && n.Name != name && n.Running() && n.State != Draining
	})
}

// drain waits until the edge has confirmed.
func (s *Service) drain(ctx context.Context, n Node, drain bool) (Node, error) {
	silent := fleet.Refuse(fleet.ErrUnavailable, "drain_unconfirmed", "node", n.Name)
	if !s.o.Drain(n.Name, drain) {
		return Node{}, silent
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if now, ok := s.o.Status().Node(n.Name); ok && (now.Drain != nil) == drain {
			return now, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return Node{}, silent
		}
	}
}

// Node returns the node with a name.
func (s Status) Node(name string) (Node, bool) {
	i := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Name == name })
	if i < 0 {
		return Node{}, false
	}
	return s.Nodes[i], true
}
