package console

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/go-chi/chi/v5"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/ui"
)

// clusterRoutes is the page about the nodes of the cluster. A single process has none.
func (s *Server) clusterRoutes() []route {
	const get, post, drain = http.MethodGet, http.MethodPost, ui.PathCluster + "/{node}/drain"
	return []route{
		{method: get, pattern: ui.PathCluster, role: fleet.RoleViewer, reach: access.Fleet, page: s.showCluster},
		{method: get, pattern: drain, role: fleet.RoleAdmin, reach: access.Fleet, page: s.showDrain},
		{method: post, pattern: drain, role: fleet.RoleAdmin, reach: access.Fleet, page: s.drainNode, confirm: true},
		{method: post, pattern: drain + "/cancel", role: fleet.RoleAdmin, reach: access.Fleet, page: s.cancelDrain,
			confirm: true},
	}
}

func (s *Server) showCluster(*http.Request) (answer, error) {
	if !s.InCluster {
		return answer{}, errNoPage
	}
	return show(ui.ClusterPage{Nodes: ui.NewClusterNodes(s.Cluster.Status())}.Page())
}

// drainPage returns the page that says what draining the node in the address costs.
func (s *Server) drainPage(r *http.Request) (ui.DrainPage, error) {
	if !s.InCluster {
		return ui.DrainPage{}, errNoPage
	}
	n, ok := s.Cluster.Status().Node(chi.URLParam(r, "node"))
	if !ok {
		return ui.DrainPage{}, errNoPage
	}
	return ui.DrainPage{Node: n}, nil
}

func (s *Server) showDrain(r *http.Request) (answer, error) {
	page, err := s.drainPage(r)
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

func (s *Server) drainNode(r *http.Request) (answer, error) {
	page, err := s.drainPage(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	if _, err := s.Cluster.Drain(ctx, viewerOf(ctx).actor(), page.Node.Name); err != nil {
		status := statusOf(err)
		if status >= http.StatusInternalServerError && status != http.StatusServiceUnavailable {
			return answer{}, err
		}
		page.Problem = explain(ctx, err)
		return answer{status: status, page: page.Page()}, nil
	}
	s.flash(ctx, ui.Flash{Text: text(ctx, "flash.drain."+string(page.Node.Role), "node", page.Node.Name)})
	return goTo(ui.PathCluster)
}

func (s *Server) cancelDrain(r *http.Request) (answer, error) {
	page, err := s.drainPage(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	if _, err := s.Cluster.CancelDrain(ctx, viewerOf(ctx).actor(), page.Node.Name); err != nil {
		return answer{}, err
	}
	s.flash(ctx, ui.Flash{Text: text(ctx, "flash.drain.cancelled", "node", page.Node.Name)})
	return goTo(ui.PathCluster)
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
	if now := ui.NewClusterNodes(v.server.Cluster.Status()); !reflect.DeepEqual(now, v.sent) {
		v.sent = now
		u.patches = append(u.patches, now.View())
	}
	return u, nil
}
