package enrolment

import (
	"context"
	"crypto/subtle"
	"errors"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/attempts"
)

// proofTries bounds the wrong answers of one device at one address. It limits the work: a key of 256 bits
// cannot be guessed, so the tries are not recorded, and anybody may send them.
var proofTries = attempts.Bound{Name: "serial number", Burst: 30, Each: 3 * time.Second}

const (
	// challengeTTL is how long a device may answer a challenge. A stock device requests a new
	// one at least every two minutes (protocol 1.5).
	challengeTTL = 5 * time.Minute
	// challengeTries is the number of wrong answers after which a challenge is void.
	challengeTries = 20
	// proofTimeout bounds storing a right answer. The device waits 30 seconds.
	proofTimeout = 5 * time.Second
)

// A SerialProof is the activation request of a device with a serial number in its fuses (protocol 1.5).
type SerialProof struct {
	Device     fleet.DeviceID
	ClientID   string
	Serial     string
	Challenge  string
	MAC        []byte
	RemoteAddr string
}

// A serialClaim is the serial number that the device of a request claims, and how long it may prove it.
type serialClaim struct {
	serial   string
	until    time.Time
	tries    int
	used     bool           // the challenge was answered
	proved   bool           // the answer was right; an operator decides
	conflict fleet.DeviceID // the device that proved the same serial number before
}

// mustProve reports whether the device must prove a serial number, even in open mode. That
// holds for a poll that claims a serial number on record, whose device has a key to prove it
// with, and for a CONNECT that lacks a required proof.
func (e *Service) mustProve(p BootPoll) bool {
	return e.o.Serials.Known(p.SerialNumber) || p.why.needsProof()
}

// claim updates the request's claim from a poll. It issues a new challenge if the last one was
// used or is about to expire.
func (e *Service) claim(r *request, p BootPoll) {
	if !e.o.Serials.Known(p.SerialNumber) {
		r.claim = nil
		return
	}
	now := e.o.Now()
	if r.claim == nil || r.claim.serial != p.SerialNumber {
		r.claim = &serialClaim{serial: strings.Clone(p.SerialNumber)}
	}
	if c := r.claim; c.used || c.until.Sub(now) < challengeTTL/2 {
		c.until, c.tries, c.used = now.Add(challengeTTL), 0, false
		r.challenge = newChallenge()
	}
}

// Prove lets in a device that proves the key of its serial number, or marks its request. Any
// outcome but [ProofAccepted] leaves the device's admission unchanged.
func (e *Service) Prove(ctx context.Context, p SerialProof) ProofOutcome {
	if e.o.Serials == nil {
		return ProofUnknown
	}
	return e.o.Serials.count(e.prove(ctx, p))
}

func (e *Service) prove(ctx context.Context, p SerialProof) ProofOutcome {
	if e.Activate(p.Device, p.ClientID) {
		return ProofAccepted
	}
	if !e.o.Serials.Known(p.Serial) {
		return ProofUnknown
	}
	try := attempts.Key{Bound: &proofTries, Subject: string(p.Device) + " " + p.RemoteAddr}
	if !e.o.Attempts.Begin(try) {
		return ProofLimited
	}
	outcome, code := e.answerChallenge(p)
	if outcome == ProofChallenge || outcome == ProofWrong {
		return outcome // the try counts
	}
	e.o.Attempts.Succeeded(try)
	if outcome == ProofAccepted { // the answer is right
		outcome = e.acceptProof(ctx, p, code)
	}
	return outcome
}

// answerChallenge judges an answer. If it is right, the challenge is used up and the results
// are [ProofAccepted] and the code of the request.
func (e *Service) answerChallenge(p SerialProof) (outcome ProofOutcome, code string) {
	e.with(p.Device, func(st *standing) {
		outcome = ProofChallenge
		r := st.asking(cleanClientID(p.ClientID))
		if r == nil || r.claim == nil || r.claim.serial != p.Serial {
			return
		}
		c := r.claim
		switch {
		case subtle.ConstantTimeCompare([]byte(r.challenge), []byte(p.Challenge)) != 1, c.tries >= challengeTries,
			!e.o.Now().Before(c.until):
			return
		case c.proved:
			outcome = ProofMarked
			return
		case c.used:
			return
		}
		right, err := e.o.Serials.check(p.Serial, p.Challenge, p.MAC)
		switch {
		case err != nil:
			e.o.Log.Error("serial number cannot be checked", "serial", p.Serial, "err", err)
			outcome = ProofLater
		case !right:
			c.tries++
			e.o.Serials.countWrong(p.Serial)
			outcome = ProofWrong
		default:
			c.used = true
			outcome, code = ProofAccepted, r.code
		}
	})
	if outcome == "" { // no such device polls
		outcome = ProofChallenge
	}
	return outcome, code
}

// asking returns the request of the Client-Id, or nil if the Client-Id has no request.
func (st *standing) asking(clientID string) *request {
	asks := st.clientID
	if st.enrolment == fleet.EnrolmentEnrolled {
		asks = st.newClientID
	}
	if st.retired || st.request == nil || asks != clientID {
		return nil
	}
	return st.request
}

// acceptProof binds the serial number and acts on a right answer. If storing fails, the
// challenge remains valid and the device answers it again.
func (e *Service) acceptProof(ctx context.Context, p SerialProof, code string) ProofOutcome {
	settle := func(f func(*serialClaim)) {
		e.with(p.Device, func(st *standing) {
			if r := st.request; r != nil && r.code == code && r.claim != nil {
				f(r.claim)
			}
		})
		e.changed(p.Device)
	}
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	err := e.o.Serials.bind(ctx, p.Serial, p.Device)
	if errors.Is(err, fleet.ErrConflict) {
		first, _ := e.o.Serials.Serial(p.Serial)
		settle(func(c *serialClaim) { c.conflict = first.Device })
		return ProofConflict
	}
	if err == nil && !e.o.MarkProofs {
		err = e.decide(ctx, enrolmentActor, "device.prove", p.Device, func(a *Admission) error {
			if a.ClaimCode != code {
				return errNoSuchCode() // the device polled with another Client-Id meanwhile
			}
			return letIn(a)
		})
	}
	switch {
	case err != nil:
		e.o.Log.Error("cannot act on the proof of a serial number", "serial", p.Serial, "device", p.Device, "err", err)
		settle(func(c *serialClaim) { c.used = false })
		return ProofLater
	case e.o.MarkProofs:
		settle(func(c *serialClaim) { c.proved = true })
		e.o.Log.Info("device proved its serial number and waits for approval", "serial", p.Serial, "device", p.Device)
		return ProofMarked
	}
	e.o.Log.Info("device proved its serial number and was let in", "serial", p.Serial, "device", p.Device)
	return ProofAccepted
}
