package espimage

import (
	"bytes"
	"crypto/md5"
	"encoding/binary"
	"io"
)

// A Partition is one entry of a partition table.
type Partition struct {
	Label         string
	Type, Subtype uint8
	Offset, Size  int64 // in flash, and therefore also in a merged binary
}

const (
	partitionEntry = 32
	tableEntries   = 96 // 3 KiB, including the end mark
	firstTable     = 0x8000
	lastTable      = 0x20000 // projects with large bootloaders move the table up to here
	typeApp        = 0
)

var (
	entryMagic = []byte{0xAA, 0x50}
	sumMagic   = []byte{0xEB, 0xEB} // its entry holds the MD5 of the entries before it
	endMagic   = []byte{0xFF, 0xFF}
)

// findMerged returns the partition table of a file that contains a whole flash, nil for any
// other file, for example a single application image.
func findMerged(r io.ReaderAt, size int64, start []byte) ([]Partition, error) {
	table, _, err := findTable(r, size, start)
	if table == nil || err != nil {
		return nil, err
	}
	return readTable(table)
}

// findTable returns the bytes of a whole flash's partition table and their offset, or nil for
// any other file.
func findTable(r io.ReaderAt, size int64, start []byte) ([]byte, int64, error) {
	if isApp(start) || !mayBeFlash(start) {
		return nil, 0, nil
	}
	for at := int64(firstTable); at <= lastTable && at+2*partitionEntry <= size; at += sectorSize {
		table := make([]byte, min(size-at, tableEntries*partitionEntry))
		if err := readAt(r, table, at); err != nil {
			return nil, 0, err
		}
		if isTable(table) {
			return table, at, nil
		}
	}
	return nil, 0, nil
}

func isApp(start []byte) bool {
	return len(start) == minSize && start[0] == appMagic && binary.LittleEndian.Uint32(
		start[descriptorAt:]) == descriptorMagic
}

// mayBeFlash reports whether the file may be a whole flash: the bootloader is at 0, or at
// 0x1000 or 0x2000 after erased flash.
func mayBeFlash(start []byte) bool { return start[0] == appMagic || start[0] == 0xFF }

func isTable(b []byte) bool {
	second := b[partitionEntry:][:2]
	return bytes.HasPrefix(b, entryMagic) &&
		(bytes.Equal(second, entryMagic) || bytes.Equal(second, sumMagic) || bytes.Equal(second, endMagic))
}

// readTable reads entries up to the end mark, and checks their MD5 if the table has one.
func readTable(b []byte) ([]Partition, error) {
	var table []Partition
	for at := 0; at+partitionEntry <= len(b); at += partitionEntry {
		e := b[at : at+partitionEntry]
		switch {
		case bytes.HasPrefix(e, entryMagic):
			table = append(table, Partition{Type: e[2], Subtype: e[3], Label: text(e[12:28]),
				Offset: int64(binary.LittleEndian.Uint32(e[4:])), Size: int64(binary.LittleEndian.Uint32(e[8:]))})
		case bytes.HasPrefix(e, sumMagic):
			if sum := md5.Sum(b[:at]); !bytes.Equal(sum[:], e[16:]) {
				return nil, newFault(ReasonPartitions, "md5")
			}
			return table, nil
		case bytes.HasPrefix(e, endMagic):
			return table, nil
		default:
			return nil, newFault(ReasonPartitions, "entry", "entry", at/partitionEntry+1)
		}
	}
	return table, nil
}

// parseMerged parses the first application in the table.
func parseMerged(r io.ReaderAt, size int64, table []Partition, keys []Key) (*Image, error) {
	for _, p := range table {
		if p.Type == typeApp {
			return parsePartition(r, size, p, keys)
		}
	}
	return nil, newFault(ReasonPartitions, "no_app")
}

func parsePartition(r io.ReaderAt, size int64, p Partition, keys []Key) (*Image, error) {
	limit := min(p.Size, size-p.Offset)
	if limit <= 0 {
		return nil, newFault(ReasonTruncated, "before_app", "at_hex", p.Offset)
	}
	img, err := parseApp(io.NewSectionReader(r, p.Offset, limit), limit, keys)
	if err != nil {
		return nil, inPartition(err, p)
	}
	img.Merged, img.Offset, img.Size = &p, p.Offset, img.Length
	if len(img.Signatures) > 0 {
		img.Size = min(signatureSector(img.Length)+sectorSize, limit)
	}
	return img, nil
}

func inPartition(err error, p Partition) error {
	f, ok := err.(*Fault)
	if !ok {
		return err
	}
	return newFault(f.Reason, "in_partition", "label", p.Label, "at_hex", p.Offset, "cause", f)
}
