package campaign

import (
	"fleetd/fleet"
	"time"
)

// hastyGet is how soon after the last change another GET of a link is worth no
// row: nothing else bounds how often a client that has the link asks again.
const hastyGet = time.Second

// fetches takes the evidence of the web server: a GET, bytes, the last byte.
// The device itself says nothing of its download.
func (a *advance) fetches() bool {
	switch a.o.Kind {
	case fleet.EvidenceGet:
		a.enterDownloading()
	case fleet.EvidenceBytes:
		a.enterDownloading() // the GET was not seen, but there was one
		a.kind = fleet.EvidenceGet
	case fleet.EvidenceDownloaded:
		a.enterDownloaded()
	case fleet.EvidenceCut:
		a.d.BytesSent = a.o.Bytes
		a.failAttempt(FailureDownload, a.cutReason())
	default:
		return false
	}
	return true
}

func (a *advance) enterDownloading() {
	at := a.o.At
	if a.d.GetAt == nil {
		a.d.GetAt = &at
	}
	if a.d.SentAt == nil { // the GET overtook the word that the call had left
		a.d.SentAt = &at
	}
	a.enter(DeploymentDownloading, 0)
	a.d.BytesSent = a.o.Bytes
	a.renewStall()
}

// downloading waits for the next byte.
func (a *advance) downloading() {
	switch {
	case a.o.Kind == fleet.EvidenceBytes:
		a.d.BytesSent = max(a.d.BytesSent, a.o.Bytes)
		a.renewStall()
	case a.o.Kind == fleet.EvidenceCut && a.d.Percent != nil:
		a.interrupted()
	case a.o.Kind == fleet.EvidenceGet && a.o.At.Sub(a.d.UpdatedAt) < hastyGet:
		a.d.BytesSent = a.o.Bytes
		a.renewStall()
	case a.fetches():
	case a.timeUp():
		a.failAttempt(FailureDownload, a.stallReason())
	case a.o.Kind == fleet.EvidenceProbe && a.build() == buildTarget:
		a.enter(DeploymentRebooting, a.timers.BootPoll)
		a.explainUnpolled()
	case a.o.Kind == fleet.EvidenceBootPoll && a.o.At.After(*a.d.GetAt) && (a.build() == buildOld ||
		a.build() == buildOther):
		a.failAttempt(FailureDownload, fleet.Because(ReasonRestartedEarly))
	default:
		a.connectivity()
	}
}

// interrupted leaves a device alone that reports on its upgrade: it goes on
// where it was, over the same link, or says that it gave up.
func (a *advance) interrupted() {
	a.record = a.o.At.Sub(a.d.UpdatedAt) >= hastyGet
	a.d.BytesSent = a.o.Bytes
	a.renewStall()
}

// renewStall moves the deadline on with each byte, up to the bound of the
// whole download. Never backwards: observations may overtake each other.
func (a *advance) renewStall() {
	until := a.o.At.Add(a.timers.Stall)
	if last := a.lastCall(); until.After(last) {
		until = last
	}
	if a.d.Deadline == nil || until.After(*a.d.Deadline) {
		a.d.Deadline = &until
	}
	a.changed = true
}

func (a *advance) lastCall() time.Time {
	return a.d.GetAt.Add(a.wholeDownload())
}

func (a *advance) wholeDownload() time.Duration {
	return max(a.timers.Download, 3*a.timers.atSlowest(a.d.ImageSize))
}

func (a *advance) stallReason() fleet.Reason {
	sent, size := a.d.BytesSent, a.d.ImageSize
	if !a.d.Deadline.Before(a.lastCall()) {
		return fleet.Because(ReasonTooSlow, "limit_ms", a.wholeDownload(), "sent_bytes", sent, "image_bytes", size)
	}
	return fleet.Because(ReasonStalled, "idle_ms", a.timers.Stall, "sent_bytes", sent, "image_bytes", size)
}

func (a *advance) cutReason() fleet.Reason {
	sent, size := a.d.BytesSent, a.d.ImageSize
	if a.o.Reason.Is("") {
		return fleet.Because(ReasonBrokeOff, "sent_bytes", sent, "image_bytes", size)
	}
	return fleet.Because(ReasonBrokeOffBecause, "sent_bytes", sent, "image_bytes", size, "why", a.o.Reason)
}

func (a *advance) enterDownloaded() {
	at := a.o.At
	if a.d.GetAt == nil {
		a.d.GetAt = &at
	}
	if a.d.SentAt == nil {
		a.d.SentAt = &at
	}
	a.enter(DeploymentDownloaded, a.timers.Goodbye)
	a.d.BytesSent = max(a.o.Bytes, a.d.ImageSize)
}
