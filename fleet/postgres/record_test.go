package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/postgres"
	"fleetd/fleet/record"
)

var recordSecret = []byte("the secret key of a test, 32 byte")

// openSequencer opens the record of the store as the leader of a term.
func openSequencer(t testing.TB, s record.SequencerStore, term int) *record.Sequencer {
	t.Helper()
	q, err := record.OpenSequencer(t.Context(), record.SequencerOptions{Store: s, Secret: recordSecret, Term: term,
		Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	return q
}

func verify(t testing.TB, s record.VerifierStore) record.Report {
	t.Helper()
	r, err := (&record.Verifier{Store: s}).Verify(context.WithoutCancel(t.Context()))
	check(t, err)
	return r
}

// verifyAtEnd checks after the test that the record of the store is sound: whatever was stored has its entry, with
// the line that the row makes.
func verifyAtEnd(t testing.TB, s *postgres.Store) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		r, err := (&record.Verifier{Store: s}).Verify(ctx)
		if err != nil {
			t.Errorf("verify the record: %v", err)
		}
		for _, f := range r.Findings {
			t.Errorf("the record: %s %s %s at %v", f.Problem, f.Kind, f.Subject(), f.At)
		}
	})
}

// sealed makes entries of all kinds, in several checkpoints, and returns the calls in the order of their entries.
func sealed(t *testing.T) (s *rig, db *pgxpool.Pool, calls []uuid.UUID) {
	t.Helper()
	db = testDB(t)
	store := postgres.New(db, postgres.Options{})
	s = &rig{Store: store, t: t}
	s.image = addImage(t, store, "target")
	s.release = addRelease(t, store, s.image)
	addDevices(t, store, unit, "other")
	eventful(t, store, unit)
	q := openSequencer(t, store, 1)
	check(t, q.Seal(t.Context()))
	for range 4 {
		for range 150 {
			c := newCall("other", fleet.CallSent)
			check(t, s.InsertCall(t.Context(), c))
			check(t, s.FinishCall(t.Context(), finish(c, fleet.CallTimedOut, "")))
			calls = append(calls, c.ID)
		}
		check(t, q.Seal(t.Context()))
	}
	late := fleet.LateAnswer{At: now(), Result: []byte(`{"content":[]}`)}
	check(t, s.AddLateAnswer(t.Context(), calls[0], late))
	_, d := s.campaign("d1")
	s.save(change(&d[0], fleet.EvidenceCanceled, campaign.DeploymentCanceled))
	check(t, q.Seal(t.Context()))
	r := verify(t, s)
	for _, f := range r.Findings {
		t.Errorf("before: %s %s %s", f.Problem, f.Kind, f.Subject())
	}
	if r.Entries < 610 || r.Checked != 6 || r.Queued != 0 {
		t.Errorf("%d entries, %d checkpoints, %d queued", r.Entries, r.Checked, r.Queued)
	}
	return s, db, calls
}

// Each table is changed by hand in each way, and the verification names the entry. $1 is a call, $2 a later one.
// entry is 0 for the entry of the first call, -1 if the row is not in the log, or another number.
func TestTampering(t *testing.T) {
	const (
		any  = -2
		once = " LIMIT 1"
	)
	tests := []struct {
		name  string
		sql   string
		want  record.Problem
		kind  record.Kind
		entry int64
	}{
		{"call: outcome", `UPDATE calls SET error_code = 'offline' WHERE id = $1`, record.Changed, record.Call, 0},
		{"call: author", `UPDATE calls SET actor_name = 'somebody' WHERE id = $1`, record.Changed, record.Call, 0},
		{"call: arguments", `UPDATE calls SET arguments = '{"a": 1}' WHERE id = $1`, record.Changed, record.Call, 0},
		{"call: device", `UPDATE calls SET device_id = 'unit' WHERE id = $1`, record.Changed, record.Call, 0},
		{"call: time", `UPDATE calls SET finished_at = finished_at + interval '1 microsecond' WHERE id = $1`,
			record.Changed, record.Call, 0},
		{"call: deleted", `DELETE FROM calls WHERE id = $1`, record.Removed, record.Call, 0},
		{"call: opened again", `UPDATE calls SET state = 'sent', failure = NULL, finished_at = NULL, error_code = NULL,
			error_message = NULL, error_params = NULL, sent_at = now() WHERE id = $1`, record.Removed, record.Call, 0},
		{"call: inserted", `INSERT INTO calls (id, created_at, device_id, tool, actor_kind, actor_id, actor_name,
			actor_role, state,
			failure, error_code, error_message, finished_at) SELECT gen_random_uuid(), created_at, device_id, tool, actor_kind,
			actor_id, actor_name, actor_role, state, failure, error_code, error_message, finished_at FROM calls WHERE id = $1`,
			record.Inserted, record.Call, -1},
		{"calls: swapped", `UPDATE calls a SET finished_at = b.finished_at, sent_at = b.sent_at FROM calls b
			WHERE (a.id, b.id) IN (($1, $2), ($2, $1))`, record.Changed, record.Call, 0},
		{"late answer: changed", `UPDATE calls SET late = '{"at": "2020-01-01T00:00:00Z"}' WHERE late IS NOT NULL`,
			record.Changed, record.LateAnswer, any},
		{"late answer: removed", `UPDATE calls SET late = NULL`, record.Removed, record.LateAnswer, any},
		{"late answer: added", `UPDATE calls SET late = '{"at": "2020-01-01T00:00:00Z"}' WHERE id =
			$2`, record.Inserted,
			record.LateAnswer, -1},
		{"audit entry: author", `UPDATE audit_entries SET actor_name = 'somebody' WHERE action = 'device.hold'`,
			record.Changed, record.Action, any},
		{"audit entry: detail", `UPDATE audit_entries SET detail = detail || '{"reason": "other"}'
			WHERE action = 'device.hold'`, record.Changed, record.Action, any},
		{"audit entry: deleted", `DELETE FROM audit_entries WHERE action =
			'device.release'`, record.Removed, record.Action, any},
		{"audit entry: inserted", `INSERT INTO audit_entries (id, created_at, actor_kind, actor_id, actor_name,
			actor_role,
			action, subject, detail) SELECT gen_random_uuid(), now(), actor_kind, actor_id, actor_name, actor_role, action,
			subject, detail FROM audit_entries` + once, record.Inserted, record.Action, -1},
		{"audit entries: swapped", `UPDATE audit_entries a SET actor_name = b.actor_name, action = b.action,
			detail = b.detail
			FROM audit_entries b WHERE (a.action, b.action) IN (('device.hold', 'device.release'),
			('device.release', 'device.hold'))`, record.Changed, record.Action, any},
		{"connection: changed", `UPDATE presence_changes SET presence = 'online' WHERE presence = 'offline'`,
			record.Changed, record.Connection, any},
		{"connection: deleted", `DELETE FROM presence_changes WHERE presence = 'offline'`, record.Removed,
			record.Connection, any},
		{"connection: inserted", `INSERT INTO presence_changes SELECT device_id, at + interval '1 second', presence,
			evidence_code, evidence_params, transport FROM presence_changes ORDER BY at DESC` + once, record.Inserted,
			record.Connection, -1},
		{"step: changed", `UPDATE deployment_events SET to_state = 'succeeded' WHERE kind <> 'planned'`, record.Changed,
			record.Step, any},
		{"step: deleted", `DELETE FROM deployment_events WHERE kind <> 'planned'`, record.Removed, record.Step, any},
		{"step: inserted", `INSERT INTO deployment_events (deployment_id, id, at, attempt, kind, from_state, to_state)
			SELECT deployment_id, gen_random_uuid(), now(), 1, 'report', 'queued', 'succeeded' FROM deployment_events` + once,
			record.Inserted, record.Step, -1},
		{"firmware: changed", `UPDATE device_firmware SET version = '9.9.9' WHERE device_id = 'other'`, record.Changed,
			record.Firmware, any},
		{"firmware: deleted", `DELETE FROM device_firmware WHERE device_id =
			'other'`, record.Removed, record.Firmware, any},
		{"firmware: inserted", `INSERT INTO device_firmware (device_id, version, slot, elf_sha256, idf_version,
			first_seen,
			last_seen, current) VALUES ('other', '0.1', '', '', '', now(), now(), false)`, record.Inserted,
			record.Firmware, -1},

		{"log: hash of a batch", `UPDATE record_batches SET hashes = set_byte(hashes, 5 * 32, 255 -
			get_byte(hashes, 5 * 32))
			WHERE first = (SELECT max(first) FROM record_batches WHERE entries = 150 AND first < 300)`,
			record.LogChanged, record.Call, any},
		{"log: hash of a tile", `UPDATE record_tiles SET hashes = set_byte(hashes, 200 * 32, 255 -
			get_byte(hashes, 200 * 32))
			WHERE level = 0 AND n = 1`, record.LogChanged, record.Call, any},
		{"log: tile deleted", `DELETE FROM record_tiles WHERE n = 1`, record.LogChanged, 0, 256},
		{"log: tile added", `INSERT INTO record_tiles SELECT level, 2, hashes FROM
			record_tiles` + once, record.LogChanged, record.Call, any},
		{"log: batch deleted", `DELETE FROM record_batches WHERE first = (SELECT max(first) FROM record_batches
			WHERE first < 300)`,
			record.LogChanged, 0, any},
		{"log: end deleted", `DELETE FROM record_batches WHERE first = (SELECT max(first) FROM
			record_batches)`, record.CutOff, 0,
			any},
		{"log: keys swapped", `UPDATE record_batches SET keys = substr(keys, 27, 26) || substr(keys, 1, 26) ||
			substr(keys, 53)
			WHERE first = (SELECT max(first) FROM record_batches WHERE entries = 150)`, record.Changed, record.Call,
			any},
		{"log: entries swapped", `UPDATE record_batches SET keys = substr(keys, 27, 26) || substr(keys, 1, 26) ||
			substr(keys, 53),
			hashes = substr(hashes, 33, 32) || substr(hashes, 1, 32) || substr(hashes, 65)
			WHERE first = (SELECT max(first) FROM record_batches WHERE entries = 150)`, record.LogChanged,
			record.Call, any},
		{"checkpoint: root", `UPDATE record_checkpoints SET root = sha256('x') WHERE size = (SELECT min(size)
			FROM record_checkpoints)`,
			record.BadSign, 0, any},
		{"checkpoint: note", `UPDATE record_checkpoints SET note = replace(note, 'term 1', 'term
			2')`, record.BadSign, 0, any},
		{"checkpoint: deleted", `DELETE FROM record_checkpoints WHERE size = (SELECT max(size) FROM
			record_checkpoints)`,
			record.CutOff, 0, any},
		{"removal without an entry", `WITH x AS (INSERT INTO record_removals VALUES (8, 'call', now()))
			DELETE FROM calls WHERE id = $1`, record.Inserted, record.Dropped, -1},
		{"key of another", `UPDATE record_keys SET verifier = 'fleetd/1+00000000+AQ=='`, record.BadSign, 0, any},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, db, calls := sealed(t)
			first, err := s.RecordEntries(t.Context(), calls[200])
			check(t, err)
			sql := strings.NewReplacer("$1", "'"+calls[200].String()+"'", "$2", "'"+calls[400].String()+"'").Replace(tt.sql)
			tag, err := db.Exec(t.Context(), sql)
			check(t, err)
			if tag.RowsAffected() == 0 {
				t.Fatal("nothing was changed")
			}
			r := verify(t, s)
			i := slices.IndexFunc(r.Findings, func(f record.Finding) bool { return f.Problem == tt.want && f.Kind == tt.kind })
			if i < 0 {
				t.Fatalf("found %+v", r.Findings)
			}
			if got := r.Findings[i].Entry; tt.entry == 0 && got != first[0] || tt.entry > 0 && got != tt.entry ||
				tt.entry == -1 && got != -1 {
				t.Errorf("entry %d, want %d after %d", got, tt.entry, first[0])
			}
		})
	}
}

func addCalls(t *testing.T, s *postgres.Store, n int) {
	t.Helper()
	for range n {
		c := newCall("other", fleet.CallSent)
		check(t, s.InsertCall(t.Context(), c))
		check(t, s.FinishCall(t.Context(), finish(c, fleet.CallTimedOut, "")))
	}
}

func sound(t *testing.T, s *postgres.Store) record.Report {
	t.Helper()
	r := verify(t, s)
	for _, f := range r.Findings {
		t.Errorf("%s %s %s, entry %d", f.Problem, f.Kind, f.Subject(), f.Entry)
	}
	return r
}

// Two processes append in turns, as after a takeover. The one of the earlier term stops, and loses nothing.
func TestStaleSequencer(t *testing.T) {
	s := newStore(t)
	first, second := openSequencer(t, s, 1), openSequencer(t, s, 2)
	addCalls(t, s, 3)
	check(t, first.Seal(t.Context()))
	addCalls(t, s, 300)
	if err := second.Seal(t.Context()); err != nil {
		t.Errorf("the next leader: %v", err)
	}
	addCalls(t, s, 3)
	var stale *record.StaleError
	for range 3 {
		if err := first.Seal(t.Context()); err == nil {
			t.Error("the earlier leader sealed")
		} else if errors.As(err, &stale) {
			break
		} else if !errors.Is(err, record.ErrMoved) {
			t.Errorf("the earlier leader: %v", err)
		}
	}
	if stale == nil || stale.Latest != 2 {
		t.Errorf("the earlier leader did not notice: %+v", stale)
	}
	check(t, second.Seal(t.Context()))
	if r := sound(t, s); r.Entries != 307 || r.Queued != 0 {
		t.Errorf("%d entries, %d queued", r.Entries, r.Queued)
	}
}

// While the database cannot store the log, entries wait; then they are sealed. A damaged log is not continued.
func TestSealingFails(t *testing.T) {
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	q := openSequencer(t, s, 1)
	addCalls(t, s, 3)
	check(t, q.Seal(t.Context()))
	exec := func(sql string) {
		_, err := db.Exec(t.Context(), sql)
		check(t, err)
	}
	exec(`CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE 'could not extend file' USING ERRCODE = 'disk_full'; END $$;
		CREATE TRIGGER full_disk BEFORE INSERT ON record_checkpoints EXECUTE FUNCTION full_disk()`)
	addCalls(t, s, 300)
	if err := q.Seal(t.Context()); err == nil || q.Status().Err == nil || q.Status().Since.IsZero() {
		t.Errorf("sealed on a full disk: %v", err)
	}
	if n, since, err := s.QueuedLeaves(t.Context()); err != nil || n < 300 || since.IsZero() {
		t.Errorf("%d queued since %v, %v", n, since, err)
	}
	exec(`DROP TRIGGER full_disk ON record_checkpoints`)
	check(t, q.Seal(t.Context()))
	if r := sound(t, s); r.Entries != 304 || q.Status().Err != nil {
		t.Errorf("%d entries, %v", r.Entries, q.Status().Err)
	}

	exec(`UPDATE record_batches SET hashes = set_byte(hashes, 0, 255 - get_byte(hashes, 0)) WHERE first >= 260 OR first = 4`)
	exec(`UPDATE record_tiles SET hashes = set_byte(hashes, 128, 255 - get_byte(hashes, 128))`)
	addCalls(t, s, 1)
	if err := openSequencer(t, s, 2).Seal(t.Context()); err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("the next leader continued a damaged log: %v", err)
	}
}

// After the secret key was replaced, the log continues under another key, and proofs of both are right.
func TestReplacedKey(t *testing.T) {
	s := newStore(t)
	first := openSequencer(t, s, 1)
	addCalls(t, s, 3)
	check(t, first.Seal(t.Context()))
	prove := func(q *record.Sequencer) record.Proof {
		p, err := record.NewService(record.ServiceOptions{Store: s, Sequencer: q}).Prove(t.Context(), 2)
		check(t, err)
		return p
	}
	old := prove(first)
	second, err := record.OpenSequencer(t.Context(), record.SequencerOptions{Store: s, Secret: []byte("another"), Term: 2,
		Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	addCalls(t, s, 3)
	check(t, second.Seal(t.Context()))
	before, after := first.Status(), second.Status()
	if before.Origin != after.Origin || before.Verifier == after.Verifier {
		t.Errorf("keys %q and %q", before.Verifier, after.Verifier)
	}
	sound(t, s)
	current := prove(second)
	for _, tt := range []struct {
		proof record.Proof
		key   string
		ok    bool
	}{{old, before.Verifier, true}, {old, after.Verifier, false}, {current, after.Verifier, true},
		{current, before.Verifier, false}} {
		if _, err := tt.proof.Check(tt.key); (err == nil) != tt.ok {
			t.Errorf("check with %s: %v", tt.key, err)
		}
	}
	r, err := (&record.Verifier{Store: s, Verifier: before.Verifier}).Verify(t.Context())
	check(t, err)
	if len(r.Findings) != 1 || r.Findings[0].Problem != record.BadSign {
		t.Errorf("verified with the old key: %+v", r.Findings)
	}
}

// A log stays verifiable after its rows were removed: by retention, and those of devices that never joined.
func TestRecordAfterRetention(t *testing.T) {
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	addDevices(t, s, unit, "other")
	eventful(t, s, unit)
	q := openSequencer(t, s, 1)
	addCalls(t, s, 300)
	check(t, q.Seal(t.Context()))
	later := time.Now().Add(time.Hour)
	removed, err := s.Retain(t.Context(), postgres.Retention{Calls: time.Minute, Audit: time.Minute,
		Connections: time.Minute}, later)
	check(t, err)
	if removed < 300 {
		t.Errorf("%d rows removed", removed)
	}
	addCalls(t, s, 2)
	r := sound(t, s) // the removals wait in the queue
	check(t, q.Seal(t.Context()))
	if again := sound(t, s); r.Missing < 300 || again.Missing != r.Missing {
		t.Errorf("%d and %d rows missing", r.Missing, again.Missing)
	}
}

// A clock that jumps back or forward changes nothing: the order of the log is that of the appends.
func TestRecordWhenTheClockJumps(t *testing.T) {
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	_, err := db.Exec(t.Context(), `UPDATE record_start SET at = now() - interval '1 minute'`)
	check(t, err)
	clock := time.Now()
	q, err := record.OpenSequencer(t.Context(), record.SequencerOptions{Store: s, Secret: recordSecret, Term: 1,
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return clock }})
	check(t, err)
	for _, jump := range []time.Duration{0, -48 * time.Hour, 72 * time.Hour, -24 * time.Hour} {
		clock = clock.Add(jump)
		for range 100 {
			c := newCall("other", fleet.CallSent)
			c.ID = uuid.Must(uuid.NewV7())
			check(t, s.InsertCall(t.Context(), c))
			check(t, s.FinishCall(t.Context(), finish(c, fleet.CallTimedOut, "")))
		}
		check(t, q.Seal(t.Context()))
	}
	if r := sound(t, s); r.Entries != 401 || r.Checked != 4 {
		t.Errorf("%d entries, %d checkpoints", r.Entries, r.Checked)
	}
}

// Of checkpoints that are older than a day, the last of each hour stays, and the log is verified with these.
func TestOldCheckpoints(t *testing.T) {
	s := newStore(t)
	clock := time.Now().Truncate(time.Hour).Add(-48 * time.Hour)
	q, err := record.OpenSequencer(t.Context(), record.SequencerOptions{Store: s, Secret: recordSecret, Term: 1,
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return clock }})
	check(t, err)
	seal := func(step time.Duration) {
		for range 5 {
			addCalls(t, s, 1)
			check(t, q.Seal(t.Context()))
			clock = clock.Add(step)
		}
	}
	seal(time.Minute) // an hour
	clock = clock.Add(time.Hour)
	seal(time.Minute) // another one
	clock = time.Now().Add(-time.Hour)
	seal(time.Minute) // all kept
	if r := sound(t, s); r.Checked != 15 {
		t.Errorf("%d checkpoints", r.Checked)
	}
	for range 2 {
		check(t, s.DeleteExpired(t.Context(), time.Now()))
		if r := sound(t, s); r.Checked != 7 || r.Entries != 16 {
			t.Errorf("%d checkpoints of %d entries are left", r.Checked, r.Entries)
		}
	}
}

// Each kind of the record has its own retention, and the log stays verifiable after the rows of any of them were
// removed.
func TestRecordAfterRetentionOfOneKind(t *testing.T) {
	t.Parallel()
	tables := map[string]string{"call": "calls", "action": "audit_entries", "connection": "presence_changes",
		"campaign_step": "deployment_events", "firmware": "device_firmware"}
	const minute = time.Minute
	for kind, r := range map[string]postgres.Retention{"call": {Calls: minute}, "action": {Audit: minute},
		"connection": {Connections: minute}, "campaign_step": {Steps: minute}, "firmware": {Firmware: minute}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s, db, _ := sealed(t)
			count := func() map[string]int {
				n := map[string]int{}
				for kind, table := range tables {
					var rows int
					check(t, db.QueryRow(t.Context(), `SELECT count(*) FROM `+table).Scan(&rows))
					n[kind] = rows
				}
				return n
			}
			before := count()
			_, err := db.Exec(t.Context(), `UPDATE device_firmware SET current = false, last_seen = first_seen WHERE device_id = $1`,
				unit) // as if it ran another build by now; the line has neither
			check(t, err)
			_, err = s.Retain(t.Context(), r, time.Now().Add(time.Hour))
			check(t, err)
			after := count()
			for other := range tables {
				if fewer := after[other] < before[other]; fewer != (other == kind) {
					t.Errorf("%s: %d rows, %d before", other, after[other], before[other])
				}
			}
			sound(t, s.Store)
			q := openSequencer(t, s.Store, 2)
			check(t, q.Seal(t.Context()))
			if report := sound(t, s.Store); report.Missing == 0 {
				t.Error("the log misses no row")
			}
		})
	}
}

// The digests of calls are found, and removed with them.
func TestCallDigests(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	const digest, other = "hmac-sha256:00112233445566778899aabbccddeeff", "hmac-sha256:ffeeddccbbaa99887766554433221100"
	c := newCall("d", fleet.CallSent)
	c.Digests, c.Arguments = []string{digest}, []byte(`{"key":"`+digest+`"}`)
	check(t, s.InsertCall(ctx, c))
	check(t, s.InsertCall(ctx, newCall("d", fleet.CallSent)))
	find := func(digest string) int {
		page, err := s.Calls(ctx, call.Filter{Digest: digest})
		check(t, err)
		return len(page.Items)
	}
	if a, b := find(digest), find(other); a != 1 || b != 0 {
		t.Errorf("found %d and %d calls", a, b)
	}
	_, err := s.Calls(ctx, call.Filter{Digest: "hmac-sha256:zz"})
	wantKind(t, err, fleet.ErrInvalid)
	_, err = s.Retain(ctx, postgres.Retention{Calls: time.Minute}, time.Now().Add(time.Hour))
	check(t, err)
	var rows int
	check(t, db.QueryRow(ctx, `SELECT count(*) FROM call_digests`).Scan(&rows))
	if rows != 0 {
		t.Errorf("%d digests remain", rows)
	}
}
