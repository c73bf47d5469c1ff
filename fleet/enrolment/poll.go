package enrolment

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"
	"time"
	"unique"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/redact"
)

// keptFacts is how many polls are kept with their bodies while the store is
// away; more are kept without, to bound memory.
const keptFacts = 20_000

const (
	// entryTimeout bounds how long an unknown device waits for its row, and one that
	// connects for the end of the credentials before. It waits 30 seconds for the answer to
	// a poll, and ten for a CONNACK, and tries again.
	entryTimeout = 5 * time.Second
	// newsTimeout bounds how long a known one waits for what it says that is new, and one
	// that is to show a code for that.
	newsTimeout = 500 * time.Millisecond
)

// Poll answers a boot poll. An error of kind [fleet.ErrUnavailable] means that there
// is no room for a further unknown device, or that its row cannot be stored now; every
// known one gets an answer.
func (e *Service) Poll(p BootPoll) (PollAnswer, error) {
	p.ClientID = cleanClientID(p.ClientID)
	p.Facts, p.UserAgent = redact.ClientID(p.Facts, p.ClientID), redact.Text(p.UserAgent, p.ClientID)
	if e.hold(p) {
		return PollAnswer{}, nil
	}
	d, err := e.decidePoll(p)
	if d.evicted != nil {
		e.displace(d.evicted)
	}
	if err != nil {
		return PollAnswer{}, err
	}
	if d.bound != "" {
		e.duplicates.polled(p, d.bound, e.o.Connection)
	}
	if d.keyEvidence != "" {
		e.refuseKey(p, d.keyEvidence)
		return PollAnswer{}, nil
	}
	if d.unlisted || d.refused || d.answer.KeyChallenge != "" && !d.changed {
		return d.answer, nil
	}
	if e.polls.Pending() > keptFacts {
		p.Facts = nil
	}
	if d.stranger {
		p = withoutClaims(p)
	}
	p.Proof = KeyProof{}
	p.Given, p.changes = d.answer.Transport, d.changed
	e.polls.Put(p.Device, p)
	if d.changed {
		e.changed(p.Device)
	}
	switch {
	case d.answer.Session != nil && d.unstored:
		err = e.storeBinding(p, &d)
	case d.changed:
		e.storeNews(p.Device, newsTimeout)
	}
	return d.answer, err
}

// storeNews returns when the store has what is new of the device, or after the timeout: a
// store that is away stops no known device, and no code from being shown.
func (e *Service) storeNews(id fleet.DeviceID, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	_ = e.polls.Sync(ctx, id)
}

// storeBinding returns when the store has what the credentials of the answer are good
// by. Where it does not, an unknown device gets no answer, as another unit that asks
// for the place of a known one; a known device has what it had before.
func (e *Service) storeBinding(p BootPoll, d *pollDecision) error {
	// Not under the context of the request: others wait for the write, too.
	ctx, cancel := context.WithTimeout(context.Background(), entryTimeout)
	defer cancel()
	err := e.polls.Sync(ctx, p.Device)
	first := d.answer.FirstBoot
	d.answer = PollAnswer{}
	e.with(p.Device, func(st *standing) {
		if st.pending != nil && st.pending.before != nil {
			before := *st.pending.before
			st.clientID, st.newClientID, st.key, st.serial = before.clientID, before.newClientID, before.key, before.serial
			st.pending = nil
		}
		if st.enrolled() && !st.entering() && st.clientID == p.ClientID {
			d.answer = e.session(st, p.Device)
			d.answer.FirstBoot = first
			st.answered(p)
		}
	})
	if d.answer.Session != nil {
		return nil
	}
	e.o.Log.Warn("a device is not let in before it can be stored; it asks again", "device", p.Device, "err", err)
	return fleet.Refuse(fleet.ErrUnavailable, "not_stored")
}

// A pollDecision is what came of a poll.
type pollDecision struct {
	answer   PollAnswer
	changed  bool     // views of the device need to know
	unlisted bool     // nothing of it goes to the store, at least not yet
	refused  bool     // by a rule
	stranger bool     // not known to be the enrolled device
	unstored bool     // the credentials are good by what the store does not have yet
	judged   bool     // a CONNECT: the device does not wait any more
	evicted  *request // lost its place to this one
	// why the poll of a device with a key got nothing; "" if it did not
	keyEvidence fleet.ConflictEvidence
	bound       string // Client-Id of the enrolled device before the poll; "" if another was refused by an operator
}

// withoutClaims is the poll of somebody who is not known to be the enrolled
// device: what it says to be and to run must not pass for what the device is.
// Its board and chip pick the image that a campaign sends.
func withoutClaims(p BootPoll) BootPoll {
	return BootPoll{Kind: PollStranger, Device: p.Device, ClientID: p.ClientID, SerialNumber: p.SerialNumber,
		UserAgent: p.UserAgent, RemoteAddr: p.RemoteAddr, At: p.At, Broken: p.Broken, BodyMAC: p.BodyMAC}
}

// mergePolls is what is stored of two polls of a device that wait to be: the
// newer one, but what holds no claims does not take the place of what does. The
// address is that of the latest request.
func mergePolls(older, newer BootPoll) BootPoll {
	merged := newer
	switch {
	case newer.Kind == PollStart:
	case newer.Kind == PollAsked:
		merged = older
		merged.ELFSHA256, merged.Version = newer.ELFSHA256, newer.Version
		if older.Kind != PollStart {
			merged.Kind = PollAsked
		}
	case older.Kind == PollStart, older.Kind == PollAsked, newer.Kind == PollStranger:
		merged = older
		merged.RemoteAddr = newer.RemoteAddr
	}
	merged.changes = newer.changes || older.changes
	return merged
}

func (e *Service) decidePoll(p BootPoll) (d pollDecision, err error) {
	s := e.shard(p.Device)
	s.mu.Lock()
	defer s.mu.Unlock()
	st, known := s.devices[p.Device]
	if !known {
		if len(s.devices) >= max(1, e.o.MaxDevices/enrolmentShards) {
			return d, errCrowded()
		}
		st = newStanding(p.ClientID)
	}
	asked, enrolment, bound := st.request, st.enrolment, st.binding()
	first := st.firstBoot(p)
	if st.enrolled() && p.ClientID != st.refused {
		d.bound = bound.clientID
	}
	if err = e.admit(st, p, &d); err != nil {
		return d, err
	}
	if enrolment == fleet.EnrolmentEnrolled && st.pending == nil && d.answer.Session != nil && st.binding() != bound {
		before := bound // not each poll's
		st.pending = &pending{before: &before}
	}
	d.stranger = st.enrolled() && d.answer.Session == nil
	d.unstored = st.pending != nil
	if d.refused {
		if known {
			delete(s.devices, p.Device)
			e.waiting.forgotten(p.Device)
		}
		return d, nil
	}
	if !known {
		s.devices[fleet.DeviceID(strings.Clone(string(p.Device)))] = st
	}
	d.answer.FirstBoot = first && d.answer.Session != nil
	if d.answer.Session != nil && !d.unstored {
		st.answered(p)
	}
	d.changed = !known || st.request != asked || st.enrolment != enrolment || st.clientID != bound.clientID
	if d.answer.Session != nil || !st.enrolled() {
		d.changed = st.learn(p) || d.changed
	}
	return d, nil
}

func newStanding(clientID string) *standing {
	none := unique.Make("")
	return &standing{enrolment: fleet.EnrolmentWaiting, clientID: strings.Clone(clientID),
		elf: none, version: none, inventoryELF: none}
}

// firstBoot reports whether the poll names another build than the one before.
// Where that one is not known, it might: what is not confirmed yet must not be
// offered anything.
func (st *standing) firstBoot(p BootPoll) bool {
	if p.ELFSHA256 == "" {
		return st.elf.Value() == "" || p.Version != st.version.Value()
	}
	return p.ELFSHA256 != st.elf.Value()
}

// learn records the build that a poll names, and reports whether it is another one. A
// poll whose body did not parse names no build; if its version is the one
// known, so is the build.
func (st *standing) learn(p BootPoll) bool {
	if !p.Broken {
		st.software = p.Chip == "" && p.Layout == nil
	}
	hardware, claims := unique.Make(p.Board+"\x00"+p.Chip), p.Board != "" || p.Chip != ""
	other := claims && hardware != st.hardware
	if claims {
		st.hardware = hardware
	}
	elf, version := unique.Make(p.ELFSHA256), unique.Make(p.Version)
	if p.ELFSHA256 == "" && (p.Version == "" || version == st.version) {
		return other
	}
	changed := other || elf != st.elf || version != st.version
	st.elf, st.version = elf, version
	return changed
}

// admit gives the device credentials, a code, or nothing.
func (e *Service) admit(st *standing, p BootPoll, d *pollDecision) error {
	switch {
	case st.retired || st.enrolment == fleet.EnrolmentRejected:
		return nil
	case st.enrolment == fleet.EnrolmentWaiting:
		return e.admitWaiting(st, p, d)
	case p.ClientID == st.clientID:
		e.admitBound(st, p, d)
		return nil
	case p.ClientID == "" || p.ClientID == st.refused:
		return nil
	case e.o.Mode == fleet.EnrolOpen && st.key == "" && !e.mustProve(p) && !e.o.Connected(p.Device) &&
		!e.contested(p.Device, p.At):
		e.o.Log.Warn("device joined again with a new Client-Id", "device", p.Device, "remote", p.RemoteAddr)
		e.endRequest(st)
		st.clientID, st.newClientID, st.key = strings.Clone(p.ClientID), "", ""
		st.serial = st.serial.revoked()
		d.answer = e.session(st, p.Device)
		return nil
	}
	if p.ClientID != st.newClientID {
		e.endRequest(st)
	}
	err := e.ask(st, p, d)
	if err == nil {
		st.newClientID = strings.Clone(p.ClientID)
	}
	return err
}

// contested reports whether two units were seen to use the device's id. Until an
// operator decides, the credentials stay with the one that has them: after a
// restart of fleetd it has to connect again, and the other may poll first.
func (e *Service) contested(id fleet.DeviceID, at time.Time) bool {
	c, ok := e.duplicates.conflict(id)
	return ok && c.Active(at)
}

// admitWaiting lets a device in if all are let in, and otherwise has it show
// its code. The code belongs to the Client-Id that asked: who claims it lets in
// the device it was read from, not another that polled under the same id since.
func (e *Service) admitWaiting(st *standing, p BootPoll, d *pollDecision) error {
	if p.ClientID != st.clientID {
		e.endRequest(st)
		st.clientID = strings.Clone(p.ClientID)
	}
	if e.o.Mode == fleet.EnrolOpen && !e.o.ByCode(p.Device) && !e.mustProve(p) {
		e.enter(st, p, d)
		return nil
	}
	if e.o.Mode != fleet.EnrolOpen {
		// A device with a key to prove its serial number with does so, whoever
		// else a rule would let in.
		if rule := e.o.Rules.match(p); rule != nil && (rule.Action == RuleRefuse || !e.mustProve(p)) {
			e.applyRule(rule, st, p, d)
			return nil
		}
	}
	return e.ask(st, p, d)
}

// enter lets in a device that waits.
func (e *Service) enter(st *standing, p BootPoll, d *pollDecision) {
	e.endRequest(st)
	st.enrolment, st.pending = fleet.EnrolmentEnrolled, &pending{entering: true}
	e.admitBound(st, p, d)
}

// applyRule does with a device that waits what a rule says. What a rule refuses
// is forgotten, and so never known.
func (e *Service) applyRule(rule *activeRule, st *standing, p BootPoll, d *pollDecision) {
	if rule.Action == RuleRefuse {
		e.endRequest(st)
		d.refused = true
		return
	}
	if rule.Transport != "" {
		st.transport = rule.Transport
	}
	e.enter(st, p, d)
	st.pending.accepted = &RuleAcceptance{ID: uuid.Must(uuid.NewV7()), Rule: rule.ID, Name: rule.Name, Tags: rule.Tags,
		Transport: rule.Transport, At: p.At.UTC()}
	e.o.Log.Info("device let in by a rule", "device", p.Device, "rule", rule.Name, "remote", p.RemoteAddr)
}

func (e *Service) session(st *standing, id fleet.DeviceID) PollAnswer {
	claim := credentialClaim{N: st.serial.generation()}
	transport := cmp.Or(st.transport, fleet.TransportMQTT)
	if st.key != "" { // the included firmware, which has no WebSocket
		claim.P, transport = 1, fleet.TransportMQTT
	}
	return PollAnswer{Session: e.keys.ring.Load().issue(id, st.clientID, claim), Transport: transport}
}

// ask makes the device show its code, a new one if it has none yet.
func (e *Service) ask(st *standing, p BootPoll, d *pollDecision) error {
	r := st.request
	if r != nil && !e.waiting.listed(r) {
		r = nil // another device has its place by now
	}
	if r == nil {
		var err error
		if r, err = e.list(st, p, d); err != nil {
			return err
		}
		st.request = r
	} else {
		e.waiting.touch(r, p.At)
		e.waiting.saved(r)
	}
	e.claim(r, p)
	if r.lastPoll.IsZero() || p.Kind != PollConnect {
		r.why = p.why
	}
	if r.since.IsZero() {
		r.since = p.At
	}
	r.lastPoll, r.board, r.remoteAddr = p.At, strings.Clone(p.Board), strings.Clone(p.RemoteAddr)
	message := r.code
	if e.o.PublicName != "" {
		message = e.o.PublicName + "\n" + r.code
	}
	d.answer = PollAnswer{Activation: &Activation{Code: r.code, Message: message, Challenge: r.challenge}}
	return nil
}

// list finds a place and a code for a device that has none. While places are
// scarce a device goes to the store when it asks a second time: most that are
// made up never do.
func (e *Service) list(st *standing, p BootPoll, d *pollDecision) (*request, error) {
	r := &request{device: fleet.DeviceID(strings.Clone(string(p.Device))), challenge: newChallenge(),
		pinned: st.enrolment == fleet.EnrolmentEnrolled}
	evicted, crowded, ok := e.waiting.enter(r, p.RemoteAddr, p.At)
	if evicted != nil {
		e.codes.release(evicted.code)
		d.evicted = evicted
	}
	if ok {
		r.code, ok = e.codes.issue(r.device)
	}
	if !ok {
		e.waiting.leave(r)
		select {
		case e.crowded <- struct{}{}:
		default:
		}
		return nil, errCrowded()
	}
	if crowded && !r.pinned {
		p.Facts, p.Layout = nil, nil
		r.unsaved, d.unlisted = &p, true
	} else {
		e.waiting.saved(r)
	}
	return r, nil
}

func (e *Service) endRequest(st *standing) {
	if st.request != nil {
		if e.waiting.leave(st.request) {
			e.codes.release(st.request.code)
		}
		st.request = nil
	}
}

// displace forgets the device that lost its place, unless it has asked since.
func (e *Service) displace(r *request) {
	s := e.shard(r.device)
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.devices[r.device]; st != nil && st.request == r && st.enrolment == fleet.EnrolmentWaiting {
		delete(s.devices, r.device)
	}
}

func errCrowded() error {
	return fleet.Refuse(fleet.ErrUnavailable, "too_many_waiting")
}

func newChallenge() string {
	b := make([]byte, 16)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
