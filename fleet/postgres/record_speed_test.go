package postgres_test

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres"
	"fleetd/fleet/record"
)

// The log is appended to, and verified, at 100,000 entries a second. FLEETD_RECORD_CALLS is the number of calls.
func TestRecordSpeed(t *testing.T) {
	const goal = 100_000 // entries a second
	calls := 3000
	if n, err := strconv.Atoi(os.Getenv("FLEETD_RECORD_CALLS")); err == nil {
		calls = n
	} else if os.Getenv("FLEETD_BOUNDS") != "" {
		calls = 1_000_000
	}
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	_, err := db.Exec(t.Context(), `UPDATE record_start SET at = now() - interval '1 day'`)
	check(t, err)
	q := openSequencer(t, s, 1)
	addCallRows(t, db, calls)
	_, err = db.Exec(t.Context(), `ANALYZE calls`)
	check(t, err)

	begun := time.Now()
	check(t, q.Seal(t.Context()))
	took := time.Since(begun)
	t.Logf("%d entries appended in %v: %.0f a second", calls, took, float64(calls)/took.Seconds())
	r := sound(t, s)
	t.Logf("%d entries verified in %v: %.0f a second", r.Entries, r.Took, float64(r.Entries)/r.Took.Seconds())
	if r.Entries != int64(calls)+1 {
		t.Errorf("%d entries", r.Entries)
	}
	limit := time.Duration(calls) * time.Second / goal
	fleettest.Within(t, "appending", took, limit)
	fleettest.Within(t, "verifying", r.Took, limit)

	begun = time.Now()
	service := record.NewService(record.ServiceOptions{Store: s, Sequencer: q})
	p, err := service.Prove(t.Context(), int64(calls/2))
	check(t, err)
	_, err = p.Check(q.Status().Verifier)
	check(t, err)
	fleettest.Within(t, "a proof", time.Since(begun), 100*time.Millisecond)
}

// addCallRows adds calls of an hour, with their leaves in the queue as the group commit adds them.
func addCallRows(t *testing.T, db *pgxpool.Pool, n int) {
	t.Helper()
	const flush = 64 // calls in one transaction
	from := time.Now().UTC().Truncate(time.Microsecond).Add(-time.Hour)
	arguments, result := `{"volume":50}`, `{"content":[{"type":"text","text":"true"}],"isError":false}`
	row := func(i int) *record.CallRow {
		at := from.Add(time.Duration(i) * time.Hour / time.Duration(n)).Truncate(time.Microsecond)
		id := uuid.Must(uuid.NewV7())
		done := at.Add(20 * time.Millisecond)
		return &record.CallRow{ID: id, CreatedAt: at, Device: "d" + strconv.Itoa(i%1000), Tool: "self.audio_speaker.set_volume",
			Arguments: &arguments, Actor: record.Who{Kind: "operator", ID: "1", Name: "ana", Role: "operator"}, State: "succeeded",
			Result: &result, RPCID: int32(i), TimeoutMs: 10_000, SentAt: &at, FinishedAt: &done}
	}
	var leaves [][]any
	var waiting []byte
	_, err := db.CopyFrom(t.Context(), pgx.Identifier{"calls"}, []string{"id", "created_at", "device_id", "tool",
		"arguments", "actor_kind", "actor_id", "actor_name", "actor_role", "state", "result", "rpc_id", "timeout_ms",
		"sent_at", "finished_at"}, pgx.CopyFromSlice(n, func(i int) ([]any, error) {
		r := row(i)
		waiting = r.Leaf().Append(waiting)
		if (i+1)%flush == 0 || i == n-1 {
			leaves, waiting = append(leaves, []any{waiting}), nil
		}
		return []any{r.ID, r.CreatedAt, r.Device, r.Tool, *r.Arguments, r.Actor.Kind, r.Actor.ID, r.Actor.Name, r.Actor.Role,
			r.State, *r.Result, r.RPCID, r.TimeoutMs, r.SentAt, r.FinishedAt}, nil
	}))
	check(t, err)
	_, err = db.CopyFrom(t.Context(), pgx.Identifier{"record_queue"}, []string{"leaves"}, pgx.CopyFromRows(leaves))
	check(t, err)
}
