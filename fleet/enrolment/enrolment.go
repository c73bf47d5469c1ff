package enrolment

import (
	"context"
	"encoding/json"
	"time"

	"fleetd/fleet"
)

// A PollKind says how far the claims of a poll count.
type PollKind uint8

const (
	PollStart PollKind = iota // from a device that starts
	// PollStranger arrived under the id of an enrolled device from a sender that did not prove
	// to be that device. It contains no claims and is no start of the device.
	PollStranger
	// PollConnect is a CONNECT of a device that is not on record, or the first one with the
	// credentials of a rotation. It contains no claims.
	PollConnect
	// PollAsked is the build that a device named on request. It contains no other claims and no
	// address.
	PollAsked
)

// A BootPoll is the content of a device's OTA check when it starts: headers and body.
// Everything in it is a claim.
type BootPoll struct {
	Kind         PollKind
	Device       fleet.DeviceID
	ClientID     string // Client-Id header: a UUID stored in the device's NVS
	SerialNumber string
	Proof        KeyProof
	UserAgent    string
	Language     string
	RemoteAddr   string
	At           time.Time

	Board, BoardType, Chip               string
	Version, ELFSHA256, Slot, IDFVersion string
	Facts                                json.RawMessage    // the body, or the readable rest of a broken one; may be nil
	Broken                               bool               // the body did not parse, or parses in more than one way
	Salvaged                             []fleet.PollField  // the fields of a broken body that could be read
	Given                                fleet.Transport    // how the answer makes it connect; "" without credentials
	BodyMAC                              string             // mac_address of the body, to compare with Device
	Layout                               *fleet.FlashLayout // nil if the body has none

	changes bool       // pages and the gate must read the device again once this is stored
	why     WaitReason // of a PollConnect that no rule can let in; "" if one can
}

// The fields that can be read from a boot poll with a broken body.
const (
	PollChip       fleet.PollField = "chip"
	PollVersion    fleet.PollField = "version"
	PollBuild      fleet.PollField = "build"
	PollPartitions fleet.PollField = "partitions"
	PollSlot       fleet.PollField = "slot"
	PollBoard      fleet.PollField = "board"
)

// A PollAnswer is the content of the answer to a boot poll. The zero value is empty.
type PollAnswer struct {
	Activation *Activation     // set while the device waits to be enrolled
	Session    *Credentials    // set for an enrolled device
	Transport  fleet.Transport // of the session
	// KeyChallenge is set for a device that must prove its key and then poll again.
	KeyChallenge string
	// FirstBoot reports that the poll names a different build than the previous one: the image
	// waits for this very answer before the device confirms it.
	FirstBoot bool
	Offer     *fleet.FirmwareOffer // set if the device should install firmware now
}

// An Activation makes the device show a code and poll again.
type Activation struct {
	Code, Message, Challenge string
}

// Credentials let one device, with one Client-Id, connect to the broker.
type Credentials struct {
	ClientID, Username, Password, PublishTopic string
	Token                                      string // for a WebSocket, in place of the others; "" for none
	WithProof                                  bool   // valid only with a proof of the device's key: [ConnectMessage]
}

// An Admission is the part of a device that enrolment needs without reading the database. All
// admissions are held in memory.
type Admission struct {
	Device       fleet.DeviceID
	Enrolment    fleet.Enrolment
	MQTT5        bool   // an operator created it: it has no Client-Id and asks no boot poll
	ClientID     string // bound Client-Id; "" before the first poll
	NewClientID  string // another Client-Id that polled and awaits an operator's decision
	Refused      string // Client-Id whose request an operator refused last; polls do not change it
	Key          string // public key that the device proves, base64; "" if it has none
	Serial       int32  // which credentials are valid, see credentialSerial; opaque to the store
	ClaimCode    string
	Challenge    string
	RemoteAddr   string // of a device with a code, as it last polled; "" for others
	Retired      bool
	Revoked      bool            // with MQTT5: no credentials were issued since the latest were revoked
	Transport    fleet.Transport // how it should connect; "" is MQTT
	Given        fleet.Transport // how the answer to its latest stored poll made it connect
	Software     bool            // see [Running]; the store derives it from the latest poll
	ELFSHA256    string          // running build of the latest poll
	Version      string
	InventoryELF string
	InventoryAt  time.Time
}

// A PollRecord is a boot poll to store, with the resulting admission. Records are coalesced:
// only the newest one of a device is written.
type PollRecord struct {
	Poll      BootPoll
	Admission Admission
	Accepted  *RuleAcceptance // set until it is stored that a rule let the device in
}

// Store stores admissions and the facts of polls.
type Store interface {
	Admissions(ctx context.Context) ([]Admission, error)
	// SavePolls creates or updates the polled devices: facts, firmware history, last poll, and
	// the admission (enrolment, both Client-Ids, serial, code, challenge).
	SavePolls(ctx context.Context, polls []PollRecord) error
	// ForgetWaiting deletes and returns the devices that wait, were never enrolled and have not
	// polled since before.
	ForgetWaiting(ctx context.Context, before time.Time) ([]fleet.DeviceID, error)
	// DropWaiting deletes those of the given devices that wait and were never enrolled.
	DropWaiting(ctx context.Context, ids []fleet.DeviceID) error
	// CreateDevice stores a device of the kind [fleet.DeviceMQTT5], with its audit entry. The error
	// is [fleet.ErrConflict] if the device exists.
	CreateDevice(ctx context.Context, by fleet.Principal, a Admission, name string, at time.Time) error
	// SaveAdmission stores an operator's decision about a device with its audit entry. action
	// is "device.claim", "device.approve", "device.reject", ...
	SaveAdmission(ctx context.Context, by fleet.Principal, action string, a Admission, at time.Time) error
}
