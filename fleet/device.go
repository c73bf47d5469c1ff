package fleet

import (
	"encoding/json"
	"regexp"
	"strings"
	"time"
)

// A DeviceID names a device for life. An ESP32's is its station MAC address as
// twelve lower-case hex digits; other dialects use [a-z0-9._-]{1,64}, from a
// letter or digit on: browsers take "." and ".." out of an address, and a
// leading "-" makes a flag of it on the command line.
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

// isMAC reports whether s is a MAC address as ids have it. Every request names
// a device, and a regular expression would take longer than all else of this file.
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

// MAC returns the id as a colon-separated MAC address, or "" if the id is not one.
func (id DeviceID) MAC() string {
	if !isMAC(string(id)) {
		return ""
	}
	s := string(id)
	return s[0:2] + ":" + s[2:4] + ":" + s[4:6] + ":" + s[6:8] + ":" + s[8:10] + ":" + s[10:12]
}

// Presence says whether a device can be reached, as far as the evidence goes.
type Presence string

const (
	PresencePending      Presence = "pending"      // never seen on MQTT
	PresenceOnline       Presence = "online"       // connected
	PresenceUnresponsive Presence = "unresponsive" // connected, but its last probe or call timed out
	PresenceOffline      Presence = "offline"
)

// CountedBetween is among the counts by presence: offline devices that connect for
// conversations. It is no presence of a device.
const CountedBetween Presence = "conversations"

// A Transport is how a device connects, as its boot poll is answered.
type Transport string

const (
	TransportMQTT Transport = "mqtt" // always connected, audio over UDP
	// TransportWebSocket is connected in conversations only.
	TransportWebSocket Transport = "ws"
)

// Enrolment is a device's standing with the fleet.
type Enrolment string

const (
	EnrolmentWaiting  Enrolment = "waiting"  // polled; shows a code until an operator claims or approves it
	EnrolmentEnrolled Enrolment = "enrolled" // gets credentials
	EnrolmentRejected Enrolment = "rejected" // refused by an operator; gets none
)

// EnrolmentMode says how an unknown device joins.
type EnrolmentMode string

const (
	EnrolByCode     EnrolmentMode = "code"    // an operator types the six digits the device shows
	EnrolByApproval EnrolmentMode = "approve" // an operator clicks
	EnrolOpen       EnrolmentMode = "open"    // joins at once
)

// A Device is one physical unit. Devices are retired, never deleted: calls and
// audit entries keep pointing at them.
type Device struct {
	ID   DeviceID
	Name string // chosen by an operator; need not be unique
	// Board, BoardType and Chip are pinned when the device is let in: rules, scopes and
	// campaigns go by them. They are what it claimed until then.
	Board     string // exact build variant, board.name of the boot poll
	BoardType string // board family, board.type of the boot poll
	Chip      string // chip_model_name: "esp32s3"
	Version   string // running firmware, as last reported
	ELFSHA256 string // identifies the running build; "" if unknown
	Slot      string // running OTA slot: "ota_0"
	ClientID  string // the Client-Id (UUID) its credentials are bound to
	Language  string // UI language of the firmware, "zh-CN"

	Layout   *FlashLayout // nil before a boot poll that reported it
	TimeZone string       // IANA name, set by an operator; "" is the fleet's

	Presence         Presence
	PresenceSince    time.Time
	PresenceEvidence Reason     // what the presence was concluded from: a code of [PresenceReasons]
	LastSeen         *time.Time // latest message or poll received; nil before the first
	LastPoll         *time.Time // latest boot poll
	Transport        string     // of its latest connection: "mqtt", "mqtts", "ws"; "" if never connected
	TransportChoice  Transport  // how it is to connect from its next start on
	TransportGiven   Transport  // how its latest boot poll had it connect; "" before the first
	RemoteAddr       string     // of the latest connection or poll, without port

	Enrolment    Enrolment
	ClaimCode    string // six digits while waiting; "" otherwise
	NewClientID  string // a second Client-Id that asked for this device's credentials; "" if none
	EnrolledAt   *time.Time
	Tags         []string
	Notes        string
	Hold         *Hold
	InventoryID  string // hash of its current tool inventory; "" before the first listing
	InventoryELF string // build the inventory was taken from
	InventoryAt  *time.Time
	ToolsCount   int
	SafeMode     bool             // by its latest vitals, as is the next; stock firmware reports none
	CoreDump     bool             // one waits on the device
	Conflict     *DeviceConflict  // nil: none was seen lately
	Claimed      *ClaimedHardware // nil: it claims what is pinned
	CreatedAt    time.Time
	RetiredAt    *time.Time // nil while in service
	ReplacedBy   DeviceID   // the unit that took over from this one
	Replaces     DeviceID   // the unit that this one took over from
}

// Title is what a person calls the device: its name, or its MAC address.
func (d Device) Title() string {
	if d.Name != "" {
		return d.Name
	}
	if mac := d.ID.MAC(); mac != "" {
		return mac
	}
	return string(d.ID)
}

// ConnectsForConversations reports whether the device is connected in conversations
// only: while it is offline nothing is wrong with it.
func (d Device) ConnectsForConversations() bool { return d.TransportGiven == TransportWebSocket }

// A Hold keeps everyone but its owner from acting on a device.
type Hold struct {
	Reason string
	By     Principal
	Since  time.Time
	Until  *time.Time // nil holds until released
}

// Active reports whether the hold stands at the given time. A nil hold does not.
func (h *Hold) Active(now time.Time) bool {
	return h != nil && (h.Until == nil || now.Before(*h.Until))
}

// Facts are what a device said of itself in its latest boot poll: untrusted
// JSON, kept whole.
type Facts struct {
	Device   DeviceID
	PolledAt time.Time
	Body     json.RawMessage // what is left of it when the body did not parse, nil if nothing
	Broken   bool            // the body did not parse
	Salvaged []PollField     // what it said before it broke; the headers were used too
}

// Codes of what is wrong with a boot poll.
const (
	FactsSalvaged   = "poll_salvaged"   // broken, and read in part: Salvaged says what
	FactsUnreadable = "poll_unreadable" // the headers had to do
)

// Problem returns the code of what is wrong with the poll, "" for nothing.
func (f Facts) Problem() string {
	switch {
	case !f.Broken:
		return ""
	case len(f.Salvaged) > 0:
		return FactsSalvaged
	}
	return FactsUnreadable
}

// A FirmwareRecord is one stretch of a device's firmware history: a build it
// ran, in which slot, from when.
type FirmwareRecord struct {
	Version    string
	Slot       string
	ELFSHA256  string
	IDFVersion string
	FirstSeen  time.Time
	LastSeen   time.Time
}

// A DevicePatch changes what operators say about a device. Nil fields stay.
type DevicePatch struct {
	Name  *string
	Notes *string
	Tags  *[]string
	// TimeZone is an IANA name, or "" for the fleet's.
	TimeZone *string
	// Transport is how the device connects from its next start on.
	Transport *Transport
}

// A FlashLayout is what a device's boot poll says about where firmware goes.
type FlashLayout struct {
	SlotSize   int64    // bytes of its smallest OTA slot; 0: it has none
	Labels     []string // of its partitions
	ChipRev    int      // major*100+minor; 0 if unknown
	FreeHeap   int64    // minimum_free_heap_size, bytes; 0 if unknown
	FlashBytes int64    // flash_size
}

// A PollField names what a boot poll says of its device.
type PollField string
