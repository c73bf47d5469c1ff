package enrolment

import (
	"context"
	"strings"

	"fleetd/fleet"
)

// A stock board polls only when it starts. Afterwards it reconnects every ten seconds with the
// credentials it has. If the board is not on record, as after a restore of the database from a
// backup, it would be refused forever and listed nowhere. Therefore a CONNECT with genuine
// credentials counts as the first poll of such a device: the device is let in, listed or refused
// like one whose poll contains no claims. It gains nothing that a poll would not give it.

// A WaitReason is the reason why a device waits without showing a code.
type WaitReason string

// The wait reasons; a device that polled and shows its code has "".
const (
	WaitConnects WaitReason = "connects" // it has genuine credentials but is not on record, and nothing else lets it in
	// Its credentials need the proof of a key that is not on record.
	WaitKey WaitReason = "key_not_on_record"
	// It proved a serial number before, which takes a poll.
	WaitSerial WaitReason = "serial_not_proved"
)

// needsProof reports whether neither open mode nor a rule lets the device in.
func (w WaitReason) needsProof() bool { return w == WaitKey || w == WaitSerial }

// connect handles a CONNECT with genuine credentials of a device that is not on record or that
// waits. It returns nil if [Service.accept] can judge the device.
func (e *Service) connect(id fleet.DeviceID, client string, claim credentialClaim, remoteAddr string) error {
	p := BootPoll{Kind: PollConnect, Device: id, ClientID: client, RemoteAddr: remoteAddr, At: e.o.Now(),
		Given: fleet.TransportMQTT, why: WaitConnects}
	switch {
	case claim.P != 0:
		p.why = WaitKey
	case e.o.Serials.bound(id):
		p.why = WaitSerial
	}
	if claim.T == claimSocket {
		p.Given = fleet.TransportWebSocket
	}
	d, err := e.decideConnect(p, claim.N)
	if d.evicted != nil {
		e.displace(d.evicted)
	}
	switch {
	case err != nil:
		return err
	case d.refused:
		return CredentialsRule
	case d.judged:
		return nil
	}
	if !d.unlisted {
		e.polls.Put(id, p)
	}
	if d.changed {
		e.changed(id)
	}
	if !d.unstored {
		return CredentialsNotEnrolled
	}
	// Concurrent CONNECTs of the device wait for the same write.
	ctx, cancel := context.WithTimeout(context.Background(), entryTimeout)
	defer cancel()
	err = e.polls.Sync(ctx, id)
	entered := false
	e.with(id, func(st *standing) { entered = !st.entering() })
	if !entered {
		e.o.Log.Warn("a device cannot be stored and is not let in; it tries again", "device", id, "err", err)
		return CredentialsLater
	}
	if d.changed {
		e.o.Log.Info("a device that was not on record was let in with the credentials it has", "device", id,
			"remote", remoteAddr)
	}
	return nil
}

// decideConnect is decidePoll for a CONNECT. generation is that of its credentials.
func (e *Service) decideConnect(p BootPoll, generation int32) (d pollDecision, err error) {
	s := e.shard(p.Device)
	s.mu.Lock()
	defer s.mu.Unlock()
	st, known := s.devices[p.Device]
	switch {
	case !known && len(s.devices) >= max(1, e.o.MaxDevices/enrolmentShards):
		return d, CredentialsLater
	case !known:
		st = newStanding(p.ClientID)
	case st.entering():
		d.unstored = true
		return d, nil
	case !st.waits():
		d.judged = true
		return d, nil
	case st.clientID != p.ClientID:
		return d, CredentialsOtherClient // a unit that keeps connecting does not replace the request of another
	case generation < st.serial.generation():
		return d, CredentialsRevoked
	}
	// This revokes older credentials of the device.
	st.serial = credentialSerial(generation) << 1
	asked := st.request
	if asked != nil {
		p.Board = asked.board
	}
	if e.admitWaiting(st, p, &d) != nil {
		return d, CredentialsLater
	}
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
	d.unstored = st.entering()
	d.changed = !known || st.request != asked
	return d, nil
}
