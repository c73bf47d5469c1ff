package web

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"fleetd/fleet"
	"fleetd/web/ui"
)

// listURL is the address of a list with the parameters that are its own.
func listURL(r *http.Request, path string, names ...string) ui.ListURL {
	asked, kept := r.URL.Query(), url.Values{}
	for _, name := range append(names, "limit", "cursor") {
		if v := asked.Get(name); v != "" {
			kept.Set(name, v)
		}
	}
	return ui.ListURL{Path: path, Values: kept}
}

func limitOf(l ui.ListURL) int {
	n, _ := strconv.Atoi(l.Get("limit"))
	return fleet.ClampLimit(n)
}

// deviceFilter reads the list's filter from its address.
func deviceFilter(l ui.ListURL) (fleet.DeviceFilter, error) {
	q, err := fleet.ParseQuery(l.Get("q"))
	f := fleet.DeviceFilter{Query: q, Sort: fleet.SortName, Desc: l.Get("desc") != "", Limit: limitOf(l),
		Cursor: l.Get("cursor")}
	switch sort := fleet.DeviceSort(l.Get("sort")); sort {
	case fleet.SortName, fleet.SortBoard, fleet.SortVersion, fleet.SortPresence, fleet.SortLastSeen, fleet.SortCreated:
		f.Sort = sort
	}
	return f, err
}

func (s *Server) listDevices(r *http.Request) (answer, error) {
	page, err := s.devicesPage(r)
	if errorCode(err) == "invalid_cursor" { // of the list before it was sorted otherwise
		return goTo(page.List.At(""))
	}
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

func (s *Server) devicesPage(r *http.Request) (ui.DevicesPage, error) {
	ctx := r.Context()
	page := ui.DevicesPage{List: listURL(r, ui.PathDevices, "q", "sort", "desc"), CanAct: mayAct(ctx), Setup: s.setup(ctx)}
	page.Query = page.List.Get("q")
	page.CanRetire = viewerOf(ctx).actor().Role.Allows(fleet.RoleAdmin)
	summary, err := s.summary(ctx)
	if err != nil {
		return page, err
	}
	page.Fleet, page.Boards = summary.fleet, summary.boards
	if page.Saved.Filters, err = s.Filters.Filters(ctx); err != nil {
		return page, err
	}
	page.Saved.CanSave = viewerOf(ctx).actor().FleetRole().Allows(fleet.RoleOperator)
	f, err := deviceFilter(page.List)
	if err != nil {
		page.BadQuery = explain(ctx, err)
		return page, nil
	}
	found, total, err := s.pageAndCount(ctx, f, page.Fleet)
	if err != nil {
		return page, err
	}
	page.Total = total
	page.Prev, page.Next = found.Prev, found.Next
	page.Rows, err = s.deviceRows(ctx, found.Items)
	return page, err
}

// pageAndCount asks for both at once: in a fleet of 100,000 a search reads every
// device for either.
func (s *Server) pageAndCount(ctx context.Context, f fleet.DeviceFilter, all int) (found fleet.Page[fleet.Device],
	total int, err error) {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		found, err = s.Devices.Devices(ctx, f)
		return err
	})
	g.Go(func() (err error) {
		total, err = s.countDevices(ctx, f.Query, all)
		return err
	})
	return found, total, g.Wait()
}

func (s *Server) countDevices(ctx context.Context, q fleet.Query, all int) (int, error) {
	if q.Empty() {
		return all, nil
	}
	return s.Devices.CountDevices(ctx, q)
}

func (s *Server) setup(ctx context.Context) ui.Setup {
	return ui.Setup{OTAURL: s.OTAURL, Mode: string(s.EnrolmentMode), CanClaim: mayAct(ctx), CanFlash: mayKeepFirmware(ctx)}
}

// A fleetSummary is what every device list shows in addition to the list. It may
// be a moment old: at 100,000 devices it costs more than the list.
type fleetSummary struct {
	at     time.Time
	fleet  int
	boards []string
}

type summaryCache struct {
	mu   sync.Mutex
	last fleetSummary
}

const (
	summaryAge    = 2 * time.Second
	summaryBoards = 6
)

func (s *Server) summary(ctx context.Context) (fleetSummary, error) {
	if _, narrow := fleet.ScopeOf(ctx); narrow {
		return s.countFleet(ctx) // of this viewer's devices only
	}
	s.summaries.mu.Lock()
	defer s.summaries.mu.Unlock()
	if age := s.now().Sub(s.summaries.last.at); s.summaries.last.fleet > 0 && age >= 0 && age < summaryAge {
		return s.summaries.last, nil
	}
	g, err := s.countFleet(ctx)
	if err == nil {
		s.summaries.last = g
	}
	return g, err
}

func (s *Server) countFleet(ctx context.Context) (fleetSummary, error) {
	g := fleetSummary{at: s.now()}
	boards, err := s.Devices.CountBy(ctx, fleet.Query{}, "board")
	if err != nil {
		return fleetSummary{}, err
	}
	for i, b := range boards {
		g.fleet += b.Count
		if i < summaryBoards && b.Value != "" {
			g.boards = append(g.boards, b.Value)
		}
	}
	return g, nil
}
