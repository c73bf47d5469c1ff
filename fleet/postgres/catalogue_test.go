package postgres_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/catalogue"
	"fleetd/fleet/policy"
	"fleetd/fleet/postgres"
)

func entries(t testing.TB, s *postgres.Store, ctx context.Context, f catalogue.Filter) (list []string) {
	t.Helper()
	page, err := s.Catalogue(ctx, f, now())
	check(t, err)
	for _, e := range page.Items {
		list = append(list, fmt.Sprintf("%s %s definitions:%d waiting:%d boards:%d versions:%d devices:%d", e.Name, e.Audience,
			e.Definitions, e.Waiting, e.Boards, e.Versions, e.Devices))
	}
	return list
}

func waits(t testing.TB, s *postgres.Store, w catalogue.Waits) {
	t.Helper()
	check(t, s.SetWaits(t.Context(), admin, w))
}

// waitingOf returns the states of the definitions that models may call, by tool and description.
func waitingOf(t testing.TB, s *postgres.Store, tool string) map[string]catalogue.Waiting {
	t.Helper()
	got, err := s.CatalogueTool(t.Context(), tool, now(), now())
	check(t, err)
	states := map[string]catalogue.Waiting{}
	for _, d := range got.Definitions {
		states[d.Description] = d.Waiting
	}
	return states
}

func key(tool, description string) catalogue.Key {
	return catalogue.Key{Tool: tool, Digest: fleet.Tool{Name: tool, Description: description,
		InputSchema: []byte(`{"type":"object","properties":{}}`)}.Digest()}
}

func auditOf(t testing.TB, s *postgres.Store, action string) (subjects []string) {
	t.Helper()
	page, err := s.AuditEntries(t.Context(), audit.Filter{Action: action})
	check(t, err)
	for _, e := range page.Items {
		subjects = append(subjects, e.Subject)
	}
	return subjects
}

func TestCatalogue(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	addDevices(t, s, "d1", "d2", "e1")
	if _, err := db.Exec(ctx, `UPDATE devices SET board = 'other', version = '2.5.0' WHERE id = 'e1'`); err != nil {
		t.Fatal(err)
	}
	say := fleet.Tool{Name: "self.say", Description: "Speaks"}
	listTools(t, s, "d1", "2.4.0", say, fleet.Tool{Name: "self.reboot"})
	listTools(t, s, "d2", "2.4.0", say, fleet.Tool{Name: "self.reboot"})
	listTools(t, s, "e1", "2.5.0", fleet.Tool{Name: "self.say", Description: "Speaks louder"}, fleet.Tool{Name: "self.a%_b"})

	all := []string{"self.a%_b model definitions:1 waiting:0 boards:1 versions:1 devices:1",
		"self.reboot user definitions:1 waiting:0 boards:1 versions:1 devices:2",
		"self.say model definitions:2 waiting:0 boards:2 versions:2 devices:3"}
	same(t, entries(t, s, ctx, catalogue.Filter{}), all)
	same(t, entries(t, s, ctx, catalogue.Filter{Name: "SAY"}), all[2:])
	same(t, entries(t, s, ctx, catalogue.Filter{Name: "a%_"}), all[:1])
	same(t, entries(t, s, ctx, catalogue.Filter{Name: "%"}), all[:1])
	same(t, entries(t, s, ctx, catalogue.Filter{Audience: fleet.AudienceUser}), all[1:2])
	same(t, entries(t, s, ctx, catalogue.Filter{Waiting: true}), nil)
	same(t, entries(t, s, ctx, catalogue.Filter{Board: "other"}), []string{
		"self.a%_b model definitions:1 waiting:0 boards:1 versions:1 devices:1",
		"self.say model definitions:1 waiting:0 boards:1 versions:1 devices:1"})
	same(t, len(entries(t, s, ctx, catalogue.Filter{Version: "2.4.0"})), 2)

	// Pages, forwards and back.
	first, err := s.Catalogue(ctx, catalogue.Filter{Limit: 2}, now())
	check(t, err)
	second, err := s.Catalogue(ctx, catalogue.Filter{Limit: 2, Cursor: first.Next}, now())
	check(t, err)
	back, err := s.Catalogue(ctx, catalogue.Filter{Limit: 2, Cursor: second.Prev}, now())
	check(t, err)
	if len(first.Items) != 2 || len(second.Items) != 1 || second.Next != "" || len(back.Items) != 2 ||
		back.Items[0].Name != first.Items[0].Name {
		t.Errorf("pages: %+v, %+v, %+v", first, second, back)
	}
	_, err = s.Catalogue(ctx, catalogue.Filter{Cursor: "x"}, now())
	wantKind(t, err, fleet.ErrInvalid)

	// A scope has its devices, and the definitions that they offer.
	scope, err := fleet.NewScope("id:d*", "", nil)
	check(t, err)
	narrow := fleet.WithScope(ctx, fleet.Principal{Role: fleet.RoleViewer, Scope: scope})
	same(t, entries(t, s, narrow, catalogue.Filter{}), []string{all[1],
		"self.say model definitions:1 waiting:0 boards:1 versions:1 devices:2"})
	tool, err := s.CatalogueTool(narrow, "self.say", now(), now())
	check(t, err)
	if len(tool.Definitions) != 1 || tool.Definitions[0].Devices != 2 || len(tool.Definitions[0].Places) != 1 {
		t.Errorf("within the scope: %+v", tool.Definitions)
	}
	_, err = s.CatalogueTool(narrow, "self.a%_b", now(), now())
	wantKind(t, err, fleet.ErrNotFound)

	// A model has the tools of its patterns that are not for people only.
	modelScope, err := fleet.NewScope("", "", []string{"self.s*", "self.reboot"})
	check(t, err)
	model := fleet.WithScope(ctx, fleet.Principal{Kind: fleet.KindModel, Role: fleet.RoleOperator, Scope: modelScope})
	same(t, entries(t, s, model, catalogue.Filter{}), all[2:])

	// History: a definition that no device offers any more keeps its places.
	listTools(t, s, "e1", "2.6.0", say)
	tool, err = s.CatalogueTool(ctx, "self.say", now(), now())
	check(t, err)
	if len(tool.Definitions) != 2 || tool.Definitions[0].Description != "Speaks louder" || tool.Definitions[0].Devices != 0 ||
		!slices.Contains(tool.Definitions[0].Places, catalogue.Place{Board: "other", Version: "2.5.0"}) ||
		tool.Definitions[1].Devices != 3 {
		t.Errorf("after a change back: %+v", tool.Definitions)
	}
	from, to, err := tool.Find("", "")
	check(t, err)
	if d := catalogue.Compare(from, to); !d.Description || len(d.Properties) != 0 {
		t.Errorf("difference: %+v", d)
	}
}

// Pages count devices in device_offers, which follows the devices.
func TestCatalogueFollowsDevices(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	addDevices(t, s, "d1", "d2")
	scope, err := fleet.NewScope("id:d*", "", nil)
	check(t, err)
	narrow := fleet.WithScope(ctx, fleet.Principal{Role: fleet.RoleViewer, Scope: scope})
	listTools(t, s, "d1", "1", fleet.Tool{Name: "self.say"})
	listTools(t, s, "d2", "1", fleet.Tool{Name: "self.say"})
	for _, step := range []struct {
		sql                       string
		boards, versions, devices int
	}{
		{`UPDATE devices SET board = 'b', version = '1'`, 1, 1, 2},
		{`UPDATE devices SET board = 'c' WHERE id = 'd1'`, 2, 1, 2},
		{`UPDATE devices SET version = '2' WHERE id = 'd2'`, 2, 2, 2},
		{`UPDATE devices SET retired_at = now() WHERE id = 'd1'`, 1, 1, 1},
		{`UPDATE devices SET version = '3' WHERE id = 'd1'`, 1, 1, 1},
		{`UPDATE devices SET retired_at = NULL WHERE id = 'd1'`, 2, 2, 2},
		{`UPDATE devices SET inventory_id = NULL WHERE id = 'd2'`, 1, 1, 1},
		{`INSERT INTO devices (id, created_at, presence_since, board, version, inventory_id)
			SELECT 'd3', now(), now(), 'e', '4', inventory_id FROM devices WHERE id = 'd1'`, 2, 2, 2},
		{`DELETE FROM devices WHERE id = 'd3'`, 1, 1, 1},
	} {
		if _, err := db.Exec(ctx, step.sql); err != nil {
			t.Fatal(err)
		}
		want := []string{fmt.Sprintf("self.say model definitions:1 waiting:0 boards:%d versions:%d devices:%d", step.boards,
			step.versions, step.devices)}
		same(t, entries(t, s, ctx, catalogue.Filter{}), want)
		same(t, entries(t, s, narrow, catalogue.Filter{}), want) // counted without device_offers
	}
}

// Inventories of an earlier version of fleetd are added, and their definitions do not wait.
func TestCatalogueOfEarlierInventories(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	addDevices(t, s, "d1")
	listTools(t, s, "d1", "1", fleet.Tool{Name: "self.a", InputSchema: []byte(`{"b": 1.50, "a": 1e2}`)})
	digest := waitingOf(t, s, "self.a")
	if _, err := db.Exec(ctx, `WITH i AS (DELETE FROM inventory_tools), u AS (UPDATE inventories SET catalogued = false)
		DELETE FROM tool_definitions`); err != nil {
		t.Fatal(err)
	}
	for want := 1; want >= 0; want-- {
		n, err := s.CatalogueInventories(ctx)
		check(t, err)
		same(t, n, want)
	}
	same(t, waitingOf(t, s, "self.a"), digest)
}

func TestDefinitionsWait(t *testing.T) {
	ctx := t.Context()
	s := newStore(t)
	addDevices(t, s, "d1", "d2", "d3")
	list := func(device fleet.DeviceID, description string) {
		t.Helper()
		listTools(t, s, device, "1", fleet.Tool{Name: "self.say", Description: description})
	}
	list("d1", "before")
	waits(t, s, catalogue.WaitsNewAndChanged)
	same(t, waitingOf(t, s, "self.say"), map[string]catalogue.Waiting{"before": ""})
	list("d1", "changed")
	list("d2", "changed") // one decision for all devices
	same(t, waitingOf(t, s, "self.say"), map[string]catalogue.Waiting{"before": "", "changed": catalogue.WaitingChanged})
	listTools(t, s, "d3", "1", fleet.Tool{Name: "self.new", Description: "a"}, fleet.Tool{Name: "self.people", Audience: fleet.AudienceUser})
	same(t, waitingOf(t, s, "self.new"), map[string]catalogue.Waiting{"a": catalogue.WaitingNew})
	same(t, waitingOf(t, s, "self.people"), map[string]catalogue.Waiting{"": ""})

	// What was for people waits when it becomes one for models.
	listTools(t, s, "d3", "1", fleet.Tool{Name: "self.people"})
	same(t, waitingOf(t, s, "self.people"), map[string]catalogue.Waiting{"": catalogue.WaitingNew})

	// Another definition of a tool that nobody released is new as well; a release is for one definition.
	listTools(t, s, "d3", "1", fleet.Tool{Name: "self.new", Description: "b"})
	released, err := s.ReleaseDefinitions(ctx, admin, []catalogue.Key{key("self.new", "a"), key("self.new", "a")})
	check(t, err)
	same(t, len(released), 1)
	same(t, waitingOf(t, s, "self.new"), map[string]catalogue.Waiting{"a": "", "b": catalogue.WaitingNew})
	same(t, auditOf(t, s, "tool_definition.release"), []string{"self.new"})

	// One unknown definition: nothing is released.
	_, err = s.ReleaseDefinitions(ctx, admin, []catalogue.Key{key("self.new", "b"), key("self.new", "never listed")})
	wantKind(t, err, fleet.ErrNotFound)
	same(t, waitingOf(t, s, "self.new")["b"], catalogue.WaitingNew)

	// A device that flips between definitions makes no entries; nor does it wait again.
	_, err = s.ReleaseDefinitions(ctx, admin, []catalogue.Key{key("self.say", "changed")})
	check(t, err)
	for i := range 20 {
		list("d1", []string{"before", "changed"}[i%2])
	}
	same(t, waitingOf(t, s, "self.say"), map[string]catalogue.Waiting{"before": "", "changed": ""})
	same(t, len(auditOf(t, s, "")), 3)

	// Only new ones: a changed definition is offered at once.
	waits(t, s, catalogue.WaitsNew)
	list("d1", "changed again")
	listTools(t, s, "d2", "1", fleet.Tool{Name: "self.newer", Description: "x"})
	same(t, waitingOf(t, s, "self.say")["changed again"], catalogue.NotWaiting)
	same(t, waitingOf(t, s, "self.newer"), map[string]catalogue.Waiting{"x": catalogue.WaitingNew})

	state, err := s.CatalogueState(ctx, nil)
	check(t, err)
	if state.Waits != catalogue.WaitsNew || state.Waiting[key("self.newer", "x")] != catalogue.WaitingNew {
		t.Errorf("state: %+v", state)
	}
	if again, err := s.CatalogueState(ctx, state); err != nil || again != state {
		t.Errorf("an unchanged state was read again (%v)", err)
	}
	waits(t, s, catalogue.WaitsOff)
	list("d1", "while off")
	same(t, waitingOf(t, s, "self.say")["while off"], catalogue.NotWaiting)
}

// Two people release at once: each definition has one release, with one entry.
func TestReleaseTogether(t *testing.T) {
	s := newStore(t)
	addDevices(t, s, "d1")
	waits(t, s, catalogue.WaitsNew)
	var tools []fleet.Tool
	var keys []catalogue.Key
	for i := range 20 {
		tools = append(tools, fleet.Tool{Name: fmt.Sprintf("self.t%02d", i), Description: "x"})
		keys = append(keys, key(tools[i].Name, "x"))
	}
	listTools(t, s, "d1", "1", tools...)
	var wg sync.WaitGroup
	counts := make([]int, 4)
	for i := range counts {
		mine := slices.Clone(keys)
		if i%2 == 1 {
			slices.Reverse(mine)
		}
		wg.Go(func() {
			released, err := s.ReleaseDefinitions(t.Context(), admin, mine)
			if err != nil {
				t.Error(err)
			}
			counts[i] = len(released)
		})
	}
	wg.Wait()
	if sum := counts[0] + counts[1] + counts[2] + counts[3]; sum != 20 {
		t.Errorf("released: %v", counts)
	}
	same(t, len(auditOf(t, s, "tool_definition.release")), 20)
}

// 5,000 devices list the same new inventory, many at once: it is one definition.
func TestListTogether(t *testing.T) {
	s := newStore(t)
	var ids []fleet.DeviceID
	for i := range 64 {
		ids = append(ids, fleet.DeviceID(fmt.Sprintf("d%02d", i)))
	}
	addDevices(t, s, ids...)
	waits(t, s, catalogue.WaitsNewAndChanged)
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() {
			tools := []fleet.Tool{{Name: "self.b", Description: "x"}, {Name: "self.a", Description: "x"}}
			if i%2 == 1 { // another inventory with the same definitions
				slices.Reverse(tools)
			}
			listTools(t, s, id, "1", tools...)
		})
	}
	wg.Wait()
	same(t, entries(t, s, t.Context(), catalogue.Filter{}), []string{
		"self.a model definitions:1 waiting:1 boards:1 versions:1 devices:64",
		"self.b model definitions:1 waiting:1 boards:1 versions:1 devices:64"})
}

// A hostile device fills neither the catalogue nor the record.
func TestCatalogueIsBounded(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	addDevices(t, s, "d1", "d2")
	waits(t, s, catalogue.WaitsNew)
	for i := range 8 {
		var tools []fleet.Tool
		for j := range 250 {
			tools = append(tools, fleet.Tool{Name: fmt.Sprintf("self.<b>\u202e.%d.%d", i, j), Description: strings.Repeat("x", 2000)})
		}
		listTools(t, s, "d1", fmt.Sprint(i), tools...)
	}
	count := func(sql string) (n int) {
		t.Helper()
		if err := db.QueryRow(ctx, sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	same(t, count(`SELECT count(*) FROM tool_definitions`), catalogue.MaxDefinitionsDevice)
	same(t, count(`SELECT count(*) FROM inventory_tools`), catalogue.MaxDefinitionsDevice)
	same(t, count(`SELECT count(*) FROM audit_entries`), 1) // of the setting
	listTools(t, s, "d2", "1", fleet.Tool{Name: "self.honest"})
	same(t, waitingOf(t, s, "self.honest"), map[string]catalogue.Waiting{"": catalogue.WaitingNew})

	for i := range catalogue.MaxInventoriesDevice + 5 {
		listTools(t, s, "d2", fmt.Sprint(i), fleet.Tool{Name: "self.honest", Description: fmt.Sprint(i)})
	}
	if n := count(`SELECT count(*) FROM tool_definitions WHERE device_id = 'd2'`); n > catalogue.MaxInventoriesDevice {
		t.Errorf("%d definitions of a device that changes its tool without end", n)
	}
}

// A release also ends the quarantines of programs with the same digest, and a pin is a release.
func TestReleaseEndsQuarantines(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	addDevices(t, s, "d1")
	waits(t, s, catalogue.WaitsNew)
	listTools(t, s, "d1", "1", fleet.Tool{Name: "say", Description: "a"}, fleet.Tool{Name: "sing", Description: "a"})
	say := key("say", "a")
	for _, sql := range []string{
		`INSERT INTO trusted_tools VALUES ('d1', 'n', 'v', 'b', 'd', '{}')`,
		`INSERT INTO tool_quarantines (device_id, tool, digest, since) VALUES ('d1', 'say', decode('` +
			hex.EncodeToString(say.Digest[:]) + `', 'hex'), now())`} {
		if _, err := db.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.ReleaseDefinitions(ctx, admin, []catalogue.Key{say})
	check(t, err)
	held, err := s.ToolQuarantines(ctx)
	check(t, err)
	trusted, err := s.TrustedTools(ctx, "d1")
	check(t, err)
	if len(held) != 0 || trusted.Tools["say"] != say.Digest {
		t.Errorf("in quarantine: %+v, trusted: %+v", held, trusted)
	}
	pin := policy.ToolPin{Tool: "sing", Digest: key("sing", "a").Digest, PinnedAt: now()}
	check(t, s.SaveToolPin(ctx, admin, pin, "d1"))
	same(t, waitingOf(t, s, "sing"), map[string]catalogue.Waiting{"a": ""})
}
