package postgres_test

import (
	"os"
	"strconv"
	"testing"
	"time"

	"fleetd/bench/large"
	"fleetd/fleet"
	"fleetd/fleet/catalogue"
	"fleetd/fleet/postgres"
)

// TestCatalogueScale times the catalogue of a large fleet, as [TestScale] does: its pages may take 100 ms
// of the server's time.
func TestCatalogueScale(t *testing.T) {
	millions, _ := strconv.Atoi(os.Getenv(scaleCalls))
	if millions < 1 {
		t.Skipf("set %s=1 (or 10) to time the catalogue of 100,000 devices and so many million calls", scaleCalls)
	}
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	load(t, db, 100_000, millions*1_000_000)
	ctx := t.Context()
	check(t, large.Catalogue(ctx, db))
	began := time.Now()
	hours, err := s.RollUpUsage(ctx, now())
	check(t, err)
	t.Logf("counted %d hours in %v", hours, time.Since(began).Round(time.Millisecond))
	began = time.Now()
	hours, err = s.RollUpUsage(ctx, now())
	check(t, err)
	t.Logf("counted %d hours again in %v", hours, time.Since(began).Round(time.Millisecond))
	since := catalogue.Since(now())
	scope, err := fleet.NewScope("tag:floor-3 board:board-7", "", nil)
	check(t, err)
	narrow := fleet.WithScope(ctx, fleet.Principal{Role: fleet.RoleViewer, Scope: scope})
	for name, f := range map[string]catalogue.Filter{"all": {}, "name": {Name: "t1"}, "board": {Board: "board-3"},
		"version": {Version: "2.4.1"}, "waiting": {Waiting: true}} {
		atMost(t, 100*time.Millisecond, "catalogue: "+name, func() error {
			_, err := s.Catalogue(ctx, f, now())
			return err
		})
	}
	atMost(t, 100*time.Millisecond, "catalogue: a scope", func() error {
		_, err := s.Catalogue(narrow, catalogue.Filter{}, now())
		return err
	})
	atMost(t, 100*time.Millisecond, "a tool", func() error {
		got, err := s.CatalogueTool(ctx, "self.t3", since, now())
		if err == nil && len(got.Usage) == 0 {
			t.Error("no usage")
		}
		return err
	})
	atMost(t, 100*time.Millisecond, "a tool in a scope", func() error {
		_, err := s.CatalogueTool(narrow, "self.t3", since, now())
		return err
	})
}
