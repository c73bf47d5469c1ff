package esptest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"strconv"
	"strings"
)

// Bootloader returns the second-stage bootloader for the app's chip and flash size: a valid
// image with a bootloader's descriptor.
func (a App) Bootloader() []byte {
	a.fill()
	d := make([]byte, 80)
	d[0] = 0x50
	binary.LittleEndian.PutUint32(d[4:], 1)
	copy(d[8:40], a.IDF)
	copy(d[40:64], a.Date+" "+a.Time)
	size := cmp.Or(a.LoaderSize, 20_000) - 600
	return a.image([][]byte{append(d, bytes.Repeat([]byte{0x17}, 400)...), noise(a.ELF, size&^3)})
}

// Blank returns the content of initial otadata.
func Blank() []byte { return bytes.Repeat([]byte{0xFF}, 0x2000) }

var subtypes = map[string]byte{"ota_0": 0x10, "ota_1": 0x11, "factory": 0, "ota": 0, "phy": 1, "nvs": 2, "coredump": 3,
	"nvs_keys": 4, "undefined": 6, "fat": 0x81, "spiffs": 0x82}

// LayOut parses a partition table in CSV and assigns the offsets that ESP-IDF's generator
// assigns, with the table itself at tableAt.
func LayOut(csv string, tableAt uint32) (table []Partition) {
	end := tableAt + 0x1000
	for line := range strings.Lines(csv) {
		line, _, _ = strings.Cut(line, "#")
		cells := strings.Split(line, ",")
		if len(cells) < 5 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		p := Partition{Label: cells[0], Subtype: subtypes[cells[2]], Size: number(cells[4])}
		align := uint32(0x10000)
		if cells[1] == "data" {
			p.Type, align = 1, 0x1000
		}
		p.Offset = (end + align - 1) &^ (align - 1)
		if cells[3] != "" {
			p.Offset = number(cells[3])
		}
		table = append(table, p)
		end = p.Offset + p.Size
	}
	return table
}

// number parses 0x6000, 24K or 3M.
func number(s string) uint32 {
	unit := uint64(1)
	switch {
	case strings.HasSuffix(s, "K"):
		unit, s = 1<<10, s[:len(s)-1]
	case strings.HasSuffix(s, "M"):
		unit, s = 1<<20, s[:len(s)-1]
	}
	n, err := strconv.ParseUint(s, 0, 32)
	if err != nil {
		panic(err)
	}
	return uint32(n * unit)
}

// chipOf returns the chip named in an image.
func chipOf(app []byte) string {
	if len(app) >= 14 {
		for chip, id := range chipIDs {
			if binary.LittleEndian.Uint16(app[12:]) == id {
				return chip
			}
		}
	}
	return ""
}
