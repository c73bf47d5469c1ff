package place

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
)

func TestParse(t *testing.T) {
	for path, ok := range map[string]bool{
		"site-1": true, "site-1/room-2": true, "a/b/c/d/e": true, "大楼/房间": true, "50%/a?b#c": true,
		"": false, "/": false, "/a": false, "a/": false, "a//b": false, "a/../b": false, "./a": false,
		"Site": false, "a b": false, "a,b": false, "a*": false, "a:b": false, `a"b`: false, "a\x00": false, "a\n": false,
		strings.Repeat("a/", 200) + "a": false, strings.Repeat("a", 41): false, "\xff": false,
	} {
		p, err := Parse(path)
		if (err == nil) != ok || ok && string(p) != path {
			t.Errorf("Parse(%q) = %q, %v", path, p, err)
		}
		if err != nil && !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("Parse(%q): %v", path, err)
		}
		if err != nil {
			continue
		}
		q, err := fleet.ParseQuery(p.Query())
		if err != nil {
			t.Errorf("the query of %q: %v", path, err)
			continue
		}
		for tag, in := range map[string]bool{path: true, path + "/x": true, path + "x": false} {
			if got := q.Covers(fleet.Device{Tags: []string{tag}}); got != in {
				t.Errorf("%s covers the tag %q: %t", p.Query(), tag, got)
			}
		}
	}
}

func TestPath(t *testing.T) {
	for _, tt := range []struct{ path, name, above, ancestors string }{
		{"a", "a", "", ""}, {"a/b", "b", "a", "a"}, {"a/b/c", "c", "a/b", "a a/b"},
	} {
		var ancestors []string
		for _, p := range Path(tt.path).Ancestors() {
			ancestors = append(ancestors, string(p))
		}
		p := Path(tt.path)
		if p.Name() != tt.name || string(p.Above()) != tt.above || strings.Join(ancestors, " ") != tt.ancestors {
			t.Errorf("%s: name %q, above %q, ancestors %q", p, p.Name(), p.Above(), ancestors)
		}
	}
}

// outline writes trees as a(b c(d)).
func outline(nodes []*Node) string {
	var texts []string
	for _, n := range nodes {
		text := string(n.Path)
		if n.Below != nil {
			text += "(" + outline(n.Below) + ")"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

func TestTree(t *testing.T) {
	for _, tt := range []struct {
		name, paths string // as the store orders them
		limit       int
		want        string
		more        bool
	}{
		{"none", "", 9, "", false},
		{"below", "b a a/y a/x a/x/1", 9, "a(a/x(a/x/1) a/y) b", false},
		{"a name that begins like another", "a a-1 a/x a-1/x", 9, "a(a/x) a-1(a-1/x)", false},
		{"numbers", "a-11 a-2 a-02 a a/9 a/10 a-2/x b1c2 b1c10", 9, "a(a/9 a/10) a-02 a-2(a-2/x) a-11 b1c2 b1c10", false},
		{"too many", "b a a/y a/x a/x/1", 3, "a(a/y) b", true},
		{"a part", "a/x a/x/1", 9, "a/x(a/x/1)", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var places []Place
			for p := range strings.FieldsSeq(tt.paths) {
				places = append(places, Place{Path: Path(p)})
			}
			tree := grow(places, nil, tt.limit)
			if got := outline(tree.Nodes()); got != tt.want || tree.More != tt.more {
				t.Errorf("%s, more %t; want %s, %t", got, tree.More, tt.want, tt.more)
			}
		})
	}
}

// An alert about a campaign is one of the places with its targets, and alerts keep their order.
func TestAlertsOfPlaces(t *testing.T) {
	campaign, one, two, three := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	alerts := []Alert{{ID: one, Query: "tag:a"}, {ID: two, Campaign: campaign}, {ID: three}}
	tree := grow([]Place{{Path: "a", Alerts: []uuid.UUID{three, one}, Campaigns: []uuid.UUID{campaign}}, {Path: "b"}},
		alerts, 9)
	got := tree.Places[0].Alerts
	if len(got) != 3 || got[0] != one || got[1] != two || got[2] != three || len(tree.Places[1].Alerts) != 0 {
		t.Errorf("alerts %v of a, %v of b", got, tree.Places[1].Alerts)
	}
}

type storeFunc func(Filter) []Place

func (f storeFunc) Places(_ context.Context, filter Filter) ([]Place, error) { return f(filter), nil }

type noAlerts struct{}

func (noAlerts) Current(fleet.Principal) []alert.Alert  { return nil }
func (noAlerts) Devices(alert.Alert) (of alert.Devices) { return of }

func TestUnknownPlace(t *testing.T) {
	s := New(storeFunc(func(f Filter) []Place {
		if f.Within == "a" {
			return []Place{{Path: "a"}}
		}
		return nil
	}), noAlerts{})
	for path, ok := range map[string]bool{"a": true, "b": false, "a//": false, "../a": false} {
		if _, err := s.Within(t.Context(), fleet.Principal{}, path); (err == nil) != ok {
			t.Errorf("Within(%q): %v", path, err)
		}
	}
}
