package enrolment

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unique"

	"fleetd/fleet"
	"fleetd/fleet/attempts"
	"fleetd/fleet/internal/writebehind"
)

// Options configures [Service]. Store, Mode, and Key or Keys are required.
type Options struct {
	Store Store
	Mode  fleet.EnrolmentMode
	// ByCode reports whether a device shows its code even in open mode. nil: none does.
	ByCode func(fleet.DeviceID) bool
	Key    []byte // [KeySize] secret bytes; with another key every device must fetch new credentials
	Log    *slog.Logger

	Rules *Rules // by which devices join without an operator; nil: none
	// Keys are the loaded generations of the key that signs credentials. nil: the one derived from Key.
	Keys *SigningKeys
	// Serials are the serial numbers that devices can prove. nil: none.
	Serials *Serials
	// MarkProofs leaves the decision about a device that proved its serial number to an
	// operator. By default the proof is enough.
	MarkProofs bool

	PublicName string        // shown on the display above the code: the host name of the console
	Events     *fleet.Events // nil: no events are published

	// Connected reports whether a device is connected. In open mode a connected device keeps
	// its Client-Id. nil: none is connected.
	Connected func(fleet.DeviceID) bool
	// Connection returns a device's connection. nil: there are none.
	Connection func(fleet.DeviceID) (fleet.Connection, bool)
	// Ping pings a device over its connection and returns the connection that answered. It returns
	// false if there is no connection, or no answer until the context ends. nil: no device is pinged.
	Ping func(ctx context.Context, id fleet.DeviceID) (fleet.Connection, bool)
	// Conflicts stores the evidence that two units use one id. nil: it is in memory only.
	Conflicts ConflictStore
	// Device returns a device, for principals whose scope limits the devices they may act on;
	// [fleet.Targets] implements it. nil: such principals may act on no device.
	Device func(ctx context.Context, id fleet.DeviceID) (fleet.Device, error)
	// Attempts bounds wrong codes and wrong proofs. nil: the counts end with the process.
	Attempts *attempts.Limiter
	// Kick ends a device's connection when its credentials are revoked. May be nil.
	Kick func(id fleet.DeviceID, cause fleet.Cause)

	MaxWaiting int // devices that wait at one time. Default: 10,000; at most 100,000
	// MaxWaitingPerNetwork limits the waiting devices of one network. It does not apply to this
	// machine's own addresses, because a proxy may run there. Default: 500.
	MaxWaitingPerNetwork int
	NetworkBits4         int // prefix length of an IPv4 network. Default: 24
	NetworkBits6         int // prefix length of an IPv6 network. Default: 64

	MaxDevices int           // total number of devices. Default: 1,000,000
	WaitingTTL time.Duration // how long after its last poll a waiting device is forgotten. Default: 24h
	WriteEvery time.Duration // how long polls are collected before a write. Default: 200ms
	Now        func() time.Time
}

// Service decides which devices belong to the fleet. For known devices it answers boot polls and checks
// credentials from memory, so an unavailable database blocks none of them. It writes changes behind.
//
// The binding of a device's credentials is stored before the device receives them: if the
// process dies, no device has credentials that the next process does not accept. Therefore an
// unknown device waits for its row, and for nothing else.
//
// Device-Id and Client-Id are claims, not proof. The pair gives limited rights: credentials are bound
// to both, and a Client-Id that differs from the one on record requires an operator's decision.
type Service struct {
	o    Options
	keys *SigningKeys
	// polls wait for up to WriteEvery. A device is answered earlier if its poll contains
	// nothing new. While the store is unavailable or requests crowd, it is answered with its
	// previous credentials or a code. Other parts read the store: events are published again
	// after the write, and campaigns store a poll before the conclusions they draw from it.
	polls   *writebehind.Buffer[fleet.DeviceID, BootPoll]
	codes   *claimCodes
	waiting *waitingList
	crowded chan struct{} // makes Run forget stale waiting devices early

	duplicates *duplicates
	pingsMu    sync.Mutex

	challengeKey []byte // authenticates the challenges that devices sign
	started      time.Time
	pings        map[fleet.DeviceID]*ping // in progress
	// conflicts buffers polls of second units until they are stored; pages and filters read the
	// store, and events follow the write. If the process is killed, the next sign of two units
	// finds a lost conflict again.
	conflicts *writebehind.Buffer[fleet.DeviceID, struct{}]

	seed   maphash.Seed
	shards [enrolmentShards]enrolmentShard
}

const enrolmentShards = 64

type enrolmentShard struct {
	mu      sync.Mutex
	devices map[fleet.DeviceID]*standing
}

// standing is an [Admission] in its form in memory, for every device. Builds are interned
// because a fleet runs few of them.
type standing struct {
	enrolment    fleet.Enrolment
	clientID     string
	newClientID  string
	key          string // public key that the device proves, base64; "" if it has none
	refused      string // Client-Id whose request an operator refused
	serial       credentialSerial
	retired      bool
	mqtt5        bool // see Admission
	revoked      bool // see Admission
	software     bool // see Running
	transport    fleet.Transport
	given        fleet.Transport       // as stored
	hardware     unique.Handle[string] // board and chip as last claimed; the zero handle: unknown
	last, before pollOrigin            // the latest polls with credentials from two addresses
	pending      *pending              // changes that the store does not have yet; nil for none
	request      *request              // nil unless a code is shown
	elf, version unique.Handle[string]
	inventoryELF unique.Handle[string]
	inventoryAt  int64 // Unix seconds
	noted        keyNote
	provedAt     int64 // of the latest proof at a CONNECT, Unix milliseconds of the device's clock
}

// A keyNote is the generation of the signing key that a device last connected with, recorded
// for a rotation.
type keyNote struct{ rotation, generation int32 }

// request is a device's request to be let in, under the Client-Id that it polled with.
type request struct {
	device            fleet.DeviceID
	code, challenge   string
	since, lastPoll   time.Time // zero if before the start of the process
	board, remoteAddr string
	pinned            bool      // of an enrolled device
	unsaved           *BootPoll // given a place but not stored yet: most such devices never poll again

	// These belong to the waiting list and are guarded by its lock.
	network *waitingNetwork // nil: not listed, or no longer listed
	element *list.Element   // nil if pinned
	contact time.Time       // latest
	steady  bool            // polled more than once
	stored  bool
	claim   *serialClaim // nil unless the device claims a serial number on record
	why     WaitReason   // why it waits without showing a code; "" if it shows one
}

// A pending is a decision of a poll that the store does not have yet.
type pending struct {
	entering bool            // the device is enrolled but has no credentials yet
	before   *binding        // of a known device whose binding changed
	accepted *RuleAcceptance // the rule's acceptance that let it in
}

// A binding identifies the unit that a device's credentials are valid for.
type binding struct {
	clientID, newClientID, key string
	serial                     credentialSerial
}

func (st *standing) binding() binding {
	return binding{st.clientID, st.newClientID, st.key, st.serial}
}

// New returns a Service with the given options. Call Load before the first poll.
func New(o Options) (*Service, error) {
	switch o.Mode {
	case fleet.EnrolByCode, fleet.EnrolByApproval, fleet.EnrolOpen:
	default:
		return nil, fmt.Errorf("unknown enrolment mode %q; choose code, approve or open", o.Mode)
	}
	if o.Keys == nil {
		keys, err := NewSigningKeys(nil, o.Key, o.Log)
		if err != nil {
			return nil, err
		}
		o.Keys = keys
	}
	o = enrolmentDefaults(o)
	if o.NetworkBits4 < 1 || o.NetworkBits4 > 32 || o.NetworkBits6 < 1 || o.NetworkBits6 > 128 {
		return nil,
			fmt.Errorf("a network has 1 to 32 bits of an IPv4 address and 1 to 128 of an IPv6 address, not %d and %d",
				o.NetworkBits4, o.NetworkBits6)
	}
	e := &Service{o: o, keys: o.Keys, codes: newClaimCodes(min(o.MaxWaiting, maxListed)), waiting: newWaitingList(o),
		crowded: make(chan struct{}, 1), seed: maphash.MakeSeed()}
	for i := range e.shards {
		e.shards[i].devices = make(map[fleet.DeviceID]*standing)
	}
	e.polls = writebehind.New(&writebehind.Buffer[fleet.DeviceID, BootPoll]{Away: fleet.ErrUnavailable,
		What: "boot polls", Write: e.savePolls, Merge: mergePolls, Every: o.WriteEvery, Batch: 500, Limit: 200_000,
		Log: o.Log})
	e.challengeKey, e.started = newChallengeKey(), o.Now()
	e.pings = make(map[fleet.DeviceID]*ping)
	e.duplicates = newDuplicates(maxSuspects, e.foundConflict)
	e.conflicts = writebehind.New(&writebehind.Buffer[fleet.DeviceID, struct{}]{Away: fleet.ErrUnavailable,
		What: "conflicts of devices", Write: e.saveConflicts, Every: o.WriteEvery, Batch: 500, Limit: maxSuspects,
		Log: o.Log})
	return e, nil
}

func enrolmentDefaults(o Options) Options {
	o.PublicName = fleet.CleanText(o.PublicName, 60)
	o.MaxWaiting = cmp.Or(o.MaxWaiting, 10_000)
	o.MaxWaitingPerNetwork = cmp.Or(o.MaxWaitingPerNetwork, 500)
	o.NetworkBits4 = cmp.Or(o.NetworkBits4, 24)
	o.NetworkBits6 = cmp.Or(o.NetworkBits6, 64)
	o.MaxDevices = cmp.Or(o.MaxDevices, 1_000_000)
	o.WaitingTTL = cmp.Or(o.WaitingTTL, 24*time.Hour)
	o.WriteEvery = cmp.Or(o.WriteEvery, 200*time.Millisecond)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Events == nil {
		o.Events = new(fleet.Events)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Attempts == nil {
		o.Attempts = attempts.New(attempts.Options{Now: o.Now})
	}
	if o.Connected == nil {
		o.Connected = func(fleet.DeviceID) bool { return false }
	}
	if o.Connection == nil {
		o.Connection = func(fleet.DeviceID) (fleet.Connection, bool) { return fleet.Connection{}, false }
	}
	if o.ByCode == nil {
		o.ByCode = func(fleet.DeviceID) bool { return false }
	}
	if o.Kick == nil {
		o.Kick = func(fleet.DeviceID, fleet.Cause) {}
	}
	return o
}

// Load reads the standing of every device into memory.
func (e *Service) Load(ctx context.Context) error {
	all, err := e.o.Store.Admissions(ctx)
	if err != nil {
		return fmt.Errorf("loading enrolments: %w", err)
	}
	rotation := e.keys.Rotation().ID
	uses, err := e.keys.loadUses(ctx)
	if err != nil {
		return err
	}
	for _, a := range all {
		st := &standing{enrolment: a.Enrolment, clientID: a.ClientID, newClientID: a.NewClientID, refused: a.Refused,
			key: a.Key, mqtt5: a.MQTT5, revoked: a.Revoked,
			serial: credentialSerial(a.Serial), retired: a.Retired, software: a.Software, transport: a.Transport, given: a.Given,
			inventoryELF: unique.Make(a.InventoryELF),
			elf:          unique.Make(a.ELFSHA256), version: unique.Make(a.Version)}
		if !a.InventoryAt.IsZero() {
			st.inventoryAt = a.InventoryAt.Unix()
		}
		if a.ClaimCode != "" && !a.Retired && e.codes.restore(a.ClaimCode, a.Device) {
			r := &request{device: a.Device, code: a.ClaimCode, challenge: a.Challenge, remoteAddr: a.RemoteAddr,
				pinned: a.Enrolment == fleet.EnrolmentEnrolled, stored: true}
			evicted, _, ok := e.waiting.enter(r, a.RemoteAddr, time.Time{})
			if evicted != nil { // the limits were lowered
				e.codes.release(evicted.code)
				e.displace(evicted)
			}
			if ok {
				st.request = r
			} else {
				e.codes.release(a.ClaimCode)
			}
		}
		if generation, ok := uses[a.Device]; ok {
			st.noted = keyNote{rotation, generation}
		}
		s := e.shard(a.Device)
		s.mu.Lock()
		s.devices[a.Device] = st
		s.mu.Unlock()
	}
	return e.loadConflicts(ctx)
}

// Run writes polls behind and forgets devices that no longer wait, until ctx ends. Then it
// writes the rest.
func (e *Service) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { e.polls.Run(ctx) })
	wg.Go(func() { e.conflicts.Run(ctx) })
	wg.Go(func() { e.forgetStale(ctx) })
	wg.Wait()
	return nil
}

// A Running is the build that a device runs, as far as it is known.
type Running struct {
	ELFSHA256, Version string
	// InventoryFresh reports that the stored inventory was read from this very build not long
	// ago: the device's tools need not be listed again.
	InventoryFresh bool
	// Software reports that the latest complete poll named neither a chip nor partitions: no
	// board polls like that.
	Software bool
}

// inventoryTTL is how long an inventory is used before the device's tools are listed again.
const inventoryTTL = 24 * time.Hour

// Running returns the build of the device's latest boot poll.
func (e *Service) Running(id fleet.DeviceID) Running {
	s := e.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.devices[id]
	if st == nil {
		return Running{}
	}
	r := Running{ELFSHA256: st.elf.Value(), Version: st.version.Value(), Software: st.software}
	age := e.o.Now().Sub(time.Unix(st.inventoryAt, 0))
	r.InventoryFresh = r.ELFSHA256 != "" && st.elf == st.inventoryELF && age < inventoryTTL
	return r
}

// Listed records that the device's tools were listed completely and stored.
func (e *Service) Listed(id fleet.DeviceID, elfSHA256 string, at time.Time) {
	s := e.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.devices[id]; st != nil {
		st.inventoryELF, st.inventoryAt = unique.Make(elfSHA256), at.Unix()
	}
}

// Stored returns once the polls so far of the given devices, or of all devices without ids, are
// in the store.
func (e *Service) Stored(ctx context.Context, ids ...fleet.DeviceID) error {
	if len(ids) == 0 {
		return e.polls.Settle(ctx)
	}
	return e.polls.Sync(ctx, ids...)
}

// Runs records the build that a device named on request. From then on the register is right,
// even if the device's latest poll was lost.
func (e *Service) Runs(id fleet.DeviceID, elfSHA256, version string) {
	changed := false
	e.with(id, func(st *standing) {
		elf, v := unique.Make(elfSHA256), unique.Make(version)
		if changed = st.enrolled() && (elf != st.elf || v != st.version); changed {
			st.elf, st.version = elf, v
		}
	})
	if changed {
		e.polls.Put(id, BootPoll{Kind: PollAsked, Device: id, At: e.o.Now(), ELFSHA256: elfSHA256, Version: version,
			changes: true})
	}
}

// Known reports whether the device is enrolled, with any Client-Id.
func (e *Service) Known(id fleet.DeviceID) bool {
	s := e.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.devices[id]
	return st != nil && st.enrolled() && !st.entering()
}

// ChooseTransport sets how the device should connect. It applies to the answer to its next boot poll.
func (e *Service) ChooseTransport(id fleet.DeviceID, t fleet.Transport) {
	e.with(id, func(st *standing) { st.transport = t })
}

// Activate reports whether a device that shows a code has been let in.
func (e *Service) Activate(id fleet.DeviceID, clientID string) bool {
	s := e.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.devices[id]
	if st == nil {
		return false
	}
	clientID = cleanClientID(clientID)
	if r := st.request; r != nil && (r.pinned && clientID == st.newClientID || !r.pinned && clientID == st.clientID) {
		e.waiting.touch(r, e.o.Now())
	}
	return st.enrolled() && st.clientID == clientID
}

// Authenticate checks the credentials of a CONNECT. For known devices it reads memory only. Its
// errors are of type [CredentialsError].
//
// Genuine credentials of a device that is not on record, as after a restore of the database
// from a backup, count as its first poll: see connect.
//
// Credentials that were issued for the device's key are valid only with its proof: [ConnectMessage].
func (e *Service) Authenticate(clientID, username string, password []byte, remoteAddr string) (fleet.DeviceID,
	error) {
	return e.authenticate(clientID, username, password, "", remoteAddr)
}

// AuthenticateToken checks the token of a WebSocket in the same way. The headers name the
// device. It returns the client id that the device has on MQTT.
func (e *Service) AuthenticateToken(id fleet.DeviceID, clientID, token, remoteAddr string) (mqttID string,
	err error) {
	if cleanClientID(clientID) == "" || token == "" {
		return "", CredentialsMalformed
	}
	username, password := splitToken(token)
	mqttID = mqttClientID(id, clientID)
	if _, err = e.authenticate(mqttID, username, []byte(password), claimSocket, remoteAddr); err != nil {
		return "", err
	}
	return mqttID, nil
}

func (e *Service) authenticate(clientID, username string, password []byte, use, remoteAddr string) (fleet.DeviceID,
	error) {
	if strings.HasPrefix(username, mqtt5Username) && use == "" {
		return e.authenticateMQTT5(clientID, username, password)
	}
	password, sent := splitConnectPassword(password)
	ring := e.keys.ring.Load()
	id, client, claim, err := ring.verify(clientID, username, password)
	if err == nil && claim.T != use {
		err = CredentialsForged
	}
	if err != nil {
		return "", err
	}
	var proof provedConnect
	if claim.P != 0 {
		proof = e.checkConnectProof(id, clientID, username, sent)
	}
	note := keyNote{ring.rotation.ID, claim.K}
	bound, arrived, err := e.accept(id, client, claim.N, note, proof)
	if err == CredentialsUnknown {
		if err = e.connect(id, client, claim, remoteAddr); err == nil {
			bound, arrived, err = e.accept(id, client, claim.N, note, proof)
		}
	}
	if arrived { // otherwise the next process would accept the previous ones until the device is back
		e.polls.Put(id, BootPoll{Kind: PollConnect, Device: id, RemoteAddr: remoteAddr, At: e.o.Now()})
		e.storeNews(id, entryTimeout)
	}
	if err == CredentialsOtherClient && bound != "" {
		e.duplicates.refused(id, client, bound, e.o.Now(), e.o.Connection)
	}
	if kind := connectProofEvidence[err]; kind != "" {
		e.refuseKey(BootPoll{Device: id, ClientID: client, RemoteAddr: remoteAddr, At: e.o.Now()}, kind)
	}
	if err != nil {
		return "", err
	}
	return id, nil
}

// accept checks genuine credentials against the device's standing. It returns the bound Client-Id,
// or "" if the other unit does not matter, and whether these credentials are the first use after a
// rotation. The error is [CredentialsUnknown] for a device that has not been let in yet.
func (e *Service) accept(id fleet.DeviceID, client string, generation int32, note keyNote, proof provedConnect) (
	bound string, arrived bool, err error) {
	s := e.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.devices[id]
	switch {
	case st == nil, st.waits(), st.entering():
		return "", false, CredentialsUnknown
	case !st.enrolled():
		return "", false, CredentialsNotEnrolled
	case st.clientID != client && client == st.refused:
		return "", false, CredentialsOtherClient
	case st.clientID != client:
		return st.clientID, false, CredentialsOtherClient
	case !st.serial.accepts(generation):
		return "", false, CredentialsRevoked
	}
	if err = st.proved(proof, e.o.Now()); err != nil {
		return "", false, err
	}
	if generation == st.serial.generation() && st.serial.overlaps() {
		st.serial, arrived = st.serial.settled(), true // the previous ones end
	}
	if note.rotation != 0 && note != st.noted {
		st.noted = note
		e.keys.used(id, note)
	}
	return st.clientID, arrived, nil
}

func (st *standing) enrolled() bool { return st.enrolment == fleet.EnrolmentEnrolled && !st.retired }
func (st *standing) entering() bool { return st.pending != nil && st.pending.entering }
func (st *standing) waits() bool    { return st.enrolment == fleet.EnrolmentWaiting && !st.retired }

func (e *Service) shard(id fleet.DeviceID) *enrolmentShard {
	return &e.shards[maphash.String(e.seed, string(id))%enrolmentShards]
}

// admission returns a device's admission in the form of the store.
func (e *Service) admission(id fleet.DeviceID) (Admission, bool) {
	s := e.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.devices[id]
	if st == nil {
		return Admission{}, false
	}
	a := Admission{Device: id, Enrolment: st.enrolment, ClientID: st.clientID, NewClientID: st.newClientID,
		Refused: st.refused, Key: st.key, MQTT5: st.mqtt5, Revoked: st.revoked, Serial: int32(st.serial), Retired: st.retired,
		Transport: st.transport, Given: st.given,
		Software: st.software, ELFSHA256: st.elf.Value(), Version: st.version.Value(),
		InventoryELF: st.inventoryELF.Value()}
	if st.inventoryAt != 0 {
		a.InventoryAt = time.Unix(st.inventoryAt, 0).UTC()
	}
	if st.request != nil {
		a.ClaimCode, a.Challenge = st.request.code, st.request.challenge
	}
	return a, true
}

// savePolls stores polls with the current standing of the devices, so it does not undo a
// decision made since the poll.
func (e *Service) savePolls(ctx context.Context, batch map[fleet.DeviceID]BootPoll) error {
	records := make([]PollRecord, 0, len(batch))
	for id, p := range batch {
		if a, ok := e.admission(id); ok {
			records = append(records, PollRecord{Poll: p, Admission: a, Accepted: e.acceptance(id)})
		}
	}
	if err := e.o.Store.SavePolls(ctx, records); err != nil {
		return err
	}
	for _, r := range records {
		e.with(r.Poll.Device, func(st *standing) { r.Poll.changes = st.saved(r) || r.Poll.changes })
		switch { // pages may have read the device before the poll was stored
		case r.Poll.changes:
			e.changed(r.Poll.Device)
		case r.Poll.Kind == PollStart && r.Admission.Enrolment == fleet.EnrolmentEnrolled:
			e.announce(fleet.EventVitals, r.Poll.Device) // a restart is on record
		}
	}
	return nil
}

// saved records which part of the standing is now in the store, and reports whether pages must
// be notified.
func (st *standing) saved(r PollRecord) (changed bool) {
	if p := st.pending; p != nil {
		if r.Accepted == p.accepted {
			p.accepted = nil
		}
		if r.Admission.Enrolment == fleet.EnrolmentEnrolled && r.Admission.binding() == st.binding() {
			p.entering, p.before = false, nil
		}
		if *p == (pending{}) {
			st.pending = nil
		}
	}
	if g := r.Poll.Given; g != "" && g != r.Admission.Given {
		st.given, changed = g, true
	}
	return changed
}

func (a *Admission) binding() binding {
	return binding{a.ClientID, a.NewClientID, a.Key, credentialSerial(a.Serial)}
}

func (e *Service) acceptance(id fleet.DeviceID) (a *RuleAcceptance) {
	e.with(id, func(st *standing) {
		if st.pending != nil {
			a = st.pending.accepted
		}
	})
	return a
}

// storeRequest stores the poll of a device that was given a place, for a decision about it.
func (e *Service) storeRequest(id fleet.DeviceID) {
	e.with(id, func(st *standing) {
		if r := st.request; r != nil && r.unsaved != nil {
			e.polls.Put(id, *r.unsaved)
			e.waiting.saved(r)
		}
	})
}

func (e *Service) changed(id fleet.DeviceID) { e.announce(fleet.EventDevice, id) }

func (e *Service) announce(kind fleet.EventKind, id fleet.DeviceID) {
	e.o.Events.Publish(fleet.Event{Kind: kind, At: e.o.Now().UTC(), Device: fleet.DeviceID(strings.Clone(string(id)))})
}
