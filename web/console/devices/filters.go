package devices

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/internal/bounded"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

func (s *Server) filterRoutes() []pages.Route {
	return []pages.Route{
		{Method: http.MethodPost, Pattern: ui.PathFilters, Role: fleet.RoleOperator, Reach: access.Fleet,
			Page: s.saveFilter},
		{Method: http.MethodPost, Pattern: ui.PathFilters + "/{filter}/delete", Role: fleet.RoleOperator,
			Reach: access.Fleet, Page: s.deleteFilter},
		{Method: http.MethodPost, Pattern: ui.PathFilters + "/{filter}/rename", Role: fleet.RoleOperator,
			Reach: access.Fleet, Page: s.renameFilter},
	}
}

// saveFilter saves the query of a device list under a title.
func (s *Server) saveFilter(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	f := fleet.Filter{Name: r.PostFormValue("name"), Title: r.PostFormValue("title"), Query: r.URL.Query().Get("q")}
	saved, err := s.Filters.Create(ctx, pages.ViewerOf(ctx).Actor(), f)
	if err != nil {
		return s.refuseFilter(r, f, err)
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.saved")})
	return pages.GoTo(ui.QueryPath(saved.Query))
}

// refuseFilter shows the list with the form as typed, and why it was refused.
func (s *Server) refuseFilter(r *http.Request, typed fleet.Filter, why error) (pages.Answer, error) {
	if status := pages.StatusOf(why); status != http.StatusUnprocessableEntity && status != http.StatusConflict {
		return pages.Answer{}, why
	}
	page, err := s.devicesPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	page.Saved.Change, page.Saved.Name, page.Saved.Title = typed.ID, typed.Name, typed.Title
	page.Saved.Problem = pages.Explain(r.Context(), why)
	return pages.ShowAgain(page.Page())
}

func (s *Server) deleteFilter(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	id, err := uuid.Parse(chi.URLParam(r, "filter"))
	if err != nil {
		return pages.Answer{}, pages.ErrNoPage
	}
	if err := s.Filters.Delete(ctx, pages.ViewerOf(ctx).Actor(), id); err != nil {
		return pages.Answer{}, err
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.saved")})
	return pages.GoTo(ui.PathDevices)
}

func (s *Server) renameFilter(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	id, err := uuid.Parse(chi.URLParam(r, "filter"))
	if err != nil {
		return pages.Answer{}, pages.ErrNoPage
	}
	name, title := r.PostFormValue("name"), r.PostFormValue("title")
	f, err := s.Filters.Update(ctx, pages.ViewerOf(ctx).Actor(), id, fleet.FilterChange{Name: &name, Title: &title})
	if err != nil {
		return s.refuseFilter(r, fleet.Filter{ID: id, Name: name, Title: title}, err)
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.saved")})
	return pages.GoTo(ui.QueryPath(f.Query))
}

// Ages of the counts of saved filters. Counts may lag a moment, because many filters cost more than
// the list. After freshCounts they are counted again while the page shows the old counts; after
// keptCounts they are counted before the page is shown.
const (
	freshCounts   = 2 * time.Second
	keptCounts    = time.Minute
	countedScopes = 100 // viewers' scopes in the cache
	countTimeout  = 10 * time.Second
)

type filterCounts struct {
	mu     sync.Mutex
	scopes *bounded.Cache[string, *countedFilters] // by the text of the viewer's scope
}

type countedFilters struct {
	at       time.Time
	queries  string // the counted queries
	counts   []int
	counting bool
}

// countFilters counts the viewer's devices by filter.
func (s *Server) countFilters(ctx context.Context, filters []fleet.Filter) ([]int, error) {
	queries, key := make([]fleet.Query, 0, len(filters)), new(strings.Builder)
	for _, f := range filters {
		q, err := fleet.ParseQuery(f.Query)
		if err != nil {
			return nil, err
		}
		queries = append(queries, q)
		key.WriteString(f.Query + "\n")
	}
	scope, _ := fleet.ScopeOf(ctx)
	c := &s.filterCounts
	c.mu.Lock()
	known, ok := c.scopes.Get(scope.Text)
	age := time.Duration(0)
	if ok = ok && known.queries == key.String(); ok {
		age = s.Now().Sub(known.at)
		ok = age >= 0 && age < keptCounts
	}
	if !ok {
		c.mu.Unlock()
		return s.countNow(ctx, scope.Text, key.String(), queries)
	}
	counts, again := known.counts, age > freshCounts && !known.counting
	known.counting = known.counting || again
	c.mu.Unlock()
	if again {
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countTimeout)
			defer cancel()
			if _, err := s.countNow(ctx, scope.Text, key.String(), queries); err != nil {
				c.mu.Lock()
				known.counting = false
				c.mu.Unlock()
			}
		}()
	}
	return counts, nil
}

func (s *Server) countNow(ctx context.Context, scope, key string, queries []fleet.Query) ([]int, error) {
	counts, err := s.Devices.CountEach(ctx, queries)
	if err != nil {
		return nil, err
	}
	c := &s.filterCounts
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scopes.Add(scope, &countedFilters{at: s.Now(), queries: key, counts: counts})
	return counts, nil
}
