package fleet

import (
	"encoding/json"
	"regexp"
	"strings"
	"time"
)

// A DeviceID identifies a device for life. The id of an ESP32 is its station MAC address as
// twelve lower-case hex digits. Other dialects use [a-z0-9._-]{1,64}, beginning with a letter
// or digit: browsers remove "." and ".." from an address, and the command line reads a
// leading "-" as a flag.
type DeviceID string

var (
	deviceIDPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	macPartPattern  = regexp.MustCompile(`^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){0,4}(:[0-9a-fA-F]?)?$`)
	macDashPattern  = regexp.MustCompile(`^[0-9a-fA-F]{2}(-[0-9a-fA-F]{2}){0,4}-[0-9a-fA-F]{0,2}$`)
	macSeparated    = regexp.MustCompile(`^[0-9a-f]{2}([:_-][0-9a-f]{2}){5}$`)
)

// ParseDeviceID accepts a MAC address in any case, bare or with ":", "-" or
// "_" between its bytes, and the plain ids of other dialects.
func ParseDeviceID(s string) (DeviceID, error) {
	if isMAC(s) {
		return DeviceID(s), nil
	}
	id := strings.ToLower(strings.TrimSpace(s))
	if macSeparated.MatchString(id) {
		return DeviceID(id[0:2] + id[3:5] + id[6:8] + id[9:11] + id[12:14] + id[15:17]), nil
	}
	if !deviceIDPattern.MatchString(id) {
		return "", Refuse(ErrInvalid, "invalid_device_id", "value", s)
	}
	return DeviceID(id), nil
}

// ParseBoardID parses the id that a connecting device claims. It refuses the ids of plug-ins and
// endpoints.
func ParseBoardID(s string) (DeviceID, error) {
	id, err := ParseDeviceID(s)
	if err == nil && id.IsProgram() {
		return "", Refuse(ErrInvalid, "invalid_device_id", "value", s)
	}
	return id, err
}

// ParseMQTT5ID parses the id of a device of MCP over MQTT, which is its MQTT client id. Some ids would
// make its control topic one of another kind, have a meaning inside the broker, or name the server
// of the whole fleet.
func ParseMQTT5ID(s string) (DeviceID, error) {
	id, err := ParseBoardID(s)
	if err != nil || id == "presence" || id == "capability" || id == "inline" || id == "fleetd" {
		return "", Refuse(ErrInvalid, "invalid_mqtt5_id", "value", s).At("id")
	}
	return id, nil
}

// isMAC reports whether s is a MAC address in the form of an id. It avoids a regular
// expression because every request names a device.
func isMAC(s string) bool {
	if len(s) != 12 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// MAC returns the id as a colon-separated MAC address, or "" if it is not a MAC address.
func (id DeviceID) MAC() string {
	if !isMAC(string(id)) {
		return ""
	}
	s := string(id)
	return s[0:2] + ":" + s[2:4] + ":" + s[4:6] + ":" + s[6:8] + ":" + s[8:10] + ":" + s[10:12]
}

// A DeviceKind is what a device is. Everything with tools is a device: a board, a program that
// fleetd runs or reaches, a program that dials in.
type DeviceKind string

const (
	DeviceESP32    DeviceKind = "esp32"    // stock or included firmware, which asks a boot poll
	DeviceMQTT5    DeviceKind = "mqtt5"    // MCP over MQTT 5
	DevicePlugin   DeviceKind = "plugin"   // an MCP server that fleetd starts, or connects to
	DeviceEndpoint DeviceKind = "endpoint" // an MCP server that connects to fleetd by WebSocket
)

// IsBoard reports whether the device is an ESP32 board that asks a boot poll. Names of tools have
// a meaning for fleetd only there, and only boards get firmware from it.
func (d Device) IsBoard() bool { return d.Kind != DeviceMQTT5 && !d.ID.IsProgram() }

// DeviceKinds lists the kinds.
var DeviceKinds = []DeviceKind{DeviceESP32, DeviceMQTT5, DevicePlugin, DeviceEndpoint}

// Prefixes of the ids of plug-ins and endpoints. No device of another kind can have such an id.
const (
	PluginPrefix   = "plugin."
	EndpointPrefix = "endpoint."
)

// IsProgram reports whether the id is a plug-in's or an endpoint's.
func (id DeviceID) IsProgram() bool {
	return strings.HasPrefix(string(id), PluginPrefix) || strings.HasPrefix(string(id), EndpointPrefix)
}

// ErrNotABoard returns the error for an act that only a board understands.
func ErrNotABoard(id DeviceID) *Error {
	return Refuse(ErrConflict, "not_a_board", "device", id)
}

// Presence is whether a device can be reached, according to the evidence.
type Presence string

const (
	PresencePending      Presence = "pending"      // never seen on MQTT
	PresenceOnline       Presence = "online"       // connected
	PresenceUnresponsive Presence = "unresponsive" // connected, but its last probe or call timed out
	PresenceUnknownEdge  Presence = "unknown_edge" // the edge that holds its connection is silent
	PresenceOffline      Presence = "offline"
)

// CountedBetween is the key, among counts by presence, of the offline devices that connect
// only for conversations. It is not a presence of a device.
const CountedBetween Presence = "conversations"

// A Transport is how a device connects, as the answer to its boot poll specifies.
type Transport string

const (
	TransportMQTT Transport = "mqtt" // always connected, audio over UDP
	// TransportWebSocket connects the device only during conversations.
	TransportWebSocket Transport = "ws"
)

// Enrolment is the state of a device's enrolment.
type Enrolment string

const (
	EnrolmentWaiting  Enrolment = "waiting"  // it polled, and shows a code until an operator claims or approves it
	EnrolmentEnrolled Enrolment = "enrolled" // gets credentials
	EnrolmentRejected Enrolment = "rejected" // refused by an operator; gets none
)

// EnrolmentMode is the way in which an unknown device joins.
type EnrolmentMode string

const (
	EnrolByCode     EnrolmentMode = "code"    // an operator types the six digits the device shows
	EnrolByApproval EnrolmentMode = "approve" // an operator clicks
	EnrolOpen       EnrolmentMode = "open"    // the device joins at once
)

// A Device is one member of the fleet: a physical unit, or a program with tools. Devices are
// retired, never deleted, because calls and audit entries refer to them.
type Device struct {
	ID   DeviceID
	Kind DeviceKind
	Name string // chosen by an operator; need not be unique
	// Board, BoardType and Chip are pinned when the device is enrolled, because rules, scopes
	// and campaigns depend on them. Before that they are what the device claims.
	Board     string // exact build variant, board.name of the boot poll
	BoardType string // board family, board.type of the boot poll
	Chip      string // chip_model_name: "esp32s3"
	Version   string // running firmware, as last reported
	ELFSHA256 string // hash of the running build; "" if unknown
	Slot      string // running OTA slot: "ota_0"
	ClientID  string // the Client-Id (UUID) its credentials are bound to
	Language  string // UI language of the firmware, "zh-CN"

	Layout   *FlashLayout // nil until a boot poll reports it
	TimeZone string       // IANA name, set by an operator; "" is the fleet's

	Presence         Presence
	PresenceSince    time.Time
	PresenceEvidence Reason     // evidence for the presence: a code of [PresenceReasons]
	LastSeen         *time.Time // latest message or poll received; nil before the first
	LastPoll         *time.Time // latest boot poll
	Transport        string     // of its latest connection: "mqtt", "mqtts", "ws"; "" if never connected
	TransportChoice  Transport  // how it must connect from its next start on
	TransportGiven   Transport  // how its latest boot poll was answered; "" before the first
	RemoteAddr       string     // of the latest connection or poll, without port
	Edge             string     // node that holds its connection; "" while it is not connected

	Enrolment    Enrolment
	ClaimCode    string // six digits while waiting; "" otherwise
	NewClientID  string // a second Client-Id that requested this device's credentials; "" if none
	EnrolledAt   *time.Time
	Tags         []string
	Notes        string
	Hold         *Hold
	InventoryID  string // hash of its current tool inventory; "" before the first listing
	InventoryELF string // build that listed the inventory
	InventoryAt  *time.Time
	ToolsCount   int
	SafeMode     bool             // from its latest vitals, like CoreDump; stock firmware reports none
	CoreDump     bool             // a core dump is stored on the device
	CrashedAt    *time.Time       // latest restart after a crash that it reported; nil: none on record
	Conflict     *DeviceConflict  // nil: no recent evidence of one
	Claimed      *ClaimedHardware // nil: it claims the pinned hardware
	CreatedAt    time.Time
	RetiredAt    *time.Time // nil while in service
	ReplacedBy   DeviceID   // the unit that took over from this one
	Replaces     DeviceID   // the unit that this one took over from
}

// Title returns what a person calls the device: its name, or its MAC address.
func (d Device) Title() string {
	if d.Name != "" {
		return d.Name
	}
	if mac := d.ID.MAC(); mac != "" {
		return mac
	}
	return string(d.ID)
}

// ConnectsForConversations reports whether the device connects only for conversations. Then
// being offline is normal.
func (d Device) ConnectsForConversations() bool { return d.TransportGiven == TransportWebSocket }

// A Hold prevents every principal but its owner from acting on a device.
type Hold struct {
	Reason string
	By     Principal
	Since  time.Time
	Until  *time.Time // nil holds until released
}

// Active reports whether the hold is in force at the given time. A nil hold is not.
func (h *Hold) Active(now time.Time) bool {
	return h != nil && (h.Until == nil || now.Before(*h.Until))
}

// Facts is the body of a device's latest boot poll: untrusted JSON, stored whole.
type Facts struct {
	Device   DeviceID
	PolledAt time.Time
	Body     json.RawMessage // the part that parsed; nil if nothing did
	Broken   bool            // the body did not parse
	Salvaged []PollField     // fields read before the error; the headers were read too
}

// Codes of the problems of a boot poll.
const (
	FactsSalvaged   = "poll_salvaged"   // broken; Salvaged lists the fields that were read
	FactsUnreadable = "poll_unreadable" // only the headers were read
)

// Problem returns the code of the poll's problem, "" if it has none.
func (f Facts) Problem() string {
	switch {
	case !f.Broken:
		return ""
	case len(f.Salvaged) > 0:
		return FactsSalvaged
	}
	return FactsUnreadable
}

// A FirmwareRecord is one entry of a device's firmware history: the build that it ran, the
// slot, and the time from which it ran.
type FirmwareRecord struct {
	Version    string
	Slot       string
	ELFSHA256  string
	IDFVersion string
	FirstSeen  time.Time
	LastSeen   time.Time
}

// A DevicePatch changes the fields of a device that operators set. Nil fields stay unchanged.
type DevicePatch struct {
	Name  *string
	Notes *string
	Tags  *[]string
	// TimeZone is an IANA name, or "" for the fleet's time zone.
	TimeZone *string
	// Transport is how the device connects from its next start on.
	Transport *Transport
}

// A FlashLayout is where firmware goes on a device, according to its boot poll.
type FlashLayout struct {
	SlotSize   int64    // bytes of the smallest OTA slot; 0 if it has no slot
	Labels     []string // of the partitions
	ChipRev    int      // major*100+minor; 0 if unknown
	FreeHeap   int64    // minimum_free_heap_size, bytes; 0 if unknown
	FlashBytes int64    // flash_size
}

// A PollField names a field of a boot poll.
type PollField string
