package ui

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// PathFlash is the page that installs firmware on blank boards: GET image, chip, since.
const PathFlash = "/flash"

// FlashPath is a part of it: "claim" and "build" accept forms; an image's SHA-256 with
// "manifest.json", "parts.zip", "merged.bin" or "parts" and "0.bin".
func FlashPath(parts ...string) string { return firmwarePath(PathFlash, parts[0], parts[1:]) }

// flashURL returns the page with an image chosen.
func flashURL(image string) string {
	return PathFlash + "?" + url.Values{"image": {image}}.Encode()
}

// FlashCSP is [CSP] for the page that installs firmware. The installer's dialog writes style
// attributes into its own shadow tree. Only attributes are allowed, on this page alone, but no
// style element and no foreign script.
const FlashCSP = CSP + "; style-src-attr 'unsafe-inline'"

// A FlashPage installs a released image on a board at a USB port: GET [PathFlash].
type FlashPage struct {
	Choices []FlashChoice // released images with a layout, for the requested chip
	Missing []FlashChoice // released images without a layout
	Chips   []string
	Chip    string // "" for all
	Chosen  *FlashTarget
	Why     string // why the image in the address cannot be installed, in the page's language
	Joining Joining
	Setup   Setup
	Fault   Fault  // why a build was rejected
	Code    string // claim code, as typed before
	Problem string // why the code was rejected
}

// A FlashChoice is one image on offer.
type FlashChoice struct {
	Ref     ImageRef
	Project string
	Release string
	Why     fleet.Reason // why its merged binary has no layout
}

// NewFlashChoice returns an installable image as a choice.
func NewFlashChoice(i firmware.Installable) FlashChoice {
	c := FlashChoice{Ref: Ref(i.Image), Project: i.Image.Project, Release: i.ReleaseVersion}
	if i.Layout != nil {
		c.Why = i.Layout.Problem
	}
	return c
}

// A FlashTarget is the image to install, with its parts.
type FlashTarget struct {
	firmware.Installable
	Browser bool // the installer in the browser supports the chip
}

// Joining lists the devices that may be the newly installed one: devices that wait for a decision,
// and devices that joined since the page was opened. A live stream replaces it as a whole.
type Joining struct {
	Since   time.Time
	Image   string
	Waiting []WaitingDevice
	Joined  []JoinedDevice
	CanAct  bool
}

// A JoinedDevice is enrolled and has started since.
type JoinedDevice struct {
	ID       fleet.DeviceID
	Title    string // an operator's text
	Board    string
	Version  string
	Presence fleet.Presence
	At       time.Time // of its boot poll
}

// stamp returns the time from which devices count as new, as in addresses.
func (j Joining) stamp() string { return strconv.FormatInt(j.Since.UnixMilli(), 10) }

// self returns the page's address with the same devices.
func (j Joining) self() string {
	return PathFlash + "?" + url.Values{"since": {j.stamp()}, "image": {j.Image}}.Encode()
}

func (j Joining) events() string {
	return EventsURL(ViewFlash, url.Values{"since": {j.stamp()}, "image": {j.Image}})
}

// self returns the page's present address, so that a reload shows the same devices.
func (v FlashPage) self() string {
	q := url.Values{"since": {v.Joining.stamp()}}
	if v.Chosen != nil {
		q.Set("image", v.Chosen.Image.SHA256)
	}
	if v.Chip != "" {
		q.Set("chip", v.Chip)
	}
	return PathFlash + "?" + q.Encode()
}

func (v FlashPage) filters(ctx context.Context) []filterChip {
	list := ListURL{Path: PathFlash, Values: url.Values{"since": {v.Joining.stamp()}}}
	chips := []filterChip{{Text: t(ctx, "firmware.all"), URL: list.With("chip", ""), On: v.Chip == ""}}
	for _, c := range v.Chips {
		chips = append(chips, filterChip{Text: c, URL: list.With("chip", c), On: v.Chip == c})
	}
	return chips
}

// chosen reports whether the choice is the image on the page.
func (v FlashPage) chosen(c FlashChoice) bool {
	return v.Chosen != nil && v.Chosen.Image.SHA256 == c.Ref.SHA256
}

func (v FlashPage) choiceURL(c FlashChoice) string {
	q := url.Values{"since": {v.Joining.stamp()}, "image": {c.Ref.SHA256}}
	if v.Chip != "" {
		q.Set("chip", v.Chip)
	}
	return PathFlash + "?" + q.Encode() + "#install"
}

func (f FlashTarget) path(parts ...string) string {
	return FlashPath(append([]string{f.Image.SHA256}, parts...)...)
}

func (f FlashTarget) partPath(n int) string { return f.path("parts", strconv.Itoa(n)+".bin") }

// ours reports whether the image is the included firmware, which gets its Wi-Fi settings from the
// installer.
func (f FlashTarget) ours() bool { return SpeaksImprov(f.Image) }

// SpeaksImprov reports whether the image's firmware supports Improv, according to the project name
// in the image's descriptor.
func SpeaksImprov(i firmware.Image) bool { return i.Project == "fleet_unit" }

func hexOffset(n int64) string { return "0x" + strconv.FormatInt(n, 16) }

// PartFile returns the file name of a part.
func PartFile(p firmware.ImagePart) string {
	switch p.Kind {
	case espimage.PartBootloader:
		return "bootloader.bin"
	case espimage.PartTable:
		return "partition-table.bin"
	case espimage.PartOTAData:
		return "ota_data_initial.bin"
	case espimage.PartApp:
		return "app.bin"
	}
	return "data-" + strings.TrimPrefix(hexOffset(p.Offset), "0x") + ".bin"
}

// FlashArgs returns the arguments of write-flash, in the format of ESP-IDF's flash_args.
func FlashArgs(parts []firmware.ImagePart) string {
	var args []string
	for _, p := range parts {
		args = append(args, hexOffset(p.Offset)+" "+PartFile(p))
	}
	return strings.Join(args, " ")
}

// command returns the command that writes the unpacked parts, for esptool before or from version 5.
func (f FlashTarget) command(old bool) string {
	tool, verb := "esptool", "write-flash"
	if old {
		tool, verb = "esptool.py", "write_flash"
	}
	return tool + " --chip " + f.Image.Chip + " --port PORT " + verb + " " + FlashArgs(f.Layout.Parts)
}

func (f FlashTarget) mergedCommand() string {
	return "esptool --chip " + f.Image.Chip + " --port PORT write-flash 0x0 " + MergedFile(f.Image)
}

// MergedFile returns the name of the file with all parts.
func MergedFile(i firmware.Image) string { return "merged-" + i.SHA256[:8] + ".bin" }

// PartsFile returns the name of the archive with all parts.
func PartsFile(i firmware.Image) string { return "parts-" + i.SHA256[:8] + ".zip" }

// pushLayoutCommand uploads a build with its layout.
const pushLayoutCommand = "fleetd image push --layout build/ --board BOARD"

// A LayoutCard is the part of an image's page about blank boards. Files of its build are posted to
// [FlashPath] of the image and "layout".
type LayoutCard struct {
	Image    firmware.Image
	Layout   firmware.ImageLayout // empty if the image has no layout
	Released bool                 // in a released release
	CanAct   bool
	Fault    Fault // why files were rejected
}

func hasLang(ctx context.Context, l i18n.Lang) bool { return page(ctx).Lang == l }
