package server

import (
	"context"
	"testing"
	"time"

	"fleetd/fleet/postgres"
	"fleetd/fleet/record"
)

// verifyRecordAtEnd checks, after the servers of the test have stopped, that the record is sound: whatever they did.
func verifyRecordAtEnd(t *testing.T, url string) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		db, err := postgres.Open(ctx, url)
		if err != nil {
			t.Errorf("open the database: %v", err)
			return
		}
		defer db.Close()
		r, err := (&record.Verifier{Store: postgres.New(db, postgres.Options{})}).Verify(ctx)
		if err != nil {
			t.Errorf("verify the record: %v", err)
		}
		for _, f := range r.Findings {
			t.Errorf("the record: entry %d: %s %s %s at %v", f.Entry, f.Problem, f.Kind, f.Subject(), f.At)
		}
	})
}
