package enrolment

import (
	"context"
	"crypto/hmac"
	"errors"
	"log/slog"
	"strings"

	"fleetd/fleet"
)

// A device of MCP over MQTT asks no boot poll: an operator creates it, and enters the credentials
// that fleetd shows once into the device. Its MQTT client id is its device id. Like a board's
// credentials they derive from the server's key and the device's generation of credentials, so
// nothing secret is stored: new ones are of the next generation, which revokes the previous ones.

// mqtt5Username begins the username, which names the device: credentials that are used under the
// client id of another device are recognised.
const mqtt5Username = "mcp."

// claimMQTT5 is the purpose named by the claim in such a username.
const claimMQTT5 = "mqtt5"

// MQTT5Credentials let one device of MCP over MQTT connect.
type MQTT5Credentials struct {
	Device                       fleet.DeviceID
	ClientID, Username, Password string
}

// LogValue keeps the password out of logs.
func (c MQTT5Credentials) LogValue() slog.Value { return slog.StringValue(c.ClientID) }

// String keeps the password out of errors.
func (c MQTT5Credentials) String() string { return c.ClientID }

// CreateMQTT5 creates a device of MCP over MQTT and returns its credentials.
func (e *Service) CreateMQTT5(ctx context.Context, by fleet.Principal, id, name string) (MQTT5Credentials, error) {
	if err := by.May(fleet.RoleAdmin, "create_device"); err != nil {
		return MQTT5Credentials{}, err
	}
	device, err := fleet.ParseMQTT5ID(id)
	if err == nil {
		name, err = fleet.CleanLine("name", name, fleet.MaxNameLength)
	}
	if err != nil {
		return MQTT5Credentials{}, err
	}
	if err := e.polls.Lock(ctx); err != nil { // a poll under the same id would be stored meanwhile
		return MQTT5Credentials{}, err
	}
	defer e.polls.Unlock()
	a := Admission{Device: device, Enrolment: fleet.EnrolmentEnrolled, MQTT5: true}
	st := newStanding("")
	st.enrolment, st.mqtt5 = fleet.EnrolmentEnrolled, true
	if err := e.place(device, st); err != nil {
		return MQTT5Credentials{}, err
	}
	if err := e.o.Store.CreateDevice(ctx, by, a, name, e.o.Now().UTC()); err != nil {
		e.displaceMQTT5(device, st)
		if errors.Is(err, fleet.ErrConflict) {
			err = errDeviceExists(device)
		}
		return MQTT5Credentials{}, err
	}
	e.with(device, func(st *standing) { st.pending = nil })
	e.changed(device)
	return e.mqtt5Credentials(a), nil
}

// place reserves the id. The device is not let in before the store has it.
func (e *Service) place(id fleet.DeviceID, st *standing) error {
	s := e.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.devices[id] != nil:
		return errDeviceExists(id)
	case len(s.devices) >= max(1, e.o.MaxDevices/enrolmentShards):
		return errCrowded()
	}
	st.pending = &pending{entering: true}
	s.devices[fleet.DeviceID(strings.Clone(string(id)))] = st
	return nil
}

func errDeviceExists(id fleet.DeviceID) error {
	return fleet.Refuse(fleet.ErrConflict, "device_exists", "device", id)
}

func (e *Service) displaceMQTT5(id fleet.DeviceID, st *standing) {
	s := e.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.devices[id] == st {
		delete(s.devices, id)
	}
}

// ReissueMQTT5 returns new credentials of the device. The previous ones are revoked at once, and
// the device's connection ends. version is that of [MQTT5State], as the operator saw it; 0 replaces
// whatever credentials are current.
func (e *Service) ReissueMQTT5(ctx context.Context, by fleet.Principal, id fleet.DeviceID, version int32) (
	c MQTT5Credentials, err error) {
	err = e.decide(ctx, by, "device.reissue", id, func(a *Admission) error {
		if err := a.checkMQTT5(version); err != nil {
			return err
		}
		a.Serial, a.Revoked = int32(credentialSerial(a.Serial).revoked()), false
		c = e.mqtt5Credentials(*a)
		return nil
	})
	if err != nil {
		return MQTT5Credentials{}, err
	}
	return c, nil
}

// RevokeMQTT5 revokes the device's credentials at once and ends its connection, until new ones are
// issued. version is that of ReissueMQTT5.
func (e *Service) RevokeMQTT5(ctx context.Context, by fleet.Principal, id fleet.DeviceID, version int32) error {
	return e.decide(ctx, by, "device.revoke", id, func(a *Admission) error {
		if err := a.checkMQTT5(version); err != nil {
			return err
		}
		a.Serial, a.Revoked = int32(credentialSerial(a.Serial).revoked()), true
		return nil
	})
}

func (a *Admission) checkMQTT5(version int32) error {
	switch {
	case !a.MQTT5:
		return fleet.Refuse(fleet.ErrConflict, "not_mqtt5", "device", a.Device)
	case a.Enrolment != fleet.EnrolmentEnrolled:
		return errNotEnrolled(a.Device)
	case version != 0 && version != a.mqtt5State().Version:
		return fleet.Refuse(fleet.ErrConflict, "credentials_changed", "device", a.Device)
	}
	return nil
}

// MQTT5State is the state of the credentials of a device of MCP over MQTT.
type MQTT5State struct {
	Version int32 // it changes when they are replaced or revoked; never 0
	Revoked bool  // and not replaced since
}

// MQTT5State returns the state of the device's credentials, or false if it is no device of MCP over
// MQTT.
func (e *Service) MQTT5State(id fleet.DeviceID) (MQTT5State, bool) {
	a, ok := e.admission(id)
	return a.mqtt5State(), ok && a.MQTT5
}

func (a *Admission) mqtt5State() MQTT5State {
	return MQTT5State{credentialSerial(a.Serial).generation() + 1, a.Revoked}
}

func (e *Service) mqtt5Credentials(a Admission) MQTT5Credentials {
	ring := e.keys.ring.Load()
	claim := credentialClaim{V: 1, N: credentialSerial(a.Serial).generation(), K: ring.signs, T: claimMQTT5,
		D: string(a.Device)}
	c := MQTT5Credentials{Device: a.Device, ClientID: string(a.Device), Username: mqtt5Username + claim.text()}
	c.Password = ring.keys[ring.signs].password(c.ClientID, c.Username)
	return c
}

// authenticateMQTT5 checks the credentials of a CONNECT whose username fleetd made for a device of
// MCP over MQTT.
func (e *Service) authenticateMQTT5(clientID, username string, password []byte) (fleet.DeviceID, error) {
	claim := readClaim(strings.TrimPrefix(username, mqtt5Username))
	ring := e.keys.ring.Load()
	s, ok := ring.keys[claim.K]
	switch {
	case claim.V != 1 || claim.T != claimMQTT5 || claim.D == "":
		return "", CredentialsMalformed
	case !ok && claim.K > max(ring.signs, ring.rotation.ToGeneration):
		return "", CredentialsUnknownKey
	case !ok:
		return "", CredentialsOldKey
	case !hmac.Equal([]byte(s.password(claim.D, username)), password):
		return "", CredentialsForged
	case claim.D != clientID:
		return "", CredentialsOtherDevice
	}
	id := fleet.DeviceID(claim.D)
	if _, ok := e.MQTT5State(id); !ok {
		return "", CredentialsUnknown // a signed claim without such a device, as after a restore
	}
	if _, _, err := e.accept(id, "", claim.N, keyNote{ring.rotation.ID, claim.K}, provedConnect{}); err != nil {
		return "", err
	}
	return id, nil
}

// AuthenticateCertificate checks a CONNECT with a certificate that an authority of the operator signed,
// instead of user name and password. The certificate's name is the id of a device of MCP over MQTT that
// an operator created, and its client id. A certificate creates no device, and is refused while
// the device's credentials are revoked. Its errors are those of [Service.Authenticate].
func (e *Service) AuthenticateCertificate(clientID, name string) (fleet.DeviceID, error) {
	if name != clientID {
		return "", CredentialsOtherDevice
	}
	id, err := fleet.DeviceID(name), error(CredentialsUnknown)
	e.with(id, func(st *standing) {
		switch {
		case !st.mqtt5, st.entering():
		case !st.enrolled():
			err = CredentialsNotEnrolled
		case st.revoked:
			err = CredentialsRevoked
		default:
			err = nil
		}
	})
	if err != nil {
		return "", err
	}
	return id, nil
}
