package console

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/ui"
)

// clusterRoutes is the page about the nodes of the cluster. A single process has none.
func (s *Server) clusterRoutes() []route {
	return []route{{method: http.MethodGet, pattern: ui.PathCluster, role: fleet.RoleViewer, reach: access.Fleet,
		page: s.showCluster}}
}

func (s *Server) showCluster(*http.Request) (answer, error) {
	if !s.InCluster {
		return answer{}, errNoPage
	}
	return show(ui.ClusterPage{Nodes: ui.NewClusterNodes(s.Cluster())}.Page())
}

// A clusterView follows the nodes. No event announces what they do.
type clusterView struct {
	server *Server
	sent   ui.ClusterNodes
}

func (s *Server) newClusterView(r *http.Request) (view, error) {
	if !s.InCluster || viewerOf(r.Context()).actor().FleetRole() == "" {
		return nil, errNoPage
	}
	return &clusterView{server: s}, nil
}

func (v *clusterView) pace() time.Duration { return paceCounts }

func (v *clusterView) wants(*fleet.Event) bool { return false }

func (v *clusterView) render(context.Context, []fleet.Event) (updates, error) { return updates{}, nil }

func (v *clusterView) begin(ctx context.Context) (updates, error) { return v.look(ctx) }

func (v *clusterView) look(context.Context) (u updates, err error) {
	if now := ui.NewClusterNodes(v.server.Cluster()); !reflect.DeepEqual(now, v.sent) {
		v.sent = now
		u.patches = append(u.patches, now.View())
	}
	return u, nil
}
