package postgres_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/postgres"
	"fleetd/fleet/telemetry"
)

// The values of devices and queries: similar enough to match, with characters that SQL would read
// as wildcards.
var (
	names    = []string{"a", "Ab", "ab_", "a%b", `a\b`, "Äb", "äb c", "lab", "b", "a.b"}
	versions = []string{"", "1", "1.9", "1.10", "1.10.0", "2.0-rc", "x", "2.x"}
	boards   = []string{"", "Board_A", "board-a", "boardXa"}
)

var offered = map[string][]string{"inv1": {"self.reboot", "self.x"}, "inv2": {"self.x"}}

func offers(d fleet.Device, tool string) bool { return slices.Contains(offered[d.InventoryID], tool) }

func genQuery(t *rapid.T) fleet.Query {
	name := rapid.SampledFrom(names)
	value := func(s string) string { return `"` + s + `"` + rapid.SampledFrom([]string{"", "*"}).Draw(t, "star") }
	var terms []string
	for range rapid.IntRange(0, 4).Draw(t, "terms") {
		var term string
		switch rapid.IntRange(0, 7).Draw(t, "kind") {
		case 0:
			term = rapid.SampledFrom([]string{"hold", "retired", "seen<1h", "seen>1h", "crashed<1h", "crashed>1h", "safe_mode", "core_dump", "conflict",
				"AA:00:00:00:00:01", "AA:00:0", "aa-00", "00-01", "AA-"}).Draw(t, "flag")
		case 1:
			term = "version" + rapid.SampledFrom([]string{"<", "<=", ">", ">="}).Draw(t, "op") +
				rapid.SampledFrom([]string{"1", "1.10", "2.0"}).Draw(t, "v")
		case 2:
			term = "version:" + value(rapid.SampledFrom(versions[1:]).Draw(t, "v"))
		case 3:
			term = "tool:" + rapid.SampledFrom([]string{"self.reboot", "self.x,none", "none"}).Draw(t, "tool")
		case 4:
			term = rapid.SampledFrom([]string{"tag:", "name:", "tag:none,", "name:none,"}).Draw(t, "field") +
				value(name.Draw(t, "w"))
		case 5:
			term = rapid.SampledFrom([]string{"board:board_a", "board:BOARD*", "presence:online,pending", "enrolment:waiting",
				"id:aa*", "id:d_*", "chip:ESP32*",
				"slot:ota_0", "elf:9F*", "transport:mqtt"}).Draw(t, "text")
		default:
			term = `"` + name.Draw(t, "w") + `"`
		}
		if rapid.Bool().Draw(t, "not") {
			term = "-" + term
		}
		terms = append(terms, term)
	}
	q, err := fleet.ParseQuery(strings.Join(terms, " "))
	if err != nil {
		t.Fatalf("%q: %v", terms, err)
	}
	return q
}

// stock fills the store with devices that differ in everything that queries can ask for.
func stock(t *testing.T, s *postgres.Store) []fleet.Device {
	t.Helper()
	ctx := t.Context()
	ids := []fleet.DeviceID{"aa0000000001", "aa0000000002", "d_1", "d.1", "lab"}
	for i := range 60 {
		ids = append(ids, fleet.DeviceID("u"+strings.Repeat("a", i%7)+string(rune('a'+i%26))+string(rune('0'+i%10))))
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	for i, id := range ids {
		p := poll(id, now().Add(-time.Duration(i%3)*time.Hour))
		p.Poll.Version, p.Poll.Board, p.Poll.Chip = versions[i%len(versions)], boards[i%len(boards)],
			[]string{"esp32s3", "ESP32"}[i%2]
		p.Admission.Enrolment = []fleet.Enrolment{fleet.EnrolmentEnrolled, fleet.EnrolmentWaiting,
			fleet.EnrolmentRejected}[i%3]
		check(t, s.SavePolls(ctx, []enrolment.PollRecord{p}))
		patch := fleet.DevicePatch{Name: ptr(names[i%len(names)])}
		if i%5 != 0 {
			patch.Tags = ptr([]string{names[(i+3)%len(names)], names[(i+5)%len(names)]})
		}
		check(t, s.UpdateDevice(ctx, admin, id, patch))
		if i%3 != 0 {
			at := now().Add(-time.Duration(i%3-1) * 25 * time.Hour)
			check(t, s.SaveConflicts(ctx, []enrolment.ConflictRecord{{Device: id, Conflict: fleet.DeviceConflict{
				Code: fleet.ConflictDuplicateID, Evidence: []fleet.ConflictEvidence{fleet.EvidenceBothAlive}, FirstSeen: at,
				LastSeen: at}}}))
		}
		switch i % 4 {
		case 0:
			check(t, s.SetHold(ctx, admin, id, &fleet.Hold{Reason: "r", By: admin, Since: now()}))
		case 1:
			check(t, s.SetHold(ctx, admin, id, &fleet.Hold{Reason: "r", By: admin, Since: now(),
				Until: ptr(now().Add(time.Duration(i%3-1) * time.Hour))}))
		}
		if inv := []string{"", "inv1", "inv2"}[i%3]; inv != "" {
			check(t, s.SaveListing(ctx, listing(id, inv, offered[inv]...)))
		}
		if i%6 == 0 {
			check(t, s.SavePresence(ctx, []fleet.PresenceChange{connect(id, 1, now())}))
		}
		if i%4 < 3 {
			check(t, s.SaveVitals(ctx, map[fleet.DeviceID]telemetry.Vitals{id: {At: now(), SafeMode: i%4 == 0,
				CoreDump: i%8 < 2, Boots: int64(i % 3), ResetReason: []string{"panic", "power_on"}[i%2]}}))
		}
		if i%11 == 0 {
			check(t, s.RetireDevice(ctx, admin, id, now()))
		}
	}
	devices, err := s.DevicesByID(ctx, ids)
	check(t, err)
	return devices
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The store and Query.Match return the same devices for every query.
func TestQueryAgreesWithMatch(t *testing.T) {
	s := newStore(t)
	devices := stock(t, s)
	matched, queries := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		q := genQuery(rt)
		at := time.Now()
		var want []fleet.DeviceID
		for _, d := range devices {
			if _, ok := q.Match(d, offers, at); ok {
				want = append(want, d.ID)
			}
		}
		got, err := s.DeviceIDs(context.Background(), q)
		if err != nil {
			rt.Fatal(err)
		}
		if !slices.Equal(got, want) {
			rt.Fatalf("query %q: the store says %v, Match says %v", q.Text, got, want)
		}
		queries++
		if len(want) > 0 && len(want) < len(devices) {
			matched++
		}
	})
	if matched*10 < queries {
		t.Errorf("only %d of %d queries match some devices and not others; the test has lost its point", matched, queries)
	}
}
