package fleet

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

// Tools of the stock firmware that fleetd treats specially.
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

// Tools of the included firmware that fleetd treats specially.
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

// ToolEffect is the effect of a tool on its device's connection.
type ToolEffect string

const (
	EffectNone     ToolEffect = ""               // the device stays connected
	EffectRestarts ToolEffect = "restarts"       // it disconnects and returns within about a minute
	EffectLeaves   ToolEffect = "leaves_network" // it disconnects until a person sets up its Wi-Fi at the device
)

// ToolAccess restricts who may call a tool, in addition to its audience.
type ToolAccess int

const (
	AccessAudience  ToolAccess = iota
	AccessCampaigns            // only campaigns may call it, with an upgrade order
	AccessNone                 // fleetd never calls it
)

// LinkPurpose is the purpose of a one-time link.
type LinkPurpose string

const (
	LinkUpload   LinkPurpose = "upload"    // the device posts a picture: POST /u/{token}
	LinkCoreDump LinkPurpose = "core_dump" // the device posts a core dump: POST /u/{token}
	LinkPreview  LinkPurpose = "preview"   // the device fetches a picture: GET /d/{token}/preview.jpg
)

// A knownTool is what fleetd assumes about a tool because of its name, whatever the device
// lists. The zero value is an ordinary tool.
type knownTool struct {
	audience Audience      // AudienceUser: a language model never calls it
	access   ToolAccess    // who else may not call it
	effect   ToolEffect    // on the device's connection
	silent   bool          // the device disconnects without an answer; the outcome comes from evidence
	url      LinkPurpose   // purpose of the one-time link that fleetd puts into the argument url
	single   bool          // needs something made for one device, so it allows no fan-out
	reads    bool          // changes nothing, although its name does not show it; see [ReadsOnly]
	timeout  time.Duration // 0 means DefaultCallTimeout
}

// Timeouts of tools that connect, upload or download (protocol 4.9), and of devices that
// disconnect: the broker notices the restart of a device without a DISCONNECT after one and a
// half keepalives.
const (
	transferTimeout  = 75 * time.Second
	departureTimeout = 2 * time.Minute
)

// knownTools are the tools of stock and included firmware that fleetd treats specially. The
// table repeats the audience because the flag of tools/list is a filter and no access
// control, and some lists lack it.
//
// Entries that name no firmware are of the stock one, 78/xiaozhi-esp32 at 48142026 (2.4.2),
// below main/. It has no tool that sleeps, switches off or erases: the boards have buttons
// and timers for that.
var knownTools = map[string]knownTool{
	// mcp_server.cc, AddUserOnlyTools
	"self.get_system_info": {audience: AudienceUser},
	"self.screen.get_info": {audience: AudienceUser},
	ToolReboot:             {audience: AudienceUser, effect: EffectRestarts, silent: true, timeout: departureTimeout},
	ToolUpgradeFirmware:    {audience: AudienceUser, access: AccessCampaigns, effect: EffectRestarts, silent: true},
	ToolSnapshot:           {audience: AudienceUser, url: LinkUpload, timeout: transferTimeout},
	ToolPreviewImage:       {audience: AudienceUser, url: LinkPreview, single: true, timeout: transferTimeout},
	ToolSetAssetsURL:       {audience: AudienceUser, access: AccessNone}, // the device downloads at its next boot

	// mcp_server.cc, AddCommonTools
	ToolTakePhoto: {timeout: transferTimeout},

	// Boards. All of them list these tools for models.
	//
	// EnterWifiConfigMode (boards/common/wifi_board.cc) resets the protocol, which
	// sends DISCONNECT before the answer, stops the station and opens an access
	// point. In lckfb/szpi-esp32s3, lcdwiki-es3c35p, rymcu/bigsmart and 19 of waveshare:
	ToolReconfigureWiFi: {audience: AudienceUser, effect: EffectLeaves, silent: true, timeout: departureTimeout},
	// The same tool under another name, in waveshare's e-paper, rlcd, amoled-1.32 and 1.43c,
	// and zectrix:
	"self.disp.network": {audience: AudienceUser, effect: EffectLeaves, silent: true, timeout: departureTimeout},
	// zhengchen/cam and cam-ml307, mcp_controller.cc: esp_restart after a second, without DISCONNECT.
	"self.res.esp_restart": {audience: AudienceUser, effect: EffectRestarts, silent: true, timeout: departureTimeout},
	// yunliao-s3: inverts the colours permanently and calls Reboot.
	"self.system.switch_TFT": {audience: AudienceUser, effect: EffectRestarts, silent: true, timeout: departureTimeout},

	// The included firmware, firmware/components/fleet_tools.
	ToolCoreDumpUpload: {audience: AudienceUser, url: LinkCoreDump, single: true, timeout: 2 * time.Minute},
	ToolRollback:       {audience: AudienceUser, effect: EffectRestarts}, // answers first, then restarts
	ToolLogsTail:       {reads: true},
}

// ReadsOnly reports whether a tool changes nothing on its device, judged by its name. It does
// if the last part of the name is "get", "list" or "read", or begins with one of them and
// "_", as in self.get_device_status and self.config.get, or if [knownTools] marks it. Devices
// do not declare it, and fleetd does not check what the firmware does under such a name.
// Tools that disconnect the device or need a link never qualify.
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

// Bounds of a tool's name; the longest name of stock firmware has 30 bytes and 5 words.
const (
	maxNameBytes    = 64
	maxNameWords    = 8
	maxNameLastPart = 6 // words after the last dot
	maxNameCapitals = 2 // words in capitals
)

// commanding matches words that address a reader and name nothing on a device.
var commanding = regexp.MustCompile(`(?i)ignore|disregard|instruction|prompt|assistant|please`)

// IsSentence reports whether a tool's name reads like a sentence, in which a device may
// address a language model. Such a tool is shown with a warning and never counts as one that
// only reads.
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

// OwnsURL reports whether fleetd makes the url argument of the tool.
func OwnsURL(tool string) bool { return knownTools[tool].url != "" }

// ShowsPicture reports whether a call of the tool needs [call.Request.Picture].
func ShowsPicture(tool string) bool { return knownTools[tool].url == LinkPreview }

// AccessOf returns who may call the tool, in addition to its audience.
func AccessOf(tool string) ToolAccess { return knownTools[tool].access }

// LinkOf returns the purpose of the one-time link in the url argument of the tool; "" if
// fleetd makes no link.
func LinkOf(tool string) LinkPurpose { return knownTools[tool].url }

// ForOneDevice reports whether a call of the tool needs something made for its device. A
// fan-out cannot make such a call.
func ForOneDevice(tool string) bool { return knownTools[tool].single }

// EffectOf returns the effect of the tool on its device's connection. Operators must type a
// confirmation for tools that disconnect a device.
func EffectOf(tool string) ToolEffect { return knownTools[tool].effect }

// ByEvidence reports whether evidence decides the outcome of a call of the tool, because the
// device disconnects without an answer.
func ByEvidence(tool string) bool { return knownTools[tool].silent }

// UsesCamera reports whether a device that runs the tool may send a picture to be explained.
// Boards choose the names of their tools freely; the stock firmware's tool is
// [ToolTakePhoto].
func UsesCamera(tool string) bool {
	name := strings.ToLower(tool)
	return strings.Contains(name, "camera") || strings.Contains(name, "photo")
}

// UserOnly reports whether language models must never call the tool.
func (t Tool) UserOnly() bool {
	return t.Audience == AudienceUser || knownTools[t.Name].audience == AudienceUser
}

// UserOnlyTools returns the names of the tools that language models must never call, whatever
// a device reports about them.
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

// DefaultCallTimeout is how long a call waits for its answer unless its request or its tool
// has another timeout.
const DefaultCallTimeout = 10 * time.Second

// DefaultTimeout returns how long a call of the tool waits if its request has no timeout.
func DefaultTimeout(tool string) time.Duration {
	if d := knownTools[tool].timeout; d > 0 {
		return d
	}
	return DefaultCallTimeout
}
