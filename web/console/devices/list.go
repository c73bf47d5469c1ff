package devices

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// paramColumns contains the columns of a device list in its address, and noColumns means that none
// was chosen: an empty value would be treated as absent. [ui.ColumnsDefault] ends the choice.
const (
	paramColumns = "columns"
	noColumns    = "-"
)

var deviceListParams = []string{"q", "sort", "desc", "view", paramColumns}

// deviceFilter reads the list's filter from its address.
func deviceFilter(l ui.ListURL) (fleet.DeviceFilter, error) {
	q, err := fleet.ParseQuery(l.Get("q"))
	f := fleet.DeviceFilter{Query: q, Sort: fleet.SortName, Desc: l.Get("desc") != "", Limit: pages.LimitOf(l),
		Cursor: l.Get("cursor")}
	switch sort := fleet.DeviceSort(l.Get("sort")); sort {
	case fleet.SortName, fleet.SortBoard, fleet.SortVersion, fleet.SortPresence, fleet.SortLastSeen, fleet.SortCreated:
		f.Sort = sort
	}
	return f, err
}

func (s *Server) listRoutes() []pages.Route {
	return []pages.Route{{Method: http.MethodGet, Pattern: ui.PathDevices, Role: fleet.RoleViewer, Reach: access.List,
		Page: s.listDevices}}
}

func (s *Server) listDevices(r *http.Request) (pages.Answer, error) {
	if asked := r.URL.Query()[paramColumns]; len(asked) > 1 { // as a form sends its boxes
		l := pages.ListURL(r, ui.PathDevices, deviceListParams...)
		columns := ui.ReadColumns(strings.Join(asked, ","))
		return pages.Answer{Location: l.With(paramColumns, cmp.Or(columns.String(), noColumns))}, nil
	}
	page, err := s.devicesPage(r)
	if pages.ErrorCode(err) == "invalid_cursor" { // the cursor of a list with another order
		return pages.GoTo(page.List.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	a := pages.Answer{Page: page.Page()}
	if page.List.Get(paramColumns) != "" {
		a.Cookie, a.Value = cookieColumns, page.List.Get(paramColumns)
		if a.Value != ui.ColumnsDefault {
			a.Value = cmp.Or(page.Columns.String(), noColumns)
		}
	}
	return a, nil
}

// deviceColumns returns the columns in the address, or else those that the browser showed last. It
// reports whether the viewer chose them.
func deviceColumns(r *http.Request) (columns ui.Columns, chosen bool) {
	names := cmp.Or(r.URL.Query().Get(paramColumns), pages.Cookie(r, cookieColumns), ui.ColumnsDefault)
	if names == ui.ColumnsDefault {
		return ui.DefaultColumns, false
	}
	return ui.ReadColumns(names), true
}

func (s *Server) devicesPage(r *http.Request) (ui.DevicesPage, error) {
	ctx := r.Context()
	page := ui.DevicesPage{List: pages.ListURL(r, ui.PathDevices, deviceListParams...), CanAct: pages.MayAct(ctx),
		Setup: s.Setup(ctx)}
	var chosen bool
	page.Columns, chosen = deviceColumns(r)
	page.Wall = page.List.Get("view") == ui.ViewWall
	page.Query = page.List.Get("q")
	page.CanRetire = pages.ViewerOf(ctx).Actor().Role.Allows(fleet.RoleAdmin)
	summary, err := s.summary(ctx)
	if err != nil {
		return page, err
	}
	page.Fleet, page.Boards, page.Kinds = summary.fleet, summary.boards, summary.kinds
	if page.First, err = s.FirstBoard(ctx, page.Fleet, &page.Setup); err != nil || page.First {
		return page, err
	}
	if page.Saved.Filters, err = s.Filters.Filters(ctx); err != nil {
		return page, err
	}
	if page.Saved.Counts, err = s.countFilters(ctx, page.Saved.Filters); err != nil {
		return page, err
	}
	page.Saved.CanSave = pages.ViewerOf(ctx).Actor().FleetRole().Allows(fleet.RoleOperator)
	f, err := deviceFilter(page.List)
	if err != nil {
		page.BadQuery = pages.Explain(ctx, err)
		return page, nil
	}
	f.Pictured = page.Wall
	found, total, err := s.pageAndCount(ctx, f, page.Fleet)
	if err != nil {
		return page, err
	}
	page.Total = total
	page.Prev, page.Next = found.Prev, found.Next
	columns := page.Columns
	if page.Wall {
		columns = ui.Columns{"picture"}
		pictured, err := s.Devices.CountPictured(ctx, f.Query)
		if err != nil {
			return page, err
		}
		page.Unpictured = max(total-pictured, 0)
	}
	if page.Rows, err = s.deviceRows(ctx, found.Items, columns); err != nil || chosen || page.Wall {
		return page, err
	}
	page.Columns = ui.Filled(page.Rows)
	for i := range page.Rows {
		page.Rows[i].Columns = page.Columns
	}
	return page, nil
}

// pageAndCount queries both concurrently: in a fleet of 100,000 a search reads every device for
// each of them.
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

// Setup returns how a device is configured to reach this fleetd, and what the viewer may do for it.
func (s *Server) Setup(ctx context.Context) ui.Setup {
	return ui.Setup{OTAURL: s.OTAURL, NetworkOTAURL: s.NetworkOTAURL, Mode: string(s.EnrolmentMode),
		CanClaim: pages.MayAct(ctx), CanFlash: pages.MayKeepFirmware(ctx), CanCreate: pages.MayAdmin(ctx),
		Local: pages.LocalOnly(s.OTAURL)}
}

// maxFirst is the number of devices up to which the console looks whether any of them has joined.
const maxFirst = 20

// FirstBoard reports whether no device has joined, and adds the waiting ones to the setup.
func (s *Server) FirstBoard(ctx context.Context, devices int, setup *ui.Setup) (bool, error) {
	if devices > maxFirst {
		return false, nil
	}
	joined, err := s.Devices.CountDevices(ctx, joinedDevices)
	if err != nil || joined > 0 {
		return false, err
	}
	setup.Waiting, err = s.WaitingDevices(ctx)
	setup.Waiting = setup.Waiting[:min(len(setup.Waiting), maxFirst)]
	return true, err
}

// joinedDevices are devices that were let in.
var joinedDevices = func() fleet.Query {
	q, err := fleet.ParseQuery("enrolment:enrolled")
	if err != nil {
		panic(err)
	}
	return q
}()

// A fleetSummary is shown in addition to every device list. It may lag a moment: at 100,000 devices
// it costs more than the list.
type fleetSummary struct {
	at     time.Time
	fleet  int
	boards []string
	kinds  []fleet.DeviceKind
}

type summaryCache struct {
	mu   sync.Mutex
	last fleetSummary
}

const (
	summaryAge    = 2 * time.Second
	summaryBoards = 6
)

// Size counts the devices that the viewer sees. It may lag a moment.
func (s *Server) Size(ctx context.Context) (int, error) {
	all, err := s.summary(ctx)
	return all.fleet, err
}

func (s *Server) summary(ctx context.Context) (fleetSummary, error) {
	if _, narrow := fleet.ScopeOf(ctx); narrow {
		return s.countFleet(ctx) // of this viewer's devices only
	}
	s.summaries.mu.Lock()
	defer s.summaries.mu.Unlock()
	if age := s.Now().Sub(s.summaries.last.at); s.summaries.last.fleet > 0 && age >= 0 && age < summaryAge {
		return s.summaries.last, nil
	}
	g, err := s.countFleet(ctx)
	if err == nil {
		s.summaries.last = g
	}
	return g, err
}

func (s *Server) countFleet(ctx context.Context) (fleetSummary, error) {
	g := fleetSummary{at: s.Now()}
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
	kinds, err := s.Devices.CountBy(ctx, fleet.Query{}, "kind")
	if err != nil {
		return fleetSummary{}, err
	}
	for _, k := range fleet.DeviceKinds {
		if slices.ContainsFunc(kinds, func(c fleet.DeviceCount) bool { return c.Value == string(k) && c.Count > 0 }) {
			g.kinds = append(g.kinds, k)
		}
	}
	return g, nil
}

const cookieColumns = "fleetd_columns"
