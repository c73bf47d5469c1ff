package ui

import (
	"cmp"
	"context"
	"maps"
	"net/url"
	"strings"
	"time"

	"github.com/a-h/templ"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/enrolment"
	"fleetd/web/i18n"
)

// A DeviceHead is the top of every page of a device: its identity, its state, and the tabs. A live
// stream sends it as a patch when presence or hold change.
type DeviceHead struct {
	ID         fleet.DeviceID
	Kind       fleet.DeviceKind
	Name       string
	Board      string
	Version    string
	Tags       []string
	Presence   fleet.Presence
	Since      time.Time
	Talking    string       // id of its present conversation; "" without one
	Evidence   fleet.Reason // the basis of its presence
	Enrolment  fleet.Enrolment
	Hold       *fleet.Hold            // nil unless in force
	Conflict   *fleet.DeviceConflict  // nil unless two units seem to use its id now
	Claimed    *fleet.ClaimedHardware // nil: its reported board and chip are the pinned ones
	Chip       string
	ToolsCount int
	Held       int // number of tools in quarantine
	RetiredAt  *time.Time
	ReplacedBy fleet.DeviceID
	Replaces   fleet.DeviceID // the unit that it replaced
	NewClient  string         // another unit requests this device's credentials
	Tab        string         // "", "tools", "health", "configuration", "firmware", "screen", "logs", "facts"
	CanAct     bool           // the viewer may change and call it
	CanSnap    bool           // it can take a snapshot of its screen
	HasLogs    bool           // it offers its log or core dump
	Reports    bool           // its firmware sends reports
	Thumb      *Snapshot      // the latest snapshot of its screen; nil without one
	Live       url.Values     // further parameters of the live stream
}

// NewDeviceHead returns a device's head for one of its tabs.
func NewDeviceHead(d fleet.Device, tab string, now time.Time, canAct bool) DeviceHead {
	h := DeviceHead{
		ID: d.ID, Kind: d.Kind, Name: d.Name, Board: d.Board, Version: d.Version, Tags: d.Tags,
		Presence: shownPresence(d), Since: d.PresenceSince, Evidence: d.PresenceEvidence,
		Enrolment: d.Enrolment, ToolsCount: d.ToolsCount, RetiredAt: d.RetiredAt,
		ReplacedBy: d.ReplacedBy, Replaces: d.Replaces, NewClient: d.NewClientID, Tab: tab, CanAct: canAct,
	}
	if d.Hold.Active(now) {
		h.Hold = d.Hold
	}
	if d.RetiredAt == nil && d.Conflict.Active(now) {
		h.Conflict = d.Conflict
	}
	if d.RetiredAt == nil {
		h.Claimed, h.Chip = d.Claimed, d.Chip
	}
	return h
}

// Title returns the device's name, or its id if it has none.
func (h DeviceHead) Title() string { return deviceTitle(h.ID, h.Name) }

// Callable reports whether the viewer may call the device.
func (h DeviceHead) Callable() bool {
	return h.CanAct && h.RetiredAt == nil && h.Enrolment == fleet.EnrolmentEnrolled
}

// offersCall reports whether the head links to the tools.
func (h DeviceHead) offersCall() bool { return h.Callable() && h.Tab != "tools" }

// named reports whether the presence has to be a chip: a word is enough for the usual state.
func (h DeviceHead) named() bool {
	return h.Presence != fleet.PresenceOnline && h.Presence != fleet.CountedBetween
}

func (h DeviceHead) tagText() string { return strings.Join(h.Tags, ", ") }

var deviceTabs = []struct{ tab, key string }{
	{"", "device.tab.timeline"}, {"tools", "device.tab.tools"}, {"health", "device.tab.health"},
	{"configuration", "device.tab.configuration"}, {"firmware", "device.tab.firmware"},
	{"screen", "device.tab.screen"}, {"logs", "device.tab.logs"}, {"facts", "device.tab.facts"},
}

// board reports whether the device has what only boards have.
func (h DeviceHead) board() bool { return isBoard(h.ID, h.Kind) }

func isBoard(id fleet.DeviceID, kind fleet.DeviceKind) bool {
	return fleet.Device{ID: id, Kind: kind}.IsBoard()
}

// programTabs are the tabs of a device that is no board, with their names.
var programTabs = map[string]string{"": "device.tab.timeline", "tools": "device.tab.tools",
	"configuration": "device.tab.details", "firmware": "device.tab.inventory", "facts": "device.tab.facts"}

// tabName returns the message of the tab's name.
func (h DeviceHead) tabName(tab, name string) string {
	if !h.board() {
		return programTabs[tab]
	}
	return name
}

// tabShown hides the tab of a feature that the device lacks, unless the tab is open.
func (h DeviceHead) tabShown(tab string) bool {
	switch {
	case !h.board() && programTabs[tab] == "":
		return false
	case h.Tab == tab:
		return true
	case tab == "tools":
		return h.ToolsCount > 0
	case tab == "health":
		return h.Reports
	case tab == "screen":
		return h.CanSnap || h.Thumb != nil
	case tab == "logs":
		return h.HasLogs
	}
	return true
}

// pictureURL leads to the pictures, or to the facts of a device that has none.
func (h DeviceHead) pictureURL() templ.SafeURL {
	if h.Thumb != nil || h.CanSnap {
		return h.tabURL("screen")
	}
	return h.tabURL("facts")
}

func (h DeviceHead) tabURL(tab string) templ.SafeURL {
	if tab == "" {
		return templ.SafeURL(DevicePath(h.ID))
	}
	return templ.SafeURL(DevicePath(h.ID, tab))
}

func (h DeviceHead) live() url.Values {
	v := url.Values{"id": {string(h.ID)}, "tab": {h.Tab}}
	maps.Copy(v, h.Live)
	return v
}

func (h DeviceHead) frame(ctx context.Context) head {
	frame := head{
		Title:  h.Title(),
		Crumbs: []link{{t(ctx, "nav.devices"), PathDevices}},
		Events: EventsURL(ViewDevice, h.live()),
	}
	switch h.Tab {
	case "screen":
		frame.Style = pictureStyle
	case "health":
		frame.Script = zoomScript
	}
	for _, tab := range deviceTabs {
		if tab.tab == h.Tab && h.Tab != "" {
			frame.Crumbs = append(frame.Crumbs, link{h.Title(), DevicePath(h.ID)})
			frame.Title = t(ctx, h.tabName(tab.tab, tab.key)) + " · " + h.Title()
		}
	}
	return frame
}

// A DevicePage is a device's first tab: GET DevicePath(id), with the parameters of [Timeline] and
// call, whose outcome is shown.
type DevicePage struct {
	Head   DeviceHead
	Acts   DeviceActs
	Vitals DeviceVitals
	Sparks HealthTrends
	Calls  CallsOfDay
	Latest *Snapshot
	About  DeviceFacts
	Line   Timeline
	Entry  *TimelineDetail // the entry that is shown in full; nil for none
}

// CallsOfDay counts the calls to a device of the last 24 hours by the hour.
type CallsOfDay struct {
	Device  fleet.DeviceID
	To      time.Time
	Buckets []call.Bucket // without hours that had none
}

// A TimelineDetail is an entry of the time line in full.
type TimelineDetail struct {
	Row  TimelineRow
	Call *CallView // of an entry about a call
}

// A ConfigurationPage is the settings of a device: GET DevicePath(id, "configuration"). Its forms
// post to DevicePath(id, "edit") with name, tags, notes, time_zone, transport; "hold" with reason
// and hours; "release"; "retire" with confirm = the device's id; "reissue" and "revoke" with version;
// those of [DeviceConfigView] to "config".
type ConfigurationPage struct {
	Head      DeviceHead
	Tags      []string
	Notes     string
	TimeZone  string          // IANA name; "" means the server's
	Chosen    fleet.Transport // its transport after its next start
	Config    DeviceConfigView
	CanRetire bool
	Problem   string // why an edit was rejected, in the page's language
	// Credentials is the state of its credentials, if it is a device of MCP over MQTT 5 and the viewer
	// may change them; else nil.
	Credentials *enrolment.MQTT5State
}

// NewConfigurationPage returns the page with the details that operators wrote; the caller adds the
// configuration.
func NewConfigurationPage(d fleet.Device, head DeviceHead) ConfigurationPage {
	return ConfigurationPage{Head: head, Tags: d.Tags, Notes: d.Notes, TimeZone: d.TimeZone,
		Chosen: d.TransportChoice}
}

// editTitle returns the message of the form's title: others than boards have no time zone.
func (v ConfigurationPage) editTitle() string {
	if v.Head.board() {
		return "device.edit"
	}
	return "device.edit_plain"
}

// help returns the names of the helps of the page's forms.
func (v ConfigurationPage) help() []string {
	if !v.Head.board() {
		return []string{"device"}
	}
	if v.Config.Config == nil || !v.Config.Offers {
		return []string{"device", "device_board"}
	}
	return []string{"device", "device_board", "device_config"}
}

// A ProgramServer is what the MCP server of a plug-in or an endpoint says about itself.
type ProgramServer struct{ Name, Version, Protocol string }

// programPage returns the settings of the plug-in or endpoint whose device this is, for administrators.
func (v DeviceFacts) programPage(ctx context.Context) string {
	if !page(ctx).Admin || v.Retired {
		return ""
	}
	if name, ok := strings.CutPrefix(string(v.ID), fleet.PluginPrefix); ok {
		return PluginPath(name)
	}
	if name, ok := strings.CutPrefix(string(v.ID), fleet.EndpointPrefix); ok {
		return EndpointPath(name)
	}
	return ""
}

// DeviceFacts are the facts about a device that seldom matter.
type DeviceFacts struct {
	ID         fleet.DeviceID
	Kind       fleet.DeviceKind
	Retired    bool
	Version    string
	Server     ProgramServer // of a program that is connected
	Chip       string
	Slot       string
	ELFSHA256  string
	Transport  string
	Chosen     fleet.Transport // after its next start
	Given      fleet.Transport
	RemoteAddr string
	Edge       string // node that holds the connection; "" if offline
	Language   string
	TimeZone   string // IANA name; "" means the server's
	Evidence   fleet.Reason
	LastSeen   *time.Time
	LastPoll   *time.Time
	EnrolledAt *time.Time
	CreatedAt  time.Time
	ToolsAt    *time.Time // latest listing of its tools
	Tags       []string
	Notes      string
	Voice      DeviceVoice
}

// sinceTitle returns the message for the time at which the device came on record.
func (v DeviceFacts) sinceTitle() string {
	if v.Kind == fleet.DeviceMQTT5 {
		return "device.created"
	}
	return "device.first_seen"
}

// NewDeviceFacts returns a device's facts.
func NewDeviceFacts(d fleet.Device) DeviceFacts {
	return DeviceFacts{ID: d.ID, Kind: d.Kind, Retired: d.RetiredAt != nil, Version: d.Version, Chip: d.Chip, Slot: d.Slot,
		ELFSHA256: d.ELFSHA256, Transport: d.Transport,
		Chosen: d.TransportChoice, Given: d.TransportGiven,
		RemoteAddr: d.RemoteAddr, Edge: d.Edge, Language: d.Language, TimeZone: d.TimeZone, Evidence: d.PresenceEvidence,
		LastSeen: d.LastSeen, LastPoll: d.LastPoll, EnrolledAt: d.EnrolledAt, CreatedAt: d.CreatedAt,
		ToolsAt: d.InventoryAt, Tags: d.Tags, Notes: d.Notes}
}

var transports = []fleet.Transport{fleet.TransportMQTT, fleet.TransportWebSocket}

// changesTransport reports whether the device's next start changes its transport.
func (v DeviceFacts) changesTransport() bool {
	return v.Chosen != "" && v.Chosen != cmp.Or(v.Given, fleet.TransportMQTT)
}

// holdHours are the expiries in the form of a hold; 0 means until released.
var holdHours = []int{1, 8, 24, 168, 0}

func holdText(ctx context.Context, hours int) string {
	if hours == 0 {
		return t(ctx, "hold.until_released")
	}
	return i18n.Duration(page(ctx).Lang, time.Duration(hours)*time.Hour)
}

// A Snapshot is a picture of a device's screen that fleetd stores.
type Snapshot struct {
	ID     string
	URL    string // of the picture, same origin
	At     time.Time
	Width  int // pixels; 0 if unknown
	Height int
	Bytes  int64
	CallID string          // "" if no call took it
	Actor  fleet.Principal // who made the call; zero if unknown

	Device     fleet.DeviceID
	DeviceName string // where more than one device is on the page

	Camera   bool   // taken by a camera, not of the screen
	Question string // the question about the camera's picture; foreign text
}

func (s Snapshot) alt() string {
	if s.Camera {
		return "camera.alt"
	}
	return "screen.alt"
}

// slot returns the id of the element that a live stream replaces by a newer snapshot.
func (s Snapshot) slot() string {
	if s.Camera {
		return "photo-" + s.ID
	}
	return "snapshot"
}

func bytesText(ctx context.Context, n int64) string { return i18n.Bytes(page(ctx).Lang, n) }
