package heavy_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
)

func begin(t *testing.T, l *heavy.Limits, by fleet.Principal, w heavy.Work, want string) func() {
	t.Helper()
	done, err := l.Begin(t.Context(), by, w)
	var no *fleet.Error
	if want == "" && err != nil || want != "" && (!errors.As(err, &no) || no.Code != want || !errors.Is(err, fleet.ErrTooMany)) {
		t.Fatalf("%s of %s: %v, want %q", w, by.ID, err, want)
	}
	return done
}

func TestOneImportAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l heavy.Limits
		one, two := fleet.Principal{Kind: fleet.KindModel, ID: "1"}, fleet.Principal{Kind: fleet.KindModel, ID: "2"}
		done := begin(t, &l, one, heavy.Import, "")
		begin(t, &l, one, heavy.Import, "heavy_at_once")
		begin(t, &l, two, heavy.Import, "")
		begin(t, &l, one, heavy.Export, "")
		time.AfterFunc(time.Second, done)
		next := begin(t, &l, one, heavy.Import, "") // waits for the work that is about to end
		done()                                      // a second call has no effect
		begin(t, &l, one, heavy.Import, "heavy_at_once")
		next()
		for range 1000 {
			begin(t, &l, one, heavy.None, "")
		}
	})
}

func TestWorkAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l heavy.Limits
		by := fleet.Principal{Kind: fleet.KindProgram, ID: "1"}
		for range 20 {
			begin(t, &l, by, heavy.Import, "")()
		}
		begin(t, &l, by, heavy.Import, "heavy_rate")
		time.Sleep(3 * time.Second)
		begin(t, &l, by, heavy.Import, "")()
		begin(t, &l, by, heavy.Import, "heavy_rate")
		time.Sleep(time.Hour)
		for range 20 {
			begin(t, &l, by, heavy.Import, "")()
		}
		begin(t, &l, by, heavy.Import, "heavy_rate")
	})
}
