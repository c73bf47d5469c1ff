package device_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/web/device"
)

// fuseKey is the invented key of the test vectors.
var fuseKey = bytes.Repeat([]byte{0x11}, 32)

const fuseSerial = "SN-0123456789ABCDEF0123456789AB-"

var admin = fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "root", Role: fleet.RoleAdmin}

// provingSite is a site over a real database in which devices can prove serial numbers.
type provingSite struct {
	*site
	store   *postgres.Store
	serials *enrolment.Serials
	ahead   atomic.Int64 // nanoseconds that the enrolments' clock is ahead
	stop    func()
}

func newProvingSite(t testing.TB, store *postgres.Store, change func(*enrolment.Options)) *provingSite {
	t.Helper()
	s := &provingSite{site: &site{}, store: store}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	sealer, err := enrolment.NewSealer(make([]byte, enrolment.KeySize))
	check(err)
	s.serials = enrolment.NewSerials(store, sealer, nil)
	check(s.serials.Load(t.Context()))
	o := enrolment.Options{Store: store, Mode: fleet.EnrolByCode, Key: make([]byte, enrolment.KeySize),
		Serials:    s.serials,
		WriteEvery: 10 * time.Millisecond, Now: func() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }}
	if change != nil {
		change(&o)
	}
	s.enrolments, err = enrolment.New(o)
	check(err)
	check(s.enrolments.Load(t.Context()))
	s.presences = fleet.NewPresences(fleet.PresenceOptions{Store: noPresences{}})
	answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: "127.0.0.1:1"})
	check(err)
	router := chi.NewRouter()
	device.New(device.Options{Enrolments: s.enrolments,
		BootPolls: bootPolls(s.enrolments, s.presences, answers, nil)}).Routes(router)
	s.Server = httptest.NewServer(router)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- s.enrolments.Run(ctx) }()
	go func() { done <- s.serials.Run(ctx) }()
	stopped := false
	s.stop = func() {
		if !stopped {
			stopped = true
			s.Close()
			cancel()
			<-done
			<-done
		}
	}
	t.Cleanup(s.stop)
	return s
}

func (s *provingSite) load(t testing.TB, serial string, key []byte) {
	t.Helper()
	if _, err := s.serials.LoadList(t.Context(), admin, strings.NewReader(serial+","+
		hex.EncodeToString(key))); err != nil {
		t.Fatal(err)
	}
}

// A board is a device with a serial number, as in the test vectors.
type board struct{ id, client, serial string }

var genuine = board{"a0:85:e3:11:22:33", uuid1, fuseSerial}

func (b board) headers() map[string]string {
	h := map[string]string{"Device-Id": b.id, "Client-Id": b.client, "User-Agent": "bread-compact-wifi/2.4.2",
		"Activation-Version": "1"}
	if b.serial != "" {
		h["Activation-Version"], h["Serial-Number"] = "2", b.serial
	}
	return h
}

// challenge polls and returns the challenge, or "" if the device is admitted.
func (s *provingSite) challenge(t testing.TB, b board) string {
	t.Helper()
	resp, body := s.send(t, "POST", "/xiaozhi/ota/", b.headers(), strings.NewReader(`{"mac_address":"`+b.id+`"}`))
	checkBearable(t, resp, body)
	var a struct {
		Activation struct{ Challenge string }
		MQTT       *struct{ Password string }
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		t.Fatal(err)
	}
	if (a.Activation.Challenge == "") == (a.MQTT == nil) {
		t.Fatalf("answer %s", body)
	}
	return a.Activation.Challenge
}

func proofOf(serial, challenge string, key []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(challenge))
	return fmt.Sprintf(`{"algorithm":"hmac-sha256","serial_number":"%s","challenge":"%s","hmac":"%s"}`, serial, challenge,
		hex.EncodeToString(mac.Sum(nil)))
}

func (s *provingSite) activate(t testing.TB, b board, body string) int {
	t.Helper()
	resp, _ := s.send(t, "POST", "/xiaozhi/ota/activate", b.headers(), strings.NewReader(body))
	return resp.StatusCode
}

func (s *provingSite) serial(t testing.TB, serial string) enrolment.SerialKey {
	t.Helper()
	k, ok := s.serials.Serial(serial)
	if !ok {
		t.Fatalf("no serial number %s", serial)
	}
	return k
}

// The HMAC that the tests compute equals the HMAC of the vectors.
func TestActivationVector(t *testing.T) {
	var file struct {
		Activate []struct{ Name, Body string }
	}
	text, err := os.ReadFile("testdata/ota_check.json")
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil || len(file.Activate) != 2 || file.Activate[1].Body != proofOf(fuseSerial, "f3b0c2d4e5", fuseKey) {
		t.Fatalf("%v: %+v", err, file)
	}
}

func TestRightProofLetsTheDeviceIn(t *testing.T) {
	s := newProvingSite(t, postgres.New(pgtest.New(t), postgres.Options{}), nil)
	s.load(t, fuseSerial, fuseKey)
	ch := s.challenge(t, genuine)
	if got := s.activate(t, genuine, "{}"); got != 202 {
		t.Errorf("without a proof: %d", got)
	}
	if got := s.activate(t, genuine, proofOf(fuseSerial, ch, make([]byte, 32))); got != 401 {
		t.Errorf("a wrong HMAC: %d", got)
	}
	if got := s.activate(t, genuine, proofOf(fuseSerial, ch, fuseKey)); got != 200 {
		t.Fatalf("the right HMAC: %d", got)
	}
	if ch := s.challenge(t, genuine); ch != "" {
		t.Error("the device still has to prove itself")
	}
	k := s.serial(t, fuseSerial)
	if k.Device != unit || k.WrongProofs != 1 || k.State() != enrolment.SerialBound {
		t.Errorf("%+v", k)
	}
	entries, err := s.store.AuditEntries(t.Context(), audit.Filter{Limit: 10})
	if err != nil || len(entries.Items) != 3 || entries.Items[0].Action != "device.prove" ||
		entries.Items[1].Action != "serial.bind" {
		t.Errorf("%+v: %v", entries.Items, err)
	}
	s.stop()
	// All of it is recorded.
	again := newProvingSite(t, s.store, nil)
	if k := again.serial(t, fuseSerial); k.Device != unit || k.WrongProofs != 1 || k.BoundAt == nil {
		t.Errorf("after a restart: %+v", k)
	}
	if again.challenge(t, genuine) != "" {
		t.Error("after a restart the device has to prove itself again")
	}
	// A unit whose memory was erased has a new Client-Id, but the same fuses.
	erased := board{genuine.id, "00000000-6f0a-4c7e-9d0e-2d6f1f7a9b10", fuseSerial}
	if got := again.activate(t, erased, proofOf(fuseSerial, again.challenge(t, erased), fuseKey)); got != 200 ||
		again.challenge(t, erased) != "" {
		t.Errorf("the same unit with another Client-Id: %d", got)
	}
}

func TestProofsAreRefused(t *testing.T) {
	s := newProvingSite(t, postgres.New(pgtest.New(t), postgres.Options{}), nil)
	s.load(t, fuseSerial, fuseKey)
	s.load(t, "SN-2", bytes.Repeat([]byte{0x22}, 32))
	other := board{"a0:85:e3:11:22:44", uuid1, fuseSerial}
	two := board{"a0:85:e3:11:22:55", uuid1, "SN-2"}
	ch, otherCh := s.challenge(t, genuine), s.challenge(t, other)
	right := proofOf(fuseSerial, ch, fuseKey)
	tests := []struct {
		name string
		by   board
		body string
		want int
	}{
		{"another device's challenge", genuine, proofOf(fuseSerial, otherCh, fuseKey), 401},
		{"a made-up challenge", genuine, proofOf(fuseSerial, "f3b0c2d4e5", fuseKey), 401},
		{"sent on by another device", other, right, 401},
		{"by a device that never polled", board{"a0:85:e3:11:22:66", uuid1, fuseSerial}, right, 401},
		{"with another Client-Id", board{genuine.id, "x", fuseSerial}, right, 401},
		{"another serial number than polled with", genuine, proofOf("SN-2", ch, bytes.Repeat([]byte{0x22}, 32)), 401},
		{"the key of another serial number", two, proofOf("SN-2", s.challenge(t, two), fuseKey), 401},
		{"unknown serial number", genuine, proofOf("SN-9", ch, fuseKey), 202},
		{"another algorithm", genuine, strings.Replace(right, "hmac-sha256", "none", 1), 400},
		{"short HMAC", genuine, strings.Replace(right, `"hmac":"`, `"hmac":"00`, 1), 400},
		{"HMAC of another type", genuine, `{"algorithm":"hmac-sha256","serial_number":"x","challenge":"x","hmac":7}`, 400},
		{"no HMAC", genuine, `{"algorithm":"hmac-sha256","serial_number":"` + fuseSerial + `"}`, 202},
		{"no JSON", genuine, `nonsense`, 202},
		{"too long", genuine, right + strings.Repeat(" ", 5000), 400},
	}
	for _, tt := range tests {
		if got := s.activate(t, tt.by, tt.body); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
	s.ahead.Store(int64(6 * time.Minute))
	if got := s.activate(t, genuine, right); got != 401 {
		t.Errorf("an expired challenge: %d", got)
	}
	fresh := s.challenge(t, genuine)
	if fresh == ch {
		t.Fatal("the expired challenge is given out again")
	}
	if got := s.activate(t, genuine, right); got != 401 {
		t.Errorf("the challenge before: %d", got)
	}
	if got := s.activate(t, genuine, proofOf(fuseSerial, fresh, fuseKey)); got != 200 {
		t.Errorf("the fresh challenge: %d", got)
	}
	if k := s.serial(t, fuseSerial); k.WrongProofs != 0 || k.Device != unit {
		t.Errorf("%+v", k)
	}
	if k := s.serial(t, "SN-2"); k.WrongProofs != 1 || k.Device != "" {
		t.Errorf("%+v", k)
	}
}

func TestOneSerialNumberInTwoDevices(t *testing.T) {
	s := newProvingSite(t, postgres.New(pgtest.New(t), postgres.Options{}), nil)
	s.load(t, fuseSerial, fuseKey)
	clone := board{"a0:85:e3:11:22:44", uuid1, fuseSerial}
	prove := func(b board) int { return s.activate(t, b, proofOf(fuseSerial, s.challenge(t, b), fuseKey)) }
	if got := prove(genuine); got != 200 {
		t.Fatal(got)
	}
	for range 2 {
		if got := prove(clone); got != 409 {
			t.Errorf("the second device: %d", got)
		}
	}
	k := s.serial(t, fuseSerial)
	if k.Device != unit || k.ConflictDevice != "a085e3112244" || k.State() != enrolment.SerialConflict {
		t.Errorf("%+v", k)
	}
	if w := s.enrolments.Waiting(); len(w) != 1 || w[0].Conflict != unit || w[0].Proved || w[0].Serial != fuseSerial {
		t.Errorf("%+v", w)
	}
	// An administrator decides for the second one.
	if err := s.serials.Release(t.Context(), admin, fuseSerial); err != nil {
		t.Fatal(err)
	}
	if got := prove(clone); got != 200 {
		t.Errorf("after the release: %d", got)
	}
	if k := s.serial(t, fuseSerial); k.Device != "a085e3112244" || k.State() != enrolment.SerialBound {
		t.Errorf("%+v", k)
	}
}

func TestProofCanBeAMarkAlone(t *testing.T) {
	s := newProvingSite(t, postgres.New(pgtest.New(t), postgres.Options{}),
		func(o *enrolment.Options) { o.MarkProofs = true })
	s.load(t, fuseSerial, fuseKey)
	proof := proofOf(fuseSerial, s.challenge(t, genuine), fuseKey)
	for range 3 { // the device polls every three seconds
		if got := s.activate(t, genuine, proof); got != 202 {
			t.Errorf("%d, want 202", got)
		}
	}
	w := s.enrolments.Waiting()
	if len(w) != 1 || !w[0].Proved || w[0].Serial != fuseSerial || s.serials.Proofs(enrolment.ProofMarked) != 3 {
		t.Fatalf("%+v", w)
	}
	if s.challenge(t, genuine) == "" {
		t.Error("let in without an operator")
	}
	if err := s.enrolments.Approve(t.Context(), admin, unit, w[0].Code); err != nil {
		t.Fatal(err)
	}
	if got := s.activate(t, genuine, proof); got != 200 {
		t.Errorf("after the approval: %d", got)
	}
}

// In open mode a device joins at once, but a device that claims a recorded serial number has to
// prove it.
func TestOpenModeWantsTheProof(t *testing.T) {
	s := newProvingSite(t, postgres.New(pgtest.New(t), postgres.Options{}),
		func(o *enrolment.Options) { o.Mode = fleet.EnrolOpen })
	s.load(t, fuseSerial, fuseKey)
	for _, b := range []board{{"a0:85:e3:11:22:44", uuid1, ""}, {"a0:85:e3:11:22:55", uuid1, "SN-unknown"}} {
		if s.challenge(t, b) != "" {
			t.Errorf("%+v did not join", b)
		}
	}
	ch := s.challenge(t, genuine)
	if ch == "" {
		t.Fatal("joined without the proof")
	}
	if got := s.activate(t, genuine, proofOf(fuseSerial, ch, fuseKey)); got != 200 || s.challenge(t, genuine) != "" {
		t.Errorf("with the proof: %d", got)
	}
}

func TestManyWrongProofs(t *testing.T) {
	s := newProvingSite(t, postgres.New(pgtest.New(t), postgres.Options{}), nil)
	s.load(t, fuseSerial, fuseKey)
	ch := s.challenge(t, genuine)
	codes := map[int]int{}
	begin := time.Now()
	for i := range 2_000 {
		h := httptest.NewRequest("POST", "/xiaozhi/ota/activate",
			strings.NewReader(proofOf(fuseSerial, ch, []byte{byte(i), byte(i >> 8)})))
		for k, v := range genuine.headers() {
			h.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		s.Config.Handler.ServeHTTP(w, h)
		codes[w.Code]++
	}
	t.Logf("2,000 wrong proofs in %v: %v", time.Since(begin), codes)
	if codes[401] > 60 || codes[401]+codes[429] != 2_000 {
		t.Errorf("statuses %v", codes)
	}
	if k := s.serial(t, fuseSerial); k.WrongProofs > 20 || k.WrongProofs < 10 {
		t.Errorf("%d wrong proofs were looked at", k.WrongProofs)
	}
	// The limit applies to the flooding device, not to the serial number.
	from := board{"a0:85:e3:11:22:44", uuid1, fuseSerial}
	if got := s.activate(t, from, proofOf(fuseSerial, s.challenge(t, from), fuseKey)); got != 200 {
		t.Errorf("the genuine device: %d", got)
	}
	// The limit expires.
	s.ahead.Store(int64(3 * time.Minute))
	if got := s.activate(t, genuine, proofOf(fuseSerial, s.challenge(t, genuine), fuseKey)); got != 409 {
		t.Errorf("after three minutes: %d", got)
	}
}

// TestProofWithoutDatabase: while the database is unavailable, polls get responses, wrong proofs
// are refused, and the server requests a right proof again until it can store it.
func TestProofWithoutDatabase(t *testing.T) {
	db := pgtest.New(t)
	s := newProvingSite(t, postgres.New(db, postgres.Options{}), nil)
	s.load(t, fuseSerial, fuseKey)
	ch := s.challenge(t, genuine)
	lock, err := db.Begin(t.Context()) // a database that hangs counts as unavailable
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback(context.Background())
	if _, err := lock.Exec(t.Context(),
		`LOCK TABLE serial_keys, devices IN ACCESS EXCLUSIVE MODE; SET lock_timeout = 0`); err != nil {
		t.Fatal(err)
	}
	other := board{"a0:85:e3:11:22:44", uuid1, fuseSerial}
	if s.challenge(t, other) == "" || s.activate(t, genuine, proofOf(fuseSerial, ch, []byte("wrong"))) != 401 {
		t.Error("not served while the database is away")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	mac := hmac.New(sha256.New, fuseKey)
	io.WriteString(mac, ch)
	proof := enrolment.SerialProof{Device: unit, ClientID: uuid1, Serial: fuseSerial, Challenge: ch, MAC: mac.Sum(nil)}
	if got := s.enrolments.Prove(ctx, proof); got != enrolment.ProofLater {
		t.Errorf("while the database hangs: %s", got)
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.activate(t, genuine, proofOf(fuseSerial, ch, fuseKey)); got != 200 {
		t.Errorf("afterwards: %d", got)
	}
}

// TestSimulatedBoardProvesItsSerial uses a peer that was written from the protocol alone.
func TestSimulatedBoardProvesItsSerial(t *testing.T) {
	s := newProvingSite(t, postgres.New(pgtest.New(t), postgres.Options{}), nil)
	f, err := sim.New(sim.Options{OTAURL: s.URL + "/xiaozhi/ota/", Devices: 2, Boards: []string{"esp-box-3"},
		TimeScale: 0.01, BootDelay: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	serial, key := f.Device(0).FuseKey()
	if serial == "" {
		t.Skip("the board has no serial number")
	}
	s.load(t, serial, key)
	second, _ := f.Device(1).FuseKey()
	s.load(t, second, make([]byte, 32)) // a different key
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	defer func() { cancel(); <-done }()
	fleettest.Eventually(t, "one device boots, and one fails to prove its serial number", func() bool {
		return f.Stats().Booted >= 1 && s.serial(t, second).WrongProofs > 0
	})
	if k := s.serial(t, serial); string(k.Device) != strings.ReplaceAll(f.Device(0).ID(), ":", "") {
		t.Errorf("%+v", k)
	}
	if w := s.enrolments.Waiting(); len(w) != 1 || w[0].Serial != second {
		t.Errorf("waiting: %+v", w)
	}
}

// FuzzActivate: no body admits a device that has no key, and each body gets a status that a device
// understands.
func FuzzActivate(f *testing.F) {
	f.Add("{}")
	f.Add(proofOf(fuseSerial, "f3b0c2d4e5", fuseKey))
	f.Add(`{"hmac":null,"serial_number":[]}`)
	enrolments := func(t testing.TB) *enrolment.Service {
		sealer, _ := enrolment.NewSealer(make([]byte, 32))
		serials := enrolment.NewSerials(nil, sealer, nil)
		e, err := enrolment.New(enrolment.Options{Store: &pollStore{}, Mode: fleet.EnrolByCode,
			Key: make([]byte, 32), Serials: serials})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}(f)
	router := chi.NewRouter()
	device.New(device.Options{Enrolments: enrolments}).Routes(router)
	if _, err := enrolments.Poll(enrolment.BootPoll{Device: unit, ClientID: uuid1, SerialNumber: fuseSerial,
		At: time.Now()}); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body string) {
		r := httptest.NewRequest("POST", "/xiaozhi/ota/activate", strings.NewReader(body))
		for k, v := range genuine.headers() {
			r.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		router.ServeHTTP(w, r)
		if w.Code != 202 && w.Code != 400 || !json.Valid(w.Body.Bytes()) {
			t.Errorf("%q: %d %s", body, w.Code, w.Body)
		}
	})
}
