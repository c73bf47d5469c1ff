package postgres_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	cosignature "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"fleetd/fleet/blobs"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/outbound"
	"fleetd/fleet/postgres"
	"fleetd/fleet/publish"
	"fleetd/fleet/record"
)

// A testWitness signs checkpoints of any log that continue the one before, as C2SP tlog-witness defines it. The tests
// of the program use one that is not ours.
type testWitness struct {
	*httptest.Server
	key    string
	signer note.Signer

	mu     sync.Mutex
	latest record.Checkpoint
	answer func(w http.ResponseWriter) bool // if not nil, may answer instead
	proofs int                              // hashes of the latest proof
}

func newWitness(t *testing.T, ofLog string) *testWitness {
	t.Helper()
	secret, public, err := note.GenerateKey(rand.Reader, "witness.example/w1")
	check(t, err)
	w := &testWitness{}
	w.signer, err = cosignature.NewSignerForCosignatureV1(secret)
	check(t, err)
	w.key, err = cosignature.VKeyToCosignatureV1(public)
	check(t, err)
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.serve(rw, r, ofLog)
	}))
	t.Cleanup(w.Close)
	return w
}

func (w *testWitness) serve(rw http.ResponseWriter, r *http.Request, ofLog string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.answer != nil && w.answer(rw) {
		return
	}
	body, _ := io.ReadAll(r.Body)
	head, text, _ := strings.Cut(string(body), "\n\n")
	lines := strings.Split(head, "\n")
	var old int64
	var proof tlog.TreeProof
	_, err := fmt.Sscanf(lines[0], "old %d", &old)
	for _, line := range lines[1:] {
		h, _ := base64.StdEncoding.DecodeString(line)
		proof = append(proof, tlog.Hash(h))
	}
	w.proofs = len(proof)
	c, parseErr := record.ParseCheckpoint(text, ofLog)
	switch {
	case err != nil || r.URL.Path != "/add-checkpoint" || r.Method != http.MethodPost || old > c.Size:
		rw.WriteHeader(http.StatusBadRequest)
	case parseErr != nil:
		rw.WriteHeader(http.StatusForbidden)
	case old != w.latest.Size:
		rw.Header().Set("Content-Type", "text/x.tlog.size")
		rw.WriteHeader(http.StatusConflict)
		fmt.Fprintf(rw, "%d\n", w.latest.Size)
	case old > 0 && tlog.CheckTree(proof, c.Size, c.Root, old, w.latest.Root) != nil:
		rw.WriteHeader(http.StatusUnprocessableEntity)
	default:
		signed, _ := note.Sign(&note.Note{Text: text[:strings.Index(text, "\n\n")+1]}, w.signer)
		_, signature, _ := strings.Cut(string(signed), "\n\n")
		w.latest = c
		_, _ = io.WriteString(rw, signature)
	}
}

// answers makes the witness answer otherwise.
func (w *testWitness) answers(f func(http.ResponseWriter) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = f
}

// signed returns the latest checkpoint that the witness signed.
func (w *testWitness) signed() record.Checkpoint {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.latest
}

// A publisherRun is a publisher that runs until stop.
type publisherRun struct {
	*publish.Publisher
	stop func()
}

func startPublisher(t *testing.T, o publish.Options, allowed ...string) publisherRun {
	t.Helper()
	var allow []string
	for _, address := range allowed {
		allow = append(allow, outbound.HostPort(address))
	}
	o.Every, o.Guard = 20*time.Millisecond, outbound.New(outbound.Options{Allow: allow})
	o.Open = func(ctx context.Context, address string) (publish.Place, error) { return blobs.OpenNamed(ctx, address) }
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p, err := publish.New(o)
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	stop := func() { cancel(); <-done }
	t.Cleanup(stop)
	return publisherRun{p, stop}
}

// has waits until each destination has a checkpoint of the size.
func (p publisherRun) has(t *testing.T, size int64) {
	t.Helper()
	fleettest.Eventually(t, fmt.Sprintf("a checkpoint of %d entries at each place", size), func() bool {
		for _, s := range p.States() {
			if s.Size != size || !s.Since.IsZero() {
				return false
			}
		}
		return true
	})
}

// fails waits until the only destination fails for the reason.
func (p publisherRun) fails(t *testing.T, code string) publish.State {
	t.Helper()
	fleettest.Eventually(t, code, func() bool { return p.States()[0].Why.Is(code) })
	return p.States()[0]
}

// A sealedLog is a log whose size a test sets.
type sealedLog struct {
	*postgres.Store
	q    *record.Sequencer
	size int64
	db   *pgxpool.Pool
	grow func(calls int)
}

func newSealedLog(t *testing.T) *sealedLog {
	t.Helper()
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	l := &sealedLog{Store: s, q: openSequencer(t, s, 1), db: db}
	l.grow = func(calls int) {
		t.Helper()
		addCallRows(t, db, calls)
		check(t, l.q.Seal(t.Context()))
		l.size = l.q.Status().Latest.Size
	}
	return l
}

func TestCheckpointsGoElsewhere(t *testing.T) {
	l := newSealedLog(t)
	l.grow(300)
	var mu sync.Mutex
	var posted []string
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		posted = append(posted, r.URL.Query().Get("token")+string(body))
	}))
	t.Cleanup(hook.Close)
	dir := t.TempDir()
	w := newWitness(t, l.q.Status().Verifier)
	p := startPublisher(t, publish.Options{Store: l, To: []string{"file://" + dir, hook.URL + "/in?token=sesame"},
		Witnesses: []string{w.key + " " + w.URL}}, hook.URL, w.URL)
	p.has(t, 301)
	first := l.q.Status().Latest
	l.grow(700)
	p.has(t, 1001)
	second := l.q.Status().Latest

	for name, want := range map[string]string{"checkpoint": second.Note,
		"checkpoints/" + first.At.Format("20060102T150405Z") + "-000000000301":  first.Note,
		"checkpoints/" + second.At.Format("20060102T150405Z") + "-000000001001": second.Note} {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	mu.Lock()
	if len(posted) != 2 || posted[0] != "sesame"+first.Note || posted[1] != "sesame"+second.Note {
		t.Errorf("the webhook got %q", posted)
	}
	mu.Unlock()
	if c := w.signed(); c.Root != second.Root || w.proofs == 0 {
		t.Errorf("the witness has %d entries, after a proof of %d hashes", c.Size, w.proofs)
	}
	for _, s := range p.States() {
		if strings.Contains(s.To, "sesame") {
			t.Errorf("the secret of an address is shown: %q", s.To)
		}
	}

	// The proof of an entry has the signature of the witness; that of a later entry does not yet.
	p.stop()
	l.grow(1)
	service := record.NewService(record.ServiceOptions{Store: l, Sequencer: l.q})
	proof, err := service.Prove(t.Context(), 500)
	check(t, err)
	c, err := proof.Check(l.q.Status().Verifier)
	check(t, err)
	signed, err := c.Cosignatures(w.key)
	if err != nil || len(signed) != 1 || signed[0].Witness != "witness.example/w1" || time.Since(signed[0].At) > time.Minute {
		t.Errorf("signatures of witnesses: %v, %v", signed, err)
	}
	if _, err := c.Cosignatures(newWitness(t, "").key); err == nil {
		t.Error("a witness that did not sign counts as one that did")
	}
	proof, err = service.Prove(t.Context(), 1001)
	check(t, err)
	c, err = proof.Check(l.q.Status().Verifier)
	check(t, err)
	if _, err := c.Cosignatures(w.key); err == nil || c.Size != 1002 {
		t.Errorf("the checkpoint of %d entries is signed by a witness that has not seen it", c.Size)
	}
}

// A witness shows that a log was replaced, by another one that is as well signed.
func TestWitnessOfAReplacedLog(t *testing.T) {
	l, other := newSealedLog(t), newSealedLog(t)
	l.grow(400)
	w := newWitness(t, l.q.Status().Verifier)
	if other.q.Status().Verifier != l.q.Status().Verifier {
		t.Fatal("the second log has another key")
	}
	witnesses := []string{w.key + " " + w.URL}
	p := startPublisher(t, publish.Options{Store: l, Witnesses: witnesses}, w.URL)
	p.has(t, 401)
	p.stop()

	other.grow(100)
	p = startPublisher(t, publish.Options{Store: other, Witnesses: witnesses}, w.URL)
	s := p.fails(t, "witness_ahead")
	if s.Why.Params["size"] != int64(401) || s.Why.Params["entries"] != int64(101) {
		t.Errorf("%v", s.Why)
	}
	other.grow(900)
	p.fails(t, "witness_inconsistent")
	p.stop()
	if c := w.signed(); c.Size != 401 {
		t.Errorf("the witness signed another log, of %d entries", c.Size)
	}

	// The right log continues, even if fleetd has lost the size that the witness signed.
	_, err := l.db.Exec(t.Context(), `DELETE FROM record_cosignatures`)
	check(t, err)
	l.grow(50)
	p = startPublisher(t, publish.Options{Store: l, Witnesses: witnesses}, w.URL)
	p.has(t, 451)
}

func TestDestinationsThatFail(t *testing.T) {
	l := newSealedLog(t)
	l.grow(10)
	w := newWitness(t, l.q.Status().Verifier)
	var log bytes.Buffer
	status := func(code int) func(http.ResponseWriter) bool {
		return func(rw http.ResponseWriter) bool { rw.WriteHeader(code); return true }
	}
	w.answers(status(http.StatusServiceUnavailable))
	p := startPublisher(t, publish.Options{Store: l, Witnesses: []string{w.key + " " + w.URL + "/"},
		Log: slog.New(slog.NewTextHandler(&log, nil))}, w.URL)
	if s := p.fails(t, "checkpoint_status"); s.Why.String() != "checkpoint_status status=503" || s.Since.IsZero() {
		t.Errorf("%+v", s)
	}
	for code, want := range map[int]string{404: "witness_unknown_log", 403: "witness_unknown_key", 422: "witness_inconsistent"} {
		w.answers(status(code))
		p.fails(t, want)
	}
	for _, answer := range []string{"", "nonsense", "— witness.example/w1 AAAA\n", strings.Repeat("x", 1<<20)} {
		w.answers(status(http.StatusNotFound))
		p.fails(t, "witness_unknown_log")
		w.answers(func(rw http.ResponseWriter) bool { _, _ = io.WriteString(rw, answer); return true })
		p.fails(t, "witness_bad_signature")
	}
	for _, size := range []string{"", "-1", "ten", "99999999999999999999"} {
		w.answers(status(http.StatusNotFound))
		p.fails(t, "witness_unknown_log")
		w.answers(func(rw http.ResponseWriter) bool {
			rw.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(rw, size)
			return true
		})
		p.fails(t, "checkpoint_status")
	}
	if size, err := l.CosignedSize(t.Context(), w.key); err != nil || size != 0 {
		t.Errorf("a signature that nobody made is kept: %d, %v", size, err)
	}
	w.answers(nil)
	p.has(t, 11)
	p.stop()

	// An address without a listener.
	w.Close()
	p = startPublisher(t, publish.Options{Store: l, To: []string{w.URL + "/sesame"}, Log: slog.New(slog.NewTextHandler(&log, nil))}, w.URL)
	p.fails(t, "checkpoint_unreachable")
	p.stop()
	if strings.Contains(log.String(), "sesame") {
		t.Errorf("the address is in the log: %s", &log)
	}
}

// A part of the server that returns stops the server.
func TestPublisherWithoutDestinations(t *testing.T) {
	p, err := publish.New(publish.Options{Every: time.Hour})
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	select {
	case err := <-done:
		t.Fatalf("it ended: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	check(t, <-done)
}

func TestPublisherRefusesAddresses(t *testing.T) {
	w := newWitness(t, "")
	for _, o := range []publish.Options{{To: []string{"sesame"}}, {To: []string{"ftp://sesame"}}, {To: []string{"https:///sesame"}},
		{To: []string{"http://a b/sesame%"}}, {Witnesses: []string{"sesame"}}, {Witnesses: []string{w.key}},
		{Witnesses: []string{w.key + " sesame"}}, {Witnesses: []string{"sesame " + w.URL}}} {
		if _, err := publish.New(o); err == nil {
			t.Errorf("%v is accepted", o)
		} else if len(o.To) > 0 && strings.Contains(err.Error(), "sesame") {
			t.Errorf("an address is repeated: %v", err)
		}
	}
}
