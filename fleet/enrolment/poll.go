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

// keptFacts is how many polls keep their bodies while the store is unavailable. Further polls
// are kept without, to bound memory.
const keptFacts = 20_000

const (
	// entryTimeout bounds how long an unknown device waits for its row, and a connecting device
	// for the end of its previous credentials. A device waits 30 seconds for the answer to a
	// poll and ten for a CONNACK, and then tries again.
	entryTimeout = 5 * time.Second
	// newsTimeout bounds how long a known device waits until its new claims are stored, and how
	// long a device waits before it shows its code.
	newsTimeout = 500 * time.Millisecond
)

// Poll answers a boot poll. An error of kind [fleet.ErrUnavailable] means that there is no room for
// another unknown device, or that its row cannot be stored now. Every known device gets an answer.
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

// storeNews waits until the store has the device's new claims, at most for the timeout. An
// unavailable store blocks no known device and no code.
func (e *Service) storeNews(id fleet.DeviceID, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	_ = e.polls.Sync(ctx, id)
}

// storeBinding waits until the store has the binding of the credentials in the answer. If that
// fails, an unknown device gets no answer, nor does another unit that requests the place of a
// known one; a known device gets what it had before.
func (e *Service) storeBinding(p BootPoll, d *pollDecision) error {
	// This does not use the context of the request: others wait for the write, too.
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
	e.o.Log.Warn("a device cannot be stored and is not let in; it tries again", "device", p.Device, "err", err)
	return fleet.Refuse(fleet.ErrUnavailable, "not_stored")
}

// A pollDecision is the result of a poll.
type pollDecision struct {
	answer   PollAnswer
	changed  bool     // pages of the device must be notified
	unlisted bool     // nothing of it goes to the store, at least for now
	refused  bool     // by a rule
	stranger bool     // not proved to be the enrolled device
	unstored bool     // the credentials depend on a binding that the store does not have yet
	judged   bool     // a CONNECT whose device no longer waits
	evicted  *request // lost its place to this one
	// keyEvidence is the reason why the poll of a device with a key got nothing, or "".
	keyEvidence fleet.ConflictEvidence
	bound       string // Client-Id of the enrolled device before the poll; "" if an operator refused another one
}

// withoutClaims returns the poll of a sender that did not prove to be the enrolled device. Its claims
// must not replace those of the device: the board and chip select the image that a campaign sends.
func withoutClaims(p BootPoll) BootPoll {
	return BootPoll{Kind: PollStranger, Device: p.Device, ClientID: p.ClientID, SerialNumber: p.SerialNumber,
		UserAgent: p.UserAgent, RemoteAddr: p.RemoteAddr, At: p.At, Broken: p.Broken, BodyMAC: p.BodyMAC}
}

// mergePolls merges two polls of a device that wait for the store. It returns the newer one, except
// that a poll without claims does not replace claims. The address is that of the latest request.
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
	if st.mqtt5 { // it asks no boot poll: the sender is another device
		d.unlisted = true
		return d, nil
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
		before := bound // not at each poll
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

// firstBoot reports whether the poll names a different build than the previous one. If the previous
// build is unknown, it returns true: an image that may be unconfirmed must not be offered another one.
func (st *standing) firstBoot(p BootPoll) bool {
	if p.ELFSHA256 == "" {
		return st.elf.Value() == "" || p.Version != st.version.Value()
	}
	return p.ELFSHA256 != st.elf.Value()
}

// learn records the build that a poll names and reports whether it changed. A poll whose body did
// not parse names no build; if its version is the known one, the build is the known one, too.
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

// contested reports whether two units were seen to use the device's id. Until an operator
// decides, the credentials stay with the unit that has them: after a restart of fleetd it must
// connect again, and the other may poll first.
func (e *Service) contested(id fleet.DeviceID, at time.Time) bool {
	c, ok := e.duplicates.conflict(id)
	return ok && c.Active(at)
}

// admitWaiting lets a device in if the mode admits all, and otherwise makes it show its code.
// The code belongs to the Client-Id that polled: claiming it lets in the device that showed it,
// not another that has polled under the same id since.
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
		// A device with a key must prove its serial number, even if a rule would let it in.
		if rule := e.o.Rules.match(p); rule != nil && (rule.Action == RuleRefuse || !e.mustProve(p)) {
			e.applyRule(rule, st, p, d)
			return nil
		}
	}
	return e.ask(st, p, d)
}

// enter lets in a waiting device.
func (e *Service) enter(st *standing, p BootPoll, d *pollDecision) {
	e.endRequest(st)
	st.enrolment, st.pending = fleet.EnrolmentEnrolled, &pending{entering: true}
	e.admitBound(st, p, d)
}

// applyRule applies a rule to a waiting device. A refused device is removed and leaves no record.
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

// ask makes the device show its code and issues a new one if it has none.
func (e *Service) ask(st *standing, p BootPoll, d *pollDecision) error {
	r := st.request
	if r != nil && !e.waiting.listed(r) {
		r = nil // another device has taken its place
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

// list finds a place and a code for a device that has none. While places are scarce, a device
// is stored only after its second poll: most invented devices never poll twice.
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

// displace forgets the device that lost its place, unless it has polled since.
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
