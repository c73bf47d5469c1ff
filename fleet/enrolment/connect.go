package enrolment

import (
	"context"
	"strings"

	"fleetd/fleet"
)

// A stock board polls only when it starts, and goes on connecting with what it has,
// every ten seconds. One that is not on record, as after the database was restored from
// a backup, would be refused for ever, and in no list. So a CONNECT with genuine
// credentials counts as the first poll of such a device: it is let in, listed or refused
// as one that polls and says nothing of itself. It gains nothing that a poll would not.

// A WaitReason is why a device waits that shows no code.
type WaitReason string

// The reasons; "" is that of a device that polled, and shows its code.
const (
	WaitConnects WaitReason = "connects" // it has genuine credentials and is not on record; nothing else lets it in
	// Its credentials are good with the proof of a key that is not on record.
	WaitKey WaitReason = "key_not_on_record"
	// It proved a serial number before, which it can do with a poll alone.
	WaitSerial WaitReason = "serial_not_proved"
)

// needsProof reports whether neither open mode nor a rule lets the device in.
func (w WaitReason) needsProof() bool { return w == WaitKey || w == WaitSerial }

// connect handles a CONNECT with genuine credentials of a device that is not on record,
// or waits. It returns nil once the device's standing is for [Service.accept] to judge.
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
	// Who connects at the same time waits for the same write.
	ctx, cancel := context.WithTimeout(context.Background(), entryTimeout)
	defer cancel()
	err = e.polls.Sync(ctx, id)
	entered := false
	e.with(id, func(st *standing) { entered = !st.entering() })
	if !entered {
		e.o.Log.Warn("a device is not let in before it can be stored; it asks again", "device", id, "err", err)
		return CredentialsLater
	}
	if d.changed {
		e.o.Log.Info("a device that was not on record was let in with the credentials it has", "device", id,
			"remote", remoteAddr)
	}
	return nil
}

// decideConnect is decidePoll for a CONNECT, whose credentials have the generation.
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
		return d, CredentialsOtherClient // the one that asks is not put off by another that keeps connecting
	case generation < st.serial.generation():
		return d, CredentialsRevoked
	}
	// Older credentials of the device are worthless from here on.
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
