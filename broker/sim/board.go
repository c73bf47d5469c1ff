package sim

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// A network is a board's kind of network connection; it shapes the boot poll (1.3).
type network uint8

const (
	wifi network = iota
	cellular
)

// A chip describes a chip with the SDK's names and numbers.
type chip struct {
	name    string // chip_model_name
	model   int    // chip_info.model
	imageID uint16 // chip_id in an app image
	cores   int
}

var (
	esp32   = chip{"esp32", 1, 0x0000, 2}
	esp32s3 = chip{"esp32s3", 9, 0x0009, 2}
	esp32c3 = chip{"esp32c3", 5, 0x0005, 1}
)

// A partition of the flash, as the boot poll lists it.
type partition struct {
	label         string
	kind, subtype int
	address, size int
}

func (p partition) isSlot() bool { return p.kind == 0 && p.subtype >= 16 && p.subtype < 32 }

// A screen is a board's display; the zero value means no display.
type screen struct {
	width, height int
	mono          bool
}

// A board is the common part of all devices of one build variant. Boards are built once and never
// change, so ten thousand devices cost nothing here.
type board struct {
	name       string
	chip       chip
	flash      int // bytes
	heap       string
	partitions []partition
	screen     screen
	network    network
	lvgl       bool // themes
	snapshot   bool // CONFIG_LV_USE_SNAPSHOT: S3 and P4 with LVGL
	backlight  bool
	camera     bool
	battery    bool
	serial     bool // has a serial number in eFuse
	software   bool // not a board, but a program that simulates one
	own        []*tool

	tools    []*tool
	oldTools []*tool // of versions before 2.3 (4.5)
}

// boards is the catalogue, by name.
var boards = catalogue()

// BoardNames lists the boards that [Options] may name.
func BoardNames() []string {
	var names []string
	for _, b := range boards {
		names = append(names, b.name)
	}
	return names
}

func boardByName(name string) (*board, error) {
	for _, b := range boards {
		if b.name == name {
			return b, nil
		}
	}
	return nil, fmt.Errorf("board %q is unknown; known are %s", name, strings.Join(BoardNames(), ", "))
}

// equip sets b's tools in the firmware's order: common, own, user-only.
func (b *board) equip() *board {
	all := append(commonTools(b), b.own...)
	all = append(all, userTools(b)...)
	if b.software {
		all = softwareTools(b)
	}
	b.tools, b.oldTools = nil, nil
	for _, t := range all {
		t.json = t.marshal()
		b.tools = append(b.tools, t)
		if t.name != "self.assets.set_download_url" || b.hasAssets() {
			b.oldTools = append(b.oldTools, t)
		}
	}
	return b
}

func (b *board) hasAssets() bool { return b.partition("assets") != nil }

func (b *board) partition(label string) *partition {
	for i, p := range b.partitions {
		if p.label == label {
			return &b.partitions[i]
		}
	}
	return nil
}

// slots returns the labels of the slots that an image can run from, OTA or not.
func (b *board) slots() (labels []string) {
	for _, p := range b.partitions {
		if p.isSlot() {
			labels = append(labels, p.label)
		}
	}
	return labels
}

// A build is a firmware as it identifies itself. Devices share it.
type build struct {
	version  string
	compiled string // not ISO 8601: "Aug  8 2026T08:33:45Z"
	idf      string
	elf      string // app_elf_sha256, hex
}

// released lists the versions that a new fleet runs, oldest first.
var released = []build{
	{version: "2.2.4", compiled: "Feb  6 2026T10:12:31Z", idf: "v5.5.2"},
	{version: "2.2.6", compiled: "Mar 20 2026T09:47:02Z", idf: "v5.5.2"},
	{version: "2.3.1", compiled: "May 15 2026T11:05:58Z", idf: "v5.5.4"},
	{version: "2.4.0", compiled: "Jul  3 2026T08:21:14Z", idf: "v6.0.1"},
	{version: "2.4.2", compiled: "Aug  8 2026T08:33:45Z", idf: "v6.0.2"},
}

// releases returns the builds of one board: same versions, other hashes.
func (b *board) releases() []*build {
	var builds []*build
	for _, r := range released {
		r.elf = hex.EncodeToString(digest(0, "elf", b.name, r.version))
		builds = append(builds, &r)
	}
	return builds
}

// toolset returns the tools that this version of the firmware registers on the board.
func (b *board) toolset(version string) []*tool {
	if newer, err := newerVersion(version, "2.3"); err == nil && newer {
		return b.oldTools
	}
	return b.tools
}
