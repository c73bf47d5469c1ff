// Package esptest generates ESP32 application images for tests: valid images of any chip,
// version and size, signed or inside a merged binary. A test can then damage them.
//
// It shares no code with package espimage, whose tests it serves.
//
// An image is a function of its options: equal options give equal bytes.
package esptest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
)

// An App describes an image. The zero value describes a small image for the ESP32-S3.
type App struct {
	Chip          string // default "esp32s3"
	Version       string // default "2.4.3"
	Project       string // default "xiaozhi"
	IDF           string // default "v6.0.2"
	Time, Date    string // default "08:33:45", "Aug  8 2026"
	ELF           [32]byte
	ELFOf         string // if set, ELF is its SHA-256; if both are zero, ELF follows from chip, version and Size
	Size          int    // approximate bytes; the last segment is filled with bytes derived from ELF
	MinRev        uint16
	MaxRev        uint16 // 0 means 65535
	SecureVersion uint32
	FlashSize     byte // high nibble of byte 3; default 4, 16 MB
	NoHash        bool
	LoaderSize    int // approximate size of its bootloader; default 20,000
}

var chipIDs = map[string]uint16{"esp32": 0, "esp32s2": 2, "esp32c3": 5, "esp32s3": 9, "esp32c2": 0xC, "esp32c6": 0xD,
	"esp32h2": 0x10, "esp32p4": 0x12, "esp32c61": 0x14, "esp32c5": 0x17, "esp32h21": 0x19, "esp32h4": 0x1C,
	"esp32s31": 0x20}

// ELFSHA256 returns the app_elf_sha256 of the image.
func (a App) ELFSHA256() [32]byte {
	a.fill()
	return a.ELF
}

func (a *App) fill() {
	or := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	or(&a.Chip, "esp32s3")
	or(&a.Version, "2.4.3")
	or(&a.Project, "xiaozhi")
	or(&a.IDF, "v6.0.2")
	or(&a.Time, "08:33:45")
	or(&a.Date, "Aug  8 2026")
	if a.MaxRev == 0 {
		a.MaxRev = 65535
	}
	if a.FlashSize == 0 {
		a.FlashSize = 4
	}
	if a.ELF == [32]byte{} {
		seed := a.ELFOf
		if seed == "" {
			seed = a.Chip + " " + a.Version + " " + string(binary.AppendVarint(nil, int64(a.Size)))
		}
		a.ELF = sha256.Sum256([]byte(seed))
	}
}

// Bytes returns the image.
func (a App) Bytes() []byte {
	a.fill()
	rodata := append(a.descriptor(), bytes.Repeat([]byte{0x5A}, 32)...)
	segments := [][]byte{rodata, bytes.Repeat([]byte{1}, 32)}
	if rest := a.Size - 480; rest > 0 {
		segments = append(segments, noise(a.ELF, rest&^3))
	}
	return a.image(segments)
}

// image returns the segments with header, checksum and hash.
func (a App) image(segments [][]byte) []byte {
	b := a.header(len(segments))
	sum := byte(0xEF)
	for i, s := range segments {
		b = binary.LittleEndian.AppendUint32(b, 0x3C000020+uint32(i)<<16)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
		for _, v := range s {
			sum ^= v
		}
	}
	b = append(b, make([]byte, 15-len(b)%16)...)
	b = append(b, sum)
	if !a.NoHash {
		hash := sha256.Sum256(b)
		b = append(b, hash[:]...)
	}
	return b
}

func (a App) header(segments int) []byte {
	h := make([]byte, 24)
	h[0], h[1], h[2], h[3] = 0xE9, byte(segments), 2, a.FlashSize<<4|0x0F
	binary.LittleEndian.PutUint32(h[4:], 0x40374000)
	h[8] = 0xEE
	binary.LittleEndian.PutUint16(h[12:], chipIDs[a.Chip])
	binary.LittleEndian.PutUint16(h[15:], a.MinRev)
	binary.LittleEndian.PutUint16(h[17:], a.MaxRev)
	if !a.NoHash {
		h[23] = 1
	}
	return h
}

func (a App) descriptor() []byte {
	d := make([]byte, 256)
	binary.LittleEndian.PutUint32(d, 0xABCD5432)
	binary.LittleEndian.PutUint32(d[4:], a.SecureVersion)
	copy(d[16:48], a.Version)
	copy(d[48:80], a.Project)
	copy(d[80:96], a.Time)
	copy(d[96:112], a.Date)
	copy(d[112:144], a.IDF)
	copy(d[144:176], a.ELF[:])
	binary.LittleEndian.PutUint16(d[178:], 199)
	d[180], d[181] = 16, 2
	return d
}

// noise returns deterministic bytes that do not compress.
func noise(seed [32]byte, n int) []byte {
	out := make([]byte, n)
	x := binary.LittleEndian.Uint64(seed[:]) | 1
	for i := range out {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		out[i] = byte(x)
	}
	return out
}
