package ui

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/place"
)

// PathPlaces is the tree of places: GET, and PATH/a/b is the place a/b.
const PathPlaces = "/places"

// PlacePath is the page of a place.
func PlacePath(p place.Path) string {
	path := PathPlaces
	for segment := range strings.SplitSeq(string(p), "/") {
		path += "/" + url.PathEscape(segment)
	}
	return path
}

// A PlacesPage is the tree of all places: GET [PathPlaces].
type PlacesPage struct{ Tree place.Tree }

// openPlaces is the number of places up to which the whole tree is open.
const openPlaces = 40

// A placeList is a list of places, each with those below it.
type placeList struct {
	nodes []*place.Node
	above place.Path // the names leave it out
	open  bool       // places below are shown
}

// lists returns the places that have others within, and all other tags.
func (v PlacesPage) lists() (sites, others placeList) {
	open := len(v.Tree.Places) <= openPlaces
	sites.open, others.open = open, open
	for _, n := range v.Tree.Nodes() {
		if n.Below == nil && n.Path.Above() == "" {
			others.nodes = append(others.nodes, n)
			continue
		}
		sites.nodes = append(sites.nodes, n)
	}
	slices.SortStableFunc(others.nodes, func(a, b *place.Node) int { return b.Devices - a.Devices })
	return sites, others
}

// below returns the list of the places below a node.
func (l placeList) below(n *place.Node) placeList { return placeList{n.Below, n.Path, l.open} }

// name returns the name of a place in the list.
func (l placeList) name(n *place.Node) string {
	if l.above == "" {
		return string(n.Path)
	}
	return strings.TrimPrefix(string(n.Path), string(l.above)+"/")
}

// A placeFigure is a figure of a place in a list, with the devices or the part of its page that it counts.
type placeFigure struct {
	class, text, title, url string
	tone                    tone
}

// figures returns the figures that are not zero. The class of each gives its column.
func placeFigures(ctx context.Context, p place.Place) (all []placeFigure) {
	list := func(term string) string { return QueryPath(strings.TrimSpace(p.Path.Query() + " " + term)) }
	add := func(n int, f placeFigure) {
		if n > 0 {
			all = append(all, f)
		}
	}
	add(p.Devices, placeFigure{class: "devices", text: t(ctx, "places.devices", "n", p.Devices), url: list("")})
	away := p.Joined - p.Online
	add(p.Joined, placeFigure{class: "online", text: t(ctx, "places.online", "share", tenths(ctx, ratio(p.Online, p.Joined))),
		url: list(Term("presence", string(fleet.PresenceOnline))), tone: shareTone(away, p.Joined)})
	add(p.Crashed, placeFigure{class: "crashed", text: t(ctx, "places.crashed", "n", p.Crashed),
		title: t(ctx, "places.crashed_title"), url: list(PlaceConcerns[0]), tone: toneWarn})
	add(len(p.Alerts), placeFigure{class: "alerts", text: t(ctx, "places.alerts", "n", len(p.Alerts)),
		url: PlacePath(p.Path) + "#alerts", tone: toneWarn})
	add(len(p.Campaigns), placeFigure{class: "campaigns", text: t(ctx, "places.campaigns", "n", len(p.Campaigns)),
		url: PlacePath(p.Path) + "#campaigns"})
	return all
}

// versionURL returns the devices of the place with its most common version.
func versionURL(p place.Place) string {
	return QueryPath(p.Path.Query() + " " + Term("version", p.Version))
}

// PlaceConcerns are queries for devices of a place that need attention, and PlacePage.Concerns their numbers.
var PlaceConcerns = []string{"crashed<1d", "safe_mode", "core_dump", "conflict", "hold"}

// A PlacePage is one place.
type PlacePage struct {
	Tree      place.Tree // the place first
	Now       PresenceNow
	Concerns  []int // in the order of [PlaceConcerns]
	Versions  []fleet.DeviceCount
	Boards    []fleet.DeviceCount
	Alerts    []AlertCard
	Campaigns []CampaignRow
	CanAct    bool
}

// Place returns the place itself.
func (v PlacePage) Place() place.Place { return v.Tree.Places[0] }

func (v PlacePage) query() string { return v.Place().Path.Query() }

// crumbs returns the places above.
func (v PlacePage) crumbs(ctx context.Context) []link {
	all := []link{{t(ctx, "places.title"), PathPlaces}}
	for _, p := range v.Place().Path.Ancestors() {
		all = append(all, link{p.Name(), PlacePath(p)})
	}
	return all
}

// below returns the places within.
func (v PlacePage) below() placeList {
	l := placeList{open: len(v.Tree.Places) <= openPlaces, above: v.Place().Path}
	for _, root := range v.Tree.Nodes() {
		l.nodes = append(l.nodes, root.Below...)
	}
	return l
}

// concerns returns the numbers of devices that need attention.
func (v PlacePage) concerns(ctx context.Context) (all []placeFigure) {
	for i, n := range v.Concerns {
		if n > 0 {
			name, _, _ := strings.Cut(PlaceConcerns[i], "<")
			all = append(all, placeFigure{class: num(ctx, n), text: t(ctx, "places.concern."+name),
				url: QueryPath(v.query() + " " + PlaceConcerns[i])})
		}
	}
	return all
}

// bars returns a breakdown of the devices of the place.
func (v PlacePage) bars(counts []fleet.DeviceCount, field string) []bar {
	all := bars(counts[:min(len(counts), historyBars)], field)
	for i := range all {
		if all[i].label != "" {
			all[i].url = QueryPath(v.query() + " " + Term(field, all[i].label))
		}
	}
	return all
}

func (v PlacePage) updateURL() string {
	return PathCampaignNew + "?" + url.Values{"q": {v.query()}}.Encode()
}

func (v PlacePage) callURL() string {
	return PathFanOutNew + "?" + url.Values{"q": {v.query()}}.Encode()
}
