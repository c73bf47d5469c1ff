package enrolment

import (
	"context"
	"crypto/subtle"
	"errors"
	"strings"
	"time"

	"fleetd/fleet"
)

const (
	// challengeTTL is how long a device may answer a challenge. A stock device
	// asks for a new one at least every two minutes (protocol 1.5).
	challengeTTL = 5 * time.Minute
	// challengeTries is how many wrong answers a challenge survives.
	challengeTries = 20
	// proofTimeout bounds the storing of a right answer. The device waits 30s.
	proofTimeout = 5 * time.Second
)

// A SerialProof is what a device with a serial number in its fuses sends to be
// activated (protocol 1.5).
type SerialProof struct {
	Device     fleet.DeviceID
	ClientID   string
	Serial     string
	Challenge  string
	MAC        []byte
	RemoteAddr string
}

// A serialClaim is the part of a request that a serial number plays: which one
// the device claims, and until when it may prove it.
type serialClaim struct {
	serial   string
	until    time.Time
	tries    int
	used     bool           // the challenge was answered
	proved   bool           // rightly; an operator decides
	conflict fleet.DeviceID // which has proved the same serial number before
}

// mustProve reports whether the poll claims a serial number that is on record:
// such a device has a key to prove it with, in open mode too. A CONNECT that should
// prove more than it can is one, too.
func (e *Service) mustProve(p BootPoll) bool {
	return e.o.Serials.Known(p.SerialNumber) || p.why.needsProof()
}

// claim brings the request's claim up to date with a poll, with a fresh
// challenge if the one before was used or is about to expire.
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

// Prove lets a device in, or marks its request, that proves to hold the key of
// its serial number. Each outcome but an acceptance leaves its standing.
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
	from, now := string(p.Device)+" "+p.RemoteAddr, e.o.Now()
	if !e.proofs.allowed(from, now) {
		return ProofLimited
	}
	outcome, code := e.answerChallenge(p)
	switch outcome {
	case ProofChallenge, ProofWrong:
		e.proofs.failed(from, now)
	case ProofAccepted: // the answer is right
		outcome = e.acceptProof(ctx, p, code)
	}
	return outcome
}

// answerChallenge judges an answer and uses the challenge up if it is right:
// [ProofAccepted] then, with the code of the request it belongs to.
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
	if outcome == "" { // no such device asks
		outcome = ProofChallenge
	}
	return outcome, code
}

// asking returns the request that the Client-Id makes, nil if it makes none.
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

// acceptProof binds the serial number and acts on a right answer. What cannot
// be stored now leaves the challenge as it was: the device answers it again.
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
				return errNoSuchCode() // it asked with another Client-Id meanwhile
			}
			return letIn(a)
		})
	}
	switch {
	case err != nil:
		e.o.Log.Error("proof of a serial number not acted on", "serial", p.Serial, "device", p.Device, "err", err)
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
