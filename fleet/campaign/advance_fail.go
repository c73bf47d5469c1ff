package campaign

import (
	"crypto/sha256"
	"encoding/binary"
	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"time"

	"github.com/google/uuid"
)

// longestBackoff bounds the growth of [DeploymentTimers.Backoff].
const longestBackoff = 6 * time.Hour

// failAttempt ends the attempt under way. It is repeated if the class allows
// and attempts are left.
func (a *advance) failAttempt(class FailureClass, reason fleet.Reason) {
	a.act = ActRevoke
	if !class.Retried() || a.d.Failures+1 >= a.plan.MaxAttempts {
		a.finish(stateOfFailure(class), class, reason)
		return
	}
	a.d.Failures++
	wait := backoff(a.timers.Backoff, a.d.Failures)
	a.requeue(class, reason, wait)
	a.kind, a.reason = fleet.EvidenceRetry, reason
}

// requeue puts the deployment back to wait for its next attempt. The class is
// that of the attempt that failed; "" if none did.
func (a *advance) requeue(class FailureClass, reason fleet.Reason, wait time.Duration) {
	a.record, a.changed = true, true
	at := a.o.At.Add(jittered(wait, a.d.ID, a.d.Attempt))
	a.d.State, a.d.Class, a.d.Reason = DeploymentQueued, class, reason
	a.d.NotBefore, a.d.Deadline = &at, nil
	a.d.Probed = false
}

func stateOfFailure(c FailureClass) DeploymentState {
	if c == FailureTimeout {
		return DeploymentTimedOut
	}
	return DeploymentFailed
}

// backoff is four times as long after each failure.
func backoff(first time.Duration, failures int) time.Duration {
	wait := first
	for range failures - 1 {
		if wait *= 4; wait >= longestBackoff {
			return longestBackoff
		}
	}
	return wait
}

// jittered spreads a wait by up to a fifth either way, so that devices which
// failed together do not return together.
func jittered(wait time.Duration, deployment uuid.UUID, attempt int) time.Duration {
	sum := sha256.Sum256(binary.BigEndian.AppendUint32(deployment[:], uint32(attempt)))
	part := float64(binary.BigEndian.Uint32(sum[:]))/(1<<32)*0.4 - 0.2
	return wait + time.Duration(part*float64(wait))
}

// BeginAttempt starts the next attempt of a queued deployment: by push it is
// dispatching until [fleet.EvidenceSent], by pull the poll that is being answered
// told the device. The caller stores d with the event and the link.
func BeginAttempt(d *Deployment, mode firmware.DispatchMode, at time.Time, t DeploymentTimers) DeploymentEvent {
	from := d.State
	d.Attempt++
	d.State, d.SentAt = DeploymentDispatching, nil
	kind := fleet.EvidenceDispatched
	if mode == firmware.ModePull {
		d.State, d.SentAt = DeploymentOffered, &at
		d.Offers++
		kind = fleet.EvidenceOffered
	}
	deadline := at.Add(t.Get)
	d.Deadline, d.NotBefore, d.GetAt, d.FinishedAt = &deadline, nil, nil, nil
	d.Class, d.Reason, d.BytesSent, d.Percent, d.Reconnects = "", fleet.Reason{}, 0, nil, 0
	d.Booted, d.Away, d.Checked, d.Probed = false, false, false, false
	d.UpdatedAt = at
	return DeploymentEvent{ID: uuid.Must(uuid.NewV7()), Deployment: d.ID, At: at, Attempt: d.Attempt, Kind: kind,
		From: from, To: d.State}
}
