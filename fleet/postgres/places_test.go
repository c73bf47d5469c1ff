package postgres_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/bench/large"
	"fleetd/fleet"
	"fleetd/fleet/place"
	"fleetd/fleet/postgres"
	"fleetd/fleet/telemetry"
)

// placed stores devices with tags, in turn online and after a crash.
func placed(t *testing.T, s *postgres.Store, tags map[fleet.DeviceID]string) {
	t.Helper()
	for i, id := range slices.Sorted(maps.Keys(tags)) {
		addDevices(t, s, id)
		list := strings.Fields(tags[id])
		check(t, s.UpdateDevice(t.Context(), admin, id, fleet.DevicePatch{Tags: &list}))
		if i%2 == 0 {
			check(t, s.SavePresence(t.Context(), []fleet.PresenceChange{connect(id, 1, now())}))
		}
		if i%3 == 0 {
			check(t, s.SaveVitals(t.Context(), map[fleet.DeviceID]telemetry.Vitals{id: {At: now(), Boots: 1,
				ResetReason: "panic"}}))
		}
	}
}

// The figures of each place are the numbers of devices that its query selects, whatever the tags are.
func TestPlacesAgreeWithQueries(t *testing.T) {
	s := newStore(t)
	placed(t, s, map[fleet.DeviceID]string{
		"d0": "site-1/room-1", "d1": "site-1/room-1 site-1/room-2", "d2": "site-1", "d3": "site-1/room-2/desk",
		"d4": "site-10/room-1 lab", "d5": "lab", "d6": "a//b", "d7": "/x", "d8": "x/", "d9": "a/../b a/./c",
		"e0": "100%/50_ 大楼/房间", "e1": `q\r/'s`, "e2": "", "e3": strings.Repeat("n/", 19) + "n", "e4": "site-1/room-2 site-1",
		"e5": "retired/here",
	})
	check(t, s.RetireDevice(t.Context(), admin, "e5", now()))
	places, err := s.Places(t.Context(), place.Filter{Limit: place.Max})
	check(t, err)
	names := make([]string, 0)
	for _, p := range places {
		names = append(names, string(p.Path))
		count := func(term string) int {
			t.Helper()
			n, err := s.CountDevices(t.Context(), query(t, p.Path.Query()+term))
			check(t, err)
			return n
		}
		if p.Devices != count("") || p.Online != count(" presence:online") || p.Crashed != count(" crashed<1d") ||
			p.Joined != count(" -presence:pending") || p.OnVersion != count(" version:"+p.Version) {
			t.Errorf("%+v: the lists have %d, %d online, %d crashed, %d joined, %d with the version", p, count(""),
				count(" presence:online"), count(" crashed<1d"), count(" -presence:pending"), count(" version:"+p.Version))
		}
		if _, err := place.Parse(string(p.Path)); err != nil && p.Path != `q\r` {
			t.Errorf("the path %q: %v", p.Path, err)
		}
	}
	for _, want := range []string{"site-1", "site-1/room-1", "site-1/room-2", "site-1/room-2/desk", "site-10", "lab", "a", "x",
		"100%/50_", "大楼", `q\r/'s`, strings.Repeat("n/", 19) + "n"} {
		if !slices.Contains(names, want) {
			t.Errorf("%q is not among %q", want, names)
		}
	}
	for _, n := range names {
		if n == "" || strings.HasPrefix(n, "/") || strings.HasSuffix(n, "/") || strings.Contains(n, "//") ||
			strings.Contains(n, "..") || strings.HasPrefix(n, "retired") {
			t.Errorf("%q is a place", n)
		}
	}
	some, err := s.Places(t.Context(), place.Filter{Within: "site-1", Limit: place.Max})
	check(t, err)
	if len(some) != 4 || some[0].Path != "site-1" {
		t.Errorf("within site-1: %+v", some)
	}
	some, err = s.Places(t.Context(), place.Filter{Limit: 3})
	if err != nil || len(some) != 4 || some[0].Path != "site-1" {
		t.Errorf("the first places: %+v (%v)", some, err)
	}
}

// A scope has the places of its devices, with their figures, and no campaign over others.
func TestPlacesInScope(t *testing.T) {
	r := newRig(t)
	placed(t, r.Store, map[fleet.DeviceID]string{"d0": "site/a", "d1": "site/b", "e1": "site/a hidden/x"})
	wide, _ := r.campaign("d0", "e1")
	own, _ := r.campaign("d1")
	alerts := []place.Alert{{ID: uuid.New(), Query: "tag:site/*"}, {ID: uuid.New(), IDs: []fleet.DeviceID{"e1"}},
		{ID: uuid.New(), Query: "tag:none"}}
	describe := func(scope string) string {
		t.Helper()
		ctx := t.Context()
		if scope != "" {
			narrow, err := fleet.NewScope(scope, "", nil)
			check(t, err)
			ctx = fleet.WithScope(ctx, fleet.Principal{Role: fleet.RoleViewer, Scope: narrow})
		}
		places, err := r.Places(ctx, place.Filter{Alerts: alerts, Limit: place.Max})
		check(t, err)
		var texts []string
		for _, p := range places {
			text := fmt.Sprintf("%s=%d", p.Path, p.Devices)
			for _, c := range p.Campaigns {
				text += map[uuid.UUID]string{wide.ID: " wide", own.ID: " own"}[c]
			}
			for _, a := range p.Alerts {
				text += fmt.Sprint(" alert", slices.IndexFunc(alerts, func(b place.Alert) bool { return b.ID == a }))
			}
			texts = append(texts, text)
		}
		slices.Sort(texts)
		return strings.Join(texts, ", ")
	}
	same(t, describe(""), "hidden/x=1 wide alert0 alert1, hidden=1 wide alert0 alert1, site/a=2 wide alert0 alert1, "+
		"site/b=1 own alert0, site=3 wide own alert0 alert1")
	same(t, describe("id:d*"), "site/a=1 alert0, site/b=1 own alert0, site=2 own alert0")
	same(t, describe("tag:hidden/*"), "hidden/x=1 alert0 alert1, hidden=1 alert0 alert1, site/a=1 alert0 alert1, site=1 alert0 alert1")
	same(t, describe("id:none"), "")
}

// scalePlaces is the number of devices of [TestPlacesScale]; without it the test does not run.
const scalePlaces = "FLEETD_PLACES_DEVICES"

// TestPlacesScale times the tree of 400 tags.
func TestPlacesScale(t *testing.T) {
	devices, _ := strconv.Atoi(os.Getenv(scalePlaces))
	if devices < 1 {
		t.Skipf("set %s=5000 to time the tree of so many devices", scalePlaces)
	}
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	check(t, large.Fleet{Devices: devices}.Write(t.Context(), db))
	for _, sql := range []string{
		`UPDATE devices SET tags = ARRAY[format('site-%s/room-%s', n % 20, n % 400), 'lab'], tags_key = format(E'\x01site-%s/room-%s\x01lab\x01', n % 20, n % 400)
			FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM devices) numbered WHERE numbered.id = devices.id`,
		`INSERT INTO report_changes SELECT id, now() - interval '1 hour' * (row_number() OVER () % 100), 'restarted',
			'{"reset_reason": "panic"}' FROM devices`,
		`VACUUM ANALYZE devices, report_changes`,
	} {
		_, err := db.Exec(t.Context(), sql)
		check(t, err)
	}
	alerts := []place.Alert{{ID: uuid.New(), Query: "presence:offline -transport:ws seen>1d"}, {ID: uuid.New(), Query: "tag:site-1/*"}}
	atMost(t, 50*time.Millisecond, fmt.Sprintf("the places of %d devices", devices), func() error {
		places, err := s.Places(t.Context(), place.Filter{Alerts: alerts, Limit: place.Max})
		if len(places) != 421 {
			t.Errorf("%d places", len(places))
		}
		return err
	})
}
