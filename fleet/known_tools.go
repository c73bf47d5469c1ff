package fleet

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

// Tools of the stock firmware that have a meaning here.
const (
	ToolReboot          = "self.reboot"
	ToolUpgradeFirmware = "self.upgrade_firmware"
	ToolSnapshot        = "self.screen.snapshot"
	ToolPreviewImage    = "self.screen.preview_image"
	ToolSetAssetsURL    = "self.assets.set_download_url"
	ToolTakePhoto       = "self.camera.take_photo"
	ToolReconfigureWiFi = "self.system.reconfigure_wifi"
	ToolDeviceStatus    = "self.get_device_status"
	ToolSetVolume       = "self.audio_speaker.set_volume"
)

// Tools of the included firmware that fleetd treats in a particular way.
const (
	ToolRollback       = "self.rollback"
	ToolConfigGet      = "self.config.get"
	ToolConfigSet      = "self.config.set"
	ToolLogsTail       = "self.logs.tail"
	ToolLogsLevel      = "self.logs.set_level"
	ToolLogsStream     = "self.logs.stream"
	ToolCoreDumpInfo   = "self.core_dump.get_info"
	ToolCoreDumpUpload = "self.core_dump.upload"
)

// ToolEffect says what becomes of a device's connection when it runs a tool.
type ToolEffect string

const (
	EffectNone     ToolEffect = ""               // it stays connected
	EffectRestarts ToolEffect = "restarts"       // it goes, and comes back within a minute or so
	EffectLeaves   ToolEffect = "leaves_network" // it goes, until a person at the device sets up its Wi-Fi
)

// ToolAccess narrows who may call a tool, beyond its audience.
type ToolAccess int

const (
	AccessAudience  ToolAccess = iota
	AccessCampaigns            // campaigns only, with an order for an upgrade
	AccessNone                 // fleetd makes no such call
)

// LinkPurpose says what a one-time link is for.
type LinkPurpose string

const (
	LinkUpload   LinkPurpose = "upload"    // the device posts a picture: POST /u/{token}
	LinkCoreDump LinkPurpose = "core_dump" // the device posts a core dump: POST /u/{token}
	LinkPreview  LinkPurpose = "preview"   // the device fetches a picture: GET /d/{token}/preview.jpg
)

// A knownTool is what fleetd knows of a tool by its name, whatever the device
// lists. The zero value is an ordinary tool.
type knownTool struct {
	audience Audience      // AudienceUser: a language model never calls it
	access   ToolAccess    // who else may not
	effect   ToolEffect    // on the device's connection
	silent   bool          // the device goes without an answer: the outcome comes from evidence
	url      LinkPurpose   // of the one-time address that fleetd puts into the argument url
	single   bool          // needs something made for one device: no fan-out
	reads    bool          // changes nothing, which its name does not say; see [ReadsOnly]
	timeout  time.Duration // 0 takes DefaultCallTimeout
}

// How long tools take that connect, upload or download (protocol 4.9), and
// devices that go away: one that restarts without a DISCONNECT is missed after
// one and a half keepalives.
const (
	transferTimeout  = 75 * time.Second
	departureTimeout = 2 * time.Minute
)

// knownTools are the tools of stock and included firmware that fleetd treats in
// a particular way. The audience stands here too, since the flag of tools/list
// is a filter and no access control, and some lists do not carry it.
//
// Where the firmware is not named it is the stock one, 78/xiaozhi-esp32 at
// 48142026 (2.4.2), below main/. It has no tool that sleeps, switches off or
// erases: those are buttons and timers of the boards.
var knownTools = map[string]knownTool{
	// mcp_server.cc, AddUserOnlyTools
	"self.get_system_info": {audience: AudienceUser},
	"self.screen.get_info": {audience: AudienceUser},
	ToolReboot:             {audience: AudienceUser, effect: EffectRestarts, silent: true, timeout: departureTimeout},
	ToolUpgradeFirmware:    {audience: AudienceUser, access: AccessCampaigns, effect: EffectRestarts, silent: true},
	ToolSnapshot:           {audience: AudienceUser, url: LinkUpload, timeout: transferTimeout},
	ToolPreviewImage:       {audience: AudienceUser, url: LinkPreview, single: true, timeout: transferTimeout},
	ToolSetAssetsURL:       {audience: AudienceUser, access: AccessNone}, // it downloads at its next boot

	// mcp_server.cc, AddCommonTools
	ToolTakePhoto: {timeout: transferTimeout},

	// Boards. All list these for models.
	//
	// EnterWifiConfigMode (boards/common/wifi_board.cc) resets the protocol, which
	// sends DISCONNECT before the answer, stops the station and opens an access
	// point. In lckfb/szpi-esp32s3, lcdwiki-es3c35p, rymcu/bigsmart and 19 of waveshare:
	ToolReconfigureWiFi: {audience: AudienceUser, effect: EffectLeaves, silent: true, timeout: departureTimeout},
	// The same by another name, in waveshare's e-paper, rlcd, amoled-1.32 and 1.43c, and zectrix:
	"self.disp.network": {audience: AudienceUser, effect: EffectLeaves, silent: true, timeout: departureTimeout},
	// zhengchen/cam and cam-ml307, mcp_controller.cc: esp_restart after a second, without DISCONNECT.
	"self.res.esp_restart": {audience: AudienceUser, effect: EffectRestarts, silent: true, timeout: departureTimeout},
	// yunliao-s3: inverts the colours for good, and calls Reboot.
	"self.system.switch_TFT": {audience: AudienceUser, effect: EffectRestarts, silent: true, timeout: departureTimeout},

	// The included firmware, firmware/components/fleet_tools.
	ToolCoreDumpUpload: {audience: AudienceUser, url: LinkCoreDump, single: true, timeout: 2 * time.Minute},
	ToolRollback:       {audience: AudienceUser, effect: EffectRestarts}, // answers that it will, and restarts
	ToolLogsTail:       {reads: true},
}

// ReadsOnly reports whether a tool changes nothing on its device, as far as its
// name says: the last part of the name is "get", "list" or "read", or begins with
// one of them and "_", as in self.get_device_status and self.config.get; or it is a
// [knownTools] of which fleetd knows it. Devices do not state it, and what
// firmware does under such a name is not checked. What takes a device away or
// needs an address never counts.
func ReadsOnly(tool string) bool {
	known := knownTools[tool]
	if known.effect != EffectNone || known.url != "" || known.access != AccessAudience {
		return false
	}
	if known.reads {
		return true
	}
	if IsSentence(tool) {
		return false
	}
	last := tool[strings.LastIndexByte(tool, '.')+1:]
	for _, verb := range []string{"get", "list", "read"} {
		if rest, ok := strings.CutPrefix(last, verb); ok && (rest == "" || rest[0] == '_') {
			return true
		}
	}
	return false
}

// Bounds of the name of a tool; the longest of stock firmware has 30 bytes and 5 words.
const (
	maxNameBytes    = 64
	maxNameWords    = 8
	maxNameLastPart = 6 // words after the last dot
	maxNameCapitals = 2 // words in capitals
)

// commanding are words that address a reader and name nothing of a device.
var commanding = regexp.MustCompile(`(?i)ignore|disregard|instruction|prompt|assistant|please`)

// IsSentence reports whether the name of a tool reads like a sentence: a device may
// write to a language model in it. It is shown with a warning, and never counts as
// one that only reads.
func IsSentence(tool string) bool {
	words := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune("._-/ ", r) })
	}
	capitals := 0
	for _, w := range words(tool) {
		if len(w) > 1 && strings.ToUpper(w) == w && strings.ToLower(w) != w {
			capitals++
		}
	}
	return len(tool) > maxNameBytes || len(words(tool)) > maxNameWords || capitals > maxNameCapitals ||
		len(words(tool[strings.LastIndexByte(tool, '.')+1:])) > maxNameLastPart || commanding.MatchString(tool)
}

// OwnsURL reports whether the url argument of the tool is made by fleetd.
func OwnsURL(tool string) bool { return knownTools[tool].url != "" }

// ShowsPicture reports whether a call of the tool needs [call.Request.Picture].
func ShowsPicture(tool string) bool { return knownTools[tool].url == LinkPreview }

// AccessOf says who may call the tool, beyond its audience.
func AccessOf(tool string) ToolAccess { return knownTools[tool].access }

// LinkOf says what the one-time link in the url argument of the tool is for; "" if
// fleetd makes none.
func LinkOf(tool string) LinkPurpose { return knownTools[tool].url }

// ForOneDevice reports whether a call of the tool needs something made for its
// device: a fan-out cannot make it.
func ForOneDevice(tool string) bool { return knownTools[tool].single }

// EffectOf says what becomes of the connection of a device that runs the tool.
// An operator confirms by typing what takes a device away.
func EffectOf(tool string) ToolEffect { return knownTools[tool].effect }

// ByEvidence reports whether evidence decides a call of the tool: the device
// goes away without an answer.
func ByEvidence(tool string) bool { return knownTools[tool].silent }

// UsesCamera reports whether a device that runs the tool may send a picture to
// be explained. Boards name their tools as they like; that of the stock firmware
// is [ToolTakePhoto].
func UsesCamera(tool string) bool {
	name := strings.ToLower(tool)
	return strings.Contains(name, "camera") || strings.Contains(name, "photo")
}

// UserOnly reports whether the tool must never be called by a language model.
func (t Tool) UserOnly() bool {
	return t.Audience == AudienceUser || knownTools[t.Name].audience == AudienceUser
}

// UserOnlyTools are the names of tools that no language model ever calls, whatever
// a device says of them.
func UserOnlyTools() []string {
	var names []string
	for name, k := range knownTools {
		if k.audience == AudienceUser {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// DefaultCallTimeout is how long a call waits for its answer unless its request or
// its tool say otherwise.
const DefaultCallTimeout = 10 * time.Second

// DefaultTimeout is how long a call of the tool waits if its request does not say.
func DefaultTimeout(tool string) time.Duration {
	if d := knownTools[tool].timeout; d > 0 {
		return d
	}
	return DefaultCallTimeout
}
