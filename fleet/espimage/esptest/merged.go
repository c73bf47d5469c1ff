package esptest

import (
	"bytes"
	"crypto/md5"
	"encoding/binary"
)

// A Partition is an entry of a partition table.
type Partition struct {
	Label         string
	Type, Subtype byte
	Offset, Size  uint32
}

// Partitions is the layout of a stock 16 MB board.
var Partitions = []Partition{
	{"nvs", 1, 2, 0x9000, 0x4000},
	{"otadata", 1, 0, 0xD000, 0x2000},
	{"phy_init", 1, 1, 0xF000, 0x1000},
	{"ota_0", 0, 16, 0x20000, 0x3F0000},
	{"ota_1", 0, 17, 0x410000, 0x3F0000},
	{"assets", 1, 130, 0x800000, 0x800000},
}

// Table encodes a partition table, with its MD5.
func Table(partitions []Partition) []byte {
	var b []byte
	for _, p := range partitions {
		e := make([]byte, 32)
		e[0], e[1], e[2], e[3] = 0xAA, 0x50, p.Type, p.Subtype
		binary.LittleEndian.PutUint32(e[4:], p.Offset)
		binary.LittleEndian.PutUint32(e[8:], p.Size)
		copy(e[12:28], p.Label)
		b = append(b, e...)
	}
	sum := md5.Sum(b)
	b = append(b, 0xEB, 0xEB)
	b = append(b, bytes.Repeat([]byte{0xFF}, 14)...)
	b = append(b, sum[:]...)
	return append(b, bytes.Repeat([]byte{0xFF}, 0xC00-len(b))...)
}

// Merged returns a merged-binary.bin with the app in the first application partition.
// bootloaderAt is 0, or 0x1000 on the ESP32 and 0x2000 on the ESP32-P4. Erased flash and a
// little data follow the app.
func Merged(app []byte, partitions []Partition, bootloaderAt int) []byte {
	var at int
	for _, p := range partitions {
		if p.Type == 0 {
			at = int(p.Offset)
			break
		}
	}
	b := bytes.Repeat([]byte{0xFF}, at+len(app)+3*4096)
	copy(b[bootloaderAt:], App{Chip: chipOf(app)}.Bootloader())
	copy(b[0x8000:], Table(partitions))
	copy(b[at:], app)
	return append(b, "assets"...)
}

// Bootloader returns an image with a bootloader's descriptor.
func Bootloader() []byte { return App{}.Bootloader() }
