package enrolment

import (
	"context"
	"encoding/json"
	"time"

	"fleetd/fleet"
)

// A PollKind is what a poll is worth.
type PollKind uint8

const (
	PollStart PollKind = iota // of a device that starts
	// PollStranger came under the id of an enrolled device from somebody who is not
	// known to be it. It holds no claims, and is no start of the device.
	PollStranger
	// PollConnect is a CONNECT of a device that is not on record, or the first one with
	// the credentials of a rotation: it knows of no claims.
	PollConnect
	// PollAsked is the build that a device named when it was asked. It holds no other
	// claims, and no address.
	PollAsked
)

// A BootPoll is what a device says when it starts: the headers and body of its
// OTA check. Everything in it is a claim.
type BootPoll struct {
	Kind         PollKind
	Device       fleet.DeviceID
	ClientID     string // Client-Id header: a UUID kept in the device's NVS
	SerialNumber string
	Proof        KeyProof
	UserAgent    string
	Language     string
	RemoteAddr   string
	At           time.Time

	Board, BoardType, Chip               string
	Version, ELFSHA256, Slot, IDFVersion string
	Facts                                json.RawMessage    // the body, or what is left of a broken one; may be nil
	Broken                               bool               // the body did not parse, or not in one way alone
	Salvaged                             []fleet.PollField  // what a broken body said before it broke
	Given                                fleet.Transport    // how the answer has it connect; "" without credentials
	BodyMAC                              string             // mac_address of the body, to compare with Device
	Layout                               *fleet.FlashLayout // nil if the body has none

	changes bool       // views and the gate are to read the device again once this is stored
	why     WaitReason // of a PollConnect that no rule can let in; "" if one can
}

// What can be read of a boot poll whose body is broken.
const (
	PollChip       fleet.PollField = "chip"
	PollVersion    fleet.PollField = "version"
	PollBuild      fleet.PollField = "build"
	PollPartitions fleet.PollField = "partitions"
	PollSlot       fleet.PollField = "slot"
	PollBoard      fleet.PollField = "board"
)

// A PollAnswer is what the answer to a boot poll says. The zero value says nothing.
type PollAnswer struct {
	Activation *Activation     // set while the device waits to be enrolled
	Session    *Credentials    // set for an enrolled device
	Transport  fleet.Transport // of the session
	// KeyChallenge is set for a device that is to prove its key, and then to poll again.
	KeyChallenge string
	// FirstBoot says that the poll names another build than the one before:
	// the image waits for this very answer to be confirmed.
	FirstBoot bool
	Offer     *fleet.FirmwareOffer // set if the device shall install firmware now
}

// An Activation makes the device show a code and ask again.
type Activation struct {
	Code, Message, Challenge string
}

// Credentials let one device, with one Client-Id, connect to the broker.
type Credentials struct {
	ClientID, Username, Password, PublishTopic string
	Token                                      string // for a WebSocket, in place of the others; "": none
	WithProof                                  bool   // good with a proof of the device's key alone: [ConnectMessage]
}

// An Admission is what enrolment must know of a device without asking the
// database. All of them are held in memory.
type Admission struct {
	Device       fleet.DeviceID
	Enrolment    fleet.Enrolment
	ClientID     string // bound Client-Id; "" before the first poll
	NewClientID  string // another Client-Id that asked and awaits an operator's decision
	Refused      string // Client-Id whose request an operator refused last; a poll does not change it
	Key          string // public key that the device proves, base64; "" without one
	Serial       int32  // which credentials are good, as credentialSerial reads it; the store only keeps it
	ClaimCode    string
	Challenge    string
	RemoteAddr   string // of a device with a code, as it last polled; "" of others
	Retired      bool
	Transport    fleet.Transport // how it is to connect; "" is MQTT
	Given        fleet.Transport // how its latest stored poll had it connect
	Software     bool            // see [Running]; the store knows it from the latest poll
	ELFSHA256    string          // running build of the latest poll
	Version      string
	InventoryELF string
	InventoryAt  time.Time
}

// A PollRecord is a boot poll to be stored, with the admission it led to.
// Records are coalesced: only the newest of a device is written.
type PollRecord struct {
	Poll      BootPoll
	Admission Admission
	Accepted  *RuleAcceptance // set until it is stored that a rule let the device in
}

// Store keeps admissions and the facts of polls.
type Store interface {
	Admissions(ctx context.Context) ([]Admission, error)
	// SavePolls creates or updates the polled devices: facts, firmware
	// history, last poll, and their standing as the admission has it
	// (enrolment, both Client-Ids, serial, code, challenge).
	SavePolls(ctx context.Context, polls []PollRecord) error
	// ForgetWaiting deletes devices that wait, were never enrolled and have not
	// polled since before, and returns them.
	ForgetWaiting(ctx context.Context, before time.Time) ([]fleet.DeviceID, error)
	// DropWaiting deletes those of the devices that wait and were never enrolled.
	DropWaiting(ctx context.Context, ids []fleet.DeviceID) error
	// SaveAdmission stores an operator's decision about a device with its
	// audit entry. action is "device.claim", "device.approve", "device.reject", ...
	SaveAdmission(ctx context.Context, by fleet.Principal, action string, a Admission, at time.Time) error
}
