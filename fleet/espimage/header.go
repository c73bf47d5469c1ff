package espimage

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
)

// A Header is the first 24 bytes of an image, esp_image_header_t.
type Header struct {
	SegmentCount  uint8
	SPIMode       uint8
	SPISpeed      uint8 // low nibble
	SPISize       uint8 // high nibble
	FlashSize     int64 // bytes, from SPISize; 0 if unknown
	EntryAddr     uint32
	WPPin         uint8
	SPIPinDrv     [3]uint8
	ChipID        uint16
	LegacyChipRev uint8  // min_chip_rev of ESP-IDF before 4.4
	MinChipRev    uint16 // major*100+minor; 0 for any
	MaxChipRev    uint16 // major*100+minor; 65535 for any
	HashAppended  bool
}

// A Descriptor is the application descriptor, esp_app_desc_t. Its texts are unchecked, as the
// build wrote them, and may not even be UTF-8.
type Descriptor struct {
	SecureVersion  uint32
	Version        string
	Project        string
	Time, Date     string // "08:33:45", "Aug  8 2026"
	IDFVersion     string
	ELFSHA256      string // hex; 64 zeros if the build omitted it
	MinBlockRev    uint16 // eFuse block revision
	MaxBlockRev    uint16
	MMUPageSize    uint8 // log2; 0 in older builds
	SPIFlashMode   uint8
	BuiltWithoutID bool // ELFSHA256 is all zeros: the build cannot be identified
}

// noRevision in a revision field means that there is no limit, as does zero.
const noRevision = 0xFFFF

func decodeHeader(b []byte) Header {
	le := binary.LittleEndian
	h := Header{SegmentCount: b[1], SPIMode: b[2], SPISpeed: b[3] & 0x0F, SPISize: b[3] >> 4,
		EntryAddr: le.Uint32(b[4:]), WPPin: b[8], SPIPinDrv: [3]uint8(b[9:12]), ChipID: le.Uint16(b[12:]),
		LegacyChipRev: b[14], MinChipRev: le.Uint16(b[15:]), MaxChipRev: le.Uint16(b[17:]), HashAppended: b[23] != 0}
	if h.SPISize <= 7 {
		h.FlashSize = 1 << (20 + h.SPISize)
	}
	if h.MinChipRev == noRevision {
		h.MinChipRev = 0
	}
	if h.MaxChipRev == 0 {
		h.MaxChipRev = noRevision
	}
	return h
}

// decodeDescriptor decodes the 256 bytes that follow the first segment's header.
func decodeDescriptor(b []byte) Descriptor {
	le := binary.LittleEndian
	elf := b[144:176]
	return Descriptor{SecureVersion: le.Uint32(b[4:]), Version: text(b[16:48]), Project: text(b[48:80]),
		Time: text(b[80:96]), Date: text(b[96:112]), IDFVersion: text(b[112:144]),
		ELFSHA256: hex.EncodeToString(elf), BuiltWithoutID: allZero(elf),
		MinBlockRev: le.Uint16(b[176:]), MaxBlockRev: le.Uint16(b[178:]), MMUPageSize: b[180], SPIFlashMode: b[181]}
}

// text decodes a NUL-padded field; a field without a NUL uses all of its space.
func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

func allZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
