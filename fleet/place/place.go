// Package place arranges the devices of the fleet in places: a tag such as site-1/room-2 is the place room-2 within
// site-1, and a tag without a slash is a place, too.
//
// A device lies in the places of its tags and in all places above them, so the devices of a place are those that
// [Path.Query] selects. Places exist as long as devices have their tags: nothing else is stored.
//
// It reads figures from a [Store], which leaves out the devices that do not exist for the principal of the context, and
// open alerts from their service. It has no goroutines and no locks.
package place

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
)

// Max is the largest number of places in an answer. Of more, those of the upper levels with the most devices are in it.
const Max = 1000

// A Path names a place: segments separated by slashes. No segment is empty, "." or "..", because addresses of pages
// cannot have them.
type Path string

// Parse returns the path of a place. A path that no tag can have is unknown, like one that no device has.
func Parse(text string) (Path, error) {
	tags, err := fleet.CleanTags([]string{text})
	if err != nil || len(tags) != 1 || tags[0] != text {
		return "", Unknown(text)
	}
	for segment := range strings.SplitSeq(text, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return "", Unknown(text)
		}
	}
	return Path(text), nil
}

// Unknown returns the error for a place without devices.
func Unknown(text string) error {
	return fleet.Refuse(fleet.ErrNotFound, "unknown_place", "path", fleet.CleanText(text, 80)).At("path")
}

// Query returns the query of the devices of the place: those with its tag, or with a tag below it.
func (p Path) Query() string { return "tag:" + string(p) + "," + string(p) + "/*" }

// Name returns the last segment.
func (p Path) Name() string { return string(p[strings.LastIndexByte(string(p), '/')+1:]) }

// Above returns the place that the place lies in; "" for a place of the first level.
func (p Path) Above() Path { return p[:max(0, strings.LastIndexByte(string(p), '/'))] }

// Ancestors returns the places above, from the first level down.
func (p Path) Ancestors() (all []Path) {
	for i, r := range p {
		if r == '/' {
			all = append(all, p[:i])
		}
	}
	return all
}

// within reports whether the place is the other one or lies below it.
func (p Path) within(other Path) bool {
	return p == other || strings.HasPrefix(string(p), string(other)+"/")
}

// A Place is a place with the figures of its devices in service, including those of all places below.
type Place struct {
	Path    Path
	Devices int
	Joined  int // were ever online, without those that are offline because they connect only for conversations
	Online  int // of Joined
	Crashed int // restarted after a crash in the last day

	Versions  int    // number of versions that run
	Version   string // the most common of them; "" if no device has reported one
	OnVersion int    // devices that run it
	Reporting int    // devices that have reported a version

	Alerts    []uuid.UUID // that have not ended and concern a device, the worst first
	Campaigns []uuid.UUID // under way that have a device as their target, oldest first
}

// An Alert is an alert that has not ended, with the devices that it concerns.
type Alert struct {
	ID       uuid.UUID
	Campaign uuid.UUID // that it is about; zero for none
	Query    string    // selects the devices; "" if IDs has them
	IDs      []fleet.DeviceID
}

// A Filter selects places.
type Filter struct {
	Within Path    // the place and all below it; "" for all
	Alerts []Alert // that exist for the principal
	Limit  int
}

// A Store reads figures of places. It leaves out the devices that do not exist for the principal of the context.
type Store interface {
	// Places returns places by level, those with the most devices first, and at most one more than the limit.
	Places(ctx context.Context, f Filter) ([]Place, error)
}

// Alerts are the alerts that have not ended.
type Alerts interface {
	// Current lists those that exist for the principal, the worst first.
	Current(by fleet.Principal) []alert.Alert
	Devices(a alert.Alert) alert.Devices
}

// A Service answers questions about places.
type Service struct {
	store  Store
	alerts Alerts
}

// New returns a service.
func New(store Store, alerts Alerts) *Service { return &Service{store, alerts} }

// A Tree has places in the order of their paths, each after the one above it.
type Tree struct {
	Places []Place
	More   bool // there are more than [Max]
}

// All returns all places.
func (s *Service) All(ctx context.Context, by fleet.Principal) (Tree, error) {
	return s.tree(ctx, by, "")
}

// Within returns a place, as the first, and those below it, or [fleet.ErrNotFound].
func (s *Service) Within(ctx context.Context, by fleet.Principal, path string) (Tree, error) {
	p, err := Parse(path)
	if err != nil {
		return Tree{}, err
	}
	t, err := s.tree(ctx, by, p)
	if err == nil && (len(t.Places) == 0 || t.Places[0].Path != p) {
		err = Unknown(path)
	}
	return t, err
}

func (s *Service) tree(ctx context.Context, by fleet.Principal, within Path) (Tree, error) {
	var alerts []Alert
	for _, a := range s.alerts.Current(by) {
		of := s.alerts.Devices(a)
		one := Alert{ID: a.ID, Query: of.Query, IDs: of.IDs}
		if a.Kind == alert.CampaignStopped || a.Kind == alert.CampaignStuck {
			one.Campaign, _ = uuid.Parse(a.Subject)
		}
		alerts = append(alerts, one)
	}
	found, err := s.store.Places(ctx, Filter{Within: within, Alerts: alerts, Limit: Max})
	if err != nil {
		return Tree{}, err
	}
	return grow(found, alerts, Max), nil
}

// grow orders places by path, at most limit of them, and adds the alerts about campaigns. Places above those that are
// kept are kept, too: they are on a higher level.
func grow(found []Place, alerts []Alert, limit int) Tree {
	t := Tree{Places: found, More: len(found) > limit}
	t.Places = t.Places[:min(limit, len(found))]
	slices.SortFunc(t.Places, func(a, b Place) int { return a.Path.compare(b.Path) })
	for i := range t.Places {
		p := &t.Places[i]
		var all []uuid.UUID
		for _, a := range alerts {
			if slices.Contains(p.Alerts, a.ID) || a.Campaign != uuid.Nil && slices.Contains(p.Campaigns, a.Campaign) {
				all = append(all, a.ID)
			}
		}
		p.Alerts = all
	}
	return t
}

// compare orders paths segment by segment, so that what lies below a place follows it.
func (p Path) compare(q Path) int {
	return slices.CompareFunc(strings.Split(string(p), "/"), strings.Split(string(q), "/"), compareNames)
}

// compareNames orders names as people do: desk-2 comes before desk-11.
func compareNames(a, b string) int {
	for x, y := a, b; ; {
		i, j := strings.IndexFunc(x, isDigit), strings.IndexFunc(y, isDigit)
		if i < 0 || i != j || x[:i] != y[:j] {
			return cmp.Or(strings.Compare(x, y), strings.Compare(a, b))
		}
		var n, m string
		n, x = number(x[i:])
		m, y = number(y[j:])
		if c := cmp.Or(len(n)-len(m), strings.Compare(n, m)); c != 0 {
			return c
		}
	}
}

// number cuts the leading digits from s, and leaves out zeros before them.
func number(s string) (digits, rest string) {
	rest = strings.TrimLeftFunc(s, isDigit)
	return strings.TrimLeft(s[:len(s)-len(rest)], "0"), rest
}

func isDigit(r rune) bool { return '0' <= r && r <= '9' }

// A Node is a place with those directly below it.
type Node struct {
	Place
	Below []*Node
}

// Nodes returns the places of the upmost level as the roots of trees. A place without its parent is a root.
func (t Tree) Nodes() (roots []*Node) {
	var open []*Node // the path to the latest place
	for _, p := range t.Places {
		n := &Node{Place: p}
		for len(open) > 0 && !p.Path.within(open[len(open)-1].Path) {
			open = open[:len(open)-1]
		}
		if len(open) == 0 {
			roots = append(roots, n)
		} else {
			above := open[len(open)-1]
			above.Below = append(above.Below, n)
		}
		open = append(open, n)
	}
	return roots
}
