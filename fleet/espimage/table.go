package espimage

import (
	"cmp"
	"slices"
)

// Types of partitions, and subtypes as ESP-IDF's gen_esp32part.py names them.
const (
	typeData = 1

	appFactory = 0x00
	appOTA0    = 0x10
	appOTALast = 0x1F

	dataOTA      = 0x00
	dataNVS      = 0x02
	dataCoreDump = 0x03
	dataNVSKeys  = 0x04
	dataEFuse    = 0x05
)

const (
	tableSize    = sectorSize // size of the table in flash
	appAlignment = 64 << 10   // the chips map flash in pages of this size
	maxFlash     = 256 << 20  // no larger flash exists for these devices
)

// ParseTable parses a partition table as stored in flash, at offset. It rejects every table
// that a device would reject: entries that are outside of flash, unaligned, empty or
// duplicate, or that overlap each other or the table.
func ParseTable(b []byte, offset int64) ([]Partition, error) {
	if len(b) < 2*partitionEntry || !isTable(b) {
		return nil, newFault(ReasonPartitions, "not_one")
	}
	if len(b) > tableSize {
		return nil, newFault(ReasonPartitions, "long", "size", len(b), "room", tableSize)
	}
	table, err := readTable(b[:min(len(b), tableEntries*partitionEntry)])
	if err != nil {
		return nil, err
	}
	return table, checkTable(table, offset)
}

func checkTable(table []Partition, offset int64) error {
	byOffset := slices.SortedFunc(slices.Values(table), func(a, b Partition) int {
		return cmp.Compare(a.Offset,
			b.Offset)
	})
	labels := make(map[string]bool, len(table))
	end := offset + tableSize
	for i, p := range byOffset {
		if err := p.check(); err != nil {
			return err
		}
		switch {
		case labels[p.Label]:
			return newFault(ReasonPartitions, "twice", "label", p.Label)
		case p.Offset < end && i == 0:
			return newFault(ReasonPartitions, "on_table", "label", p.Label, "at_hex", p.Offset, "end_hex", end)
		case p.Offset < end:
			return newFault(ReasonPartitions, "overlaps", "label", p.Label, "at_hex", p.Offset,
				"other", byOffset[i-1].Label, "end_hex", end)
		}
		labels[p.Label], end = true, p.End()
	}
	return nil
}

// End returns the offset of the first byte after the partition.
func (p Partition) End() int64 { return p.Offset + p.Size }

func (p Partition) check() error {
	switch {
	case p.Size == 0:
		return newFault(ReasonPartitions, "empty", "label", p.Label)
	case p.End() > maxFlash:
		return newFault(ReasonPartitions, "beyond_flash", "label", p.Label, "end_hex", p.End())
	case p.Offset%sectorSize != 0 || p.Type == typeApp && p.Offset%appAlignment != 0:
		return newFault(ReasonPartitions, "misaligned", "label", p.Label, "at_hex", p.Offset)
	}
	return nil
}

// bootSlot returns the partition from which a device with erased otadata starts.
func bootSlot(table []Partition) (Partition, error) {
	var first *Partition
	for i, p := range table {
		switch {
		case p.Type != typeApp:
		case p.Subtype == appFactory:
			return p, nil
		case p.Subtype >= appOTA0 && p.Subtype <= appOTALast && (first == nil || p.Subtype < first.Subtype):
			first = &table[i]
		}
	}
	if first == nil {
		return Partition{}, newFault(ReasonPartitions, "no_boot_app")
	}
	return *first, nil
}

func findPartition(table []Partition, kind, subtype uint8) (Partition, bool) {
	i := slices.IndexFunc(table, func(p Partition) bool { return p.Type == kind && p.Subtype == subtype })
	if i < 0 {
		return Partition{}, false
	}
	return table[i], true
}
