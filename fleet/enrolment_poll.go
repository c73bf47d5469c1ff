package fleet

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"unique"
)

// keptFacts is how many polls are kept with their bodies while the store is
// away; more are kept without, to bound memory.
const keptFacts = 20_000

// Poll answers a boot poll. An error of kind [ErrUnavailable] means that there
// is no room for a further unknown device; every known one gets an answer.
func (e *Enrolments) Poll(p BootPoll) (PollAnswer, error) {
	p.ClientID = cleanClientID(p.ClientID)
	answer, changed, err := e.decidePoll(p)
	if err != nil {
		return PollAnswer{}, err
	}
	if e.polls.pending() > keptFacts {
		p.Facts = nil
	}
	if answer.Session == nil && e.Known(p.Device) {
		p = withoutClaims(p)
	}
	e.polls.put(p.Device, p)
	if changed {
		e.changed(p.Device)
	}
	return answer, nil
}

// withoutClaims is the poll of somebody who is not known to be the enrolled
// device: what it says to be and to run must not pass for what the device is.
// Its board and chip pick the image that a campaign sends.
func withoutClaims(p BootPoll) BootPoll {
	return BootPoll{Device: p.Device, ClientID: p.ClientID, SerialNumber: p.SerialNumber, UserAgent: p.UserAgent,
		RemoteAddr: p.RemoteAddr, At: p.At, Broken: p.Broken, BodyMAC: p.BodyMAC}
}

// decidePoll reports, beside the answer, whether views of the device need to
// be told.
func (e *Enrolments) decidePoll(p BootPoll) (answer PollAnswer, changed bool, err error) {
	s := e.shard(p.Device)
	s.mu.Lock()
	defer s.mu.Unlock()
	st, known := s.devices[p.Device]
	if !known {
		if len(s.devices) >= max(1, e.o.MaxDevices/enrolmentShards) {
			return PollAnswer{}, false, errCrowded()
		}
		st = newStanding(p.ClientID)
	}
	asked, enrolment, bound := st.request, st.enrolment, st.clientID
	first := st.firstBoot(p)
	if answer, err = e.admit(st, p); err != nil {
		return PollAnswer{}, false, err
	}
	if !known {
		s.devices[DeviceID(strings.Clone(string(p.Device)))] = st
	}
	answer.FirstBoot = first && answer.Session != nil
	changed = !known || st.request != asked || st.enrolment != enrolment || st.clientID != bound
	if answer.Session != nil || !st.enrolled() {
		changed = st.learn(p) || changed
	}
	return answer, changed, nil
}

func newStanding(clientID string) *standing {
	none := unique.Make("")
	return &standing{enrolment: EnrolmentWaiting, clientID: strings.Clone(clientID),
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

// learn takes the build from a poll, and reports whether it is another one. A
// poll whose body did not parse names no build; if its version is the one
// known, so is the build.
func (st *standing) learn(p BootPoll) bool {
	elf, version := unique.Make(p.ELFSHA256), unique.Make(p.Version)
	if p.ELFSHA256 == "" && (p.Version == "" || version == st.version) {
		return false
	}
	changed := elf != st.elf || version != st.version
	st.elf, st.version = elf, version
	return changed
}

// admit gives the device credentials, a code, or nothing.
func (e *Enrolments) admit(st *standing, p BootPoll) (PollAnswer, error) {
	switch {
	case st.retired || st.enrolment == EnrolmentRejected:
		return PollAnswer{}, nil
	case st.enrolment == EnrolmentWaiting:
		return e.admitWaiting(st, p)
	case p.ClientID == st.clientID:
		return e.session(st, p.Device), nil
	case p.ClientID == "" || p.ClientID == st.refused:
		return PollAnswer{}, nil
	case e.o.Mode == EnrolOpen && !e.mustProve(p) && !e.o.Connected(p.Device):
		e.o.Log.Warn("device joined again with a new Client-Id", "device", p.Device, "remote", p.RemoteAddr)
		e.endRequest(st)
		st.clientID, st.newClientID = strings.Clone(p.ClientID), ""
		st.serial = st.serial.revoked()
		return e.session(st, p.Device), nil
	}
	if p.ClientID != st.newClientID {
		e.endRequest(st)
	}
	answer, err := e.ask(st, p)
	if err == nil {
		st.newClientID = strings.Clone(p.ClientID)
	}
	return answer, err
}

// admitWaiting lets a device in if all are let in, and otherwise has it show
// its code. The code belongs to the Client-Id that asked: who claims it lets in
// the device it was read from, not another that polled under the same id since.
func (e *Enrolments) admitWaiting(st *standing, p BootPoll) (PollAnswer, error) {
	if p.ClientID != st.clientID {
		e.endRequest(st)
		st.clientID = strings.Clone(p.ClientID)
	}
	if e.o.Mode == EnrolOpen && !e.o.ByCode(p.Device) && !e.mustProve(p) {
		e.endRequest(st)
		st.enrolment = EnrolmentEnrolled
		return e.session(st, p.Device), nil
	}
	return e.ask(st, p)
}

func (e *Enrolments) session(st *standing, id DeviceID) PollAnswer {
	return PollAnswer{Session: e.keys.ring.Load().issue(id, st.clientID, st.serial.generation())}
}

// ask makes the device show its code, a new one if it has none yet.
func (e *Enrolments) ask(st *standing, p BootPoll) (PollAnswer, error) {
	r := st.request
	if r == nil {
		code, ok := e.codes.take(DeviceID(strings.Clone(string(p.Device))))
		if !ok {
			select {
			case e.crowded <- struct{}{}:
			default:
			}
			return PollAnswer{}, errCrowded()
		}
		r = &request{code: code, challenge: newChallenge()}
		st.request = r
	}
	e.claim(r, p)
	if r.since.IsZero() {
		r.since = p.At
	}
	r.lastPoll, r.board, r.remoteAddr = p.At, strings.Clone(p.Board), strings.Clone(p.RemoteAddr)
	message := r.code
	if e.o.PublicName != "" {
		message = e.o.PublicName + "\n" + r.code
	}
	return PollAnswer{Activation: &Activation{Code: r.code, Message: message, Challenge: r.challenge}}, nil
}

func (e *Enrolments) endRequest(st *standing) {
	if st.request != nil {
		e.codes.release(st.request.code)
		st.request = nil
	}
}

func errCrowded() error {
	return Errorf(ErrUnavailable, "too_many_waiting", "too many devices wait to be enrolled; try again later")
}

func newChallenge() string {
	b := make([]byte, 16)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
