package settings

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/go-chi/chi/v5"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// clusterRoutes is the page about the nodes of the cluster. A single process has none.
func (s *Server) clusterRoutes() []pages.Route {
	const get, post, drain = http.MethodGet, http.MethodPost, ui.PathCluster + "/{node}/drain"
	return []pages.Route{
		{Method: get, Pattern: ui.PathCluster, Role: fleet.RoleViewer, Reach: access.Fleet, Page: s.showCluster},
		{Method: get, Pattern: drain, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.showDrain},
		{Method: post, Pattern: drain, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.drainNode, Confirm: true},
		{Method: post, Pattern: drain + "/cancel", Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.cancelDrain,
			Confirm: true},
	}
}

func (s *Server) showCluster(*http.Request) (pages.Answer, error) {
	if !s.InCluster {
		return pages.Answer{}, pages.ErrNoPage
	}
	return pages.Show(ui.ClusterPage{Nodes: ui.NewClusterNodes(s.Cluster.Status())}.Page())
}

// drainPage returns the page that says what draining the node in the address costs.
func (s *Server) drainPage(r *http.Request) (ui.DrainPage, error) {
	if !s.InCluster {
		return ui.DrainPage{}, pages.ErrNoPage
	}
	n, ok := s.Cluster.Status().Node(chi.URLParam(r, "node"))
	if !ok {
		return ui.DrainPage{}, pages.ErrNoPage
	}
	return ui.DrainPage{Node: n}, nil
}

func (s *Server) showDrain(r *http.Request) (pages.Answer, error) {
	page, err := s.drainPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) drainNode(r *http.Request) (pages.Answer, error) {
	page, err := s.drainPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	if _, err := s.Cluster.Drain(ctx, pages.ViewerOf(ctx).Actor(), page.Node.Name); err != nil {
		status := pages.StatusOf(err)
		if status >= http.StatusInternalServerError && status != http.StatusServiceUnavailable {
			return pages.Answer{}, err
		}
		page.Problem = pages.Explain(ctx, err)
		return pages.Answer{Status: status, Page: page.Page()}, nil
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.drain."+string(page.Node.Role), "node", page.Node.Name)})
	return pages.GoTo(ui.PathCluster)
}

func (s *Server) cancelDrain(r *http.Request) (pages.Answer, error) {
	page, err := s.drainPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	if _, err := s.Cluster.CancelDrain(ctx, pages.ViewerOf(ctx).Actor(), page.Node.Name); err != nil {
		return pages.Answer{}, err
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.drain.cancelled", "node", page.Node.Name)})
	return pages.GoTo(ui.PathCluster)
}

// A clusterView follows the nodes. No event announces what they do.
type clusterView struct {
	server *Server
	sent   ui.ClusterNodes
}

func (s *Server) newClusterView(r *http.Request) (pages.View, error) {
	if !s.InCluster || pages.ViewerOf(r.Context()).Actor().FleetRole() == "" {
		return nil, pages.ErrNoPage
	}
	return &clusterView{server: s}, nil
}

func (v *clusterView) Pace() time.Duration { return pages.PaceCounts }

func (v *clusterView) Wants(*fleet.Event) bool { return false }

func (v *clusterView) Render(context.Context, []fleet.Event) (pages.Updates, error) {
	return pages.Updates{}, nil
}

func (v *clusterView) Begin(ctx context.Context) (pages.Updates, error) { return v.Look(ctx) }

func (v *clusterView) Look(context.Context) (u pages.Updates, err error) {
	if now := ui.NewClusterNodes(v.server.Cluster.Status()); !reflect.DeepEqual(now, v.sent) {
		v.sent = now
		u.Patches = append(u.Patches, now.View())
	}
	return u, nil
}
