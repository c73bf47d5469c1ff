package espimage

import (
	"bytes"
	"cmp"
	"io"
	"slices"
)

// A PartKind is the purpose of a part of flash.
type PartKind string

const (
	PartBootloader PartKind = "bootloader"
	PartTable      PartKind = "partition_table"
	PartOTAData    PartKind = "otadata" // selects the slot to start; erased on a blank board
	PartApp        PartKind = "app"
	PartData       PartKind = "data" // other data that the firmware needs in flash
)

// A Part is a region of flash with its content.
type Part struct {
	Kind   PartKind
	Label  string // label of its partition; foreign text. "" before the first partition
	Offset int64  // in flash
	Data   *io.SectionReader
}

// End returns the offset of the first byte after the part.
func (p Part) End() int64 { return p.Offset + p.Data.Size() }

// A Layout is the content of flash that a blank board needs to run an application.
type Layout struct {
	Chip      string
	FlashSize int64  // bytes that the bootloader was built for; 0 if unknown
	Parts     []Part // sorted by offset, without overlap
}

// Pieces are the unchecked files that a build produces for a blank board.
type Pieces struct {
	Bootloader  *io.SectionReader
	Table       *io.SectionReader
	TableOffset int64
	OTAData     *io.SectionReader // nil for erased flash
	App         *io.SectionReader
	Chip        string  // chip of the application
	Data        []Piece // everything else
}

// A Piece is a file with its offset in flash.
type Piece struct {
	Offset int64
	Data   *io.SectionReader
}

// Layout combines the pieces. Its error is a [*Fault] unless a piece cannot be read.
func (p Pieces) Layout() (*Layout, error) {
	if p.Bootloader == nil {
		return nil, newFault(ReasonBootloader, "missing")
	}
	if p.Table == nil {
		return nil, newFault(ReasonPartitions, "missing")
	}
	l := &Layout{Chip: p.Chip}
	if err := p.addBootloader(l); err != nil {
		return nil, err
	}
	table, err := p.addTable(l)
	if err != nil {
		return nil, err
	}
	if err := p.addPartitions(l, table); err != nil {
		return nil, err
	}
	slices.SortFunc(l.Parts, func(a, b Part) int { return cmp.Compare(a.Offset, b.Offset) })
	return l, l.check()
}

func (l *Layout) add(kind PartKind, label string, offset int64, data *io.SectionReader) {
	l.Parts = append(l.Parts, Part{Kind: kind, Label: label, Offset: offset, Data: data})
}

func (p Pieces) addBootloader(l *Layout) error {
	img, err := ParseBootloader(p.Bootloader, p.Bootloader.Size())
	if err != nil {
		return err
	}
	if img.Chip != p.Chip {
		return newFault(ReasonBootloader, "other_chip", "chip", img.Chip, "other", p.Chip)
	}
	at := BootloaderOffset(p.Chip)
	if end := at + img.Size; end > p.TableOffset {
		return newFault(ReasonLayout, "bootloader_reaches", "end_hex", end, "table_hex", p.TableOffset)
	}
	l.FlashSize = img.Header.FlashSize
	l.add(PartBootloader, "", at, io.NewSectionReader(p.Bootloader, 0, img.Size))
	return nil
}

func (p Pieces) addTable(l *Layout) ([]Partition, error) {
	if p.TableOffset < firstTable || p.TableOffset > lastTable || p.TableOffset%sectorSize != 0 {
		return nil, newFault(ReasonLayout, "table_offset", "at_hex", p.TableOffset)
	}
	b := make([]byte, min(p.Table.Size(), tableSize+1))
	if err := readAt(p.Table, b, 0); err != nil {
		return nil, err
	}
	table, err := ParseTable(b, p.TableOffset)
	if err != nil {
		return nil, err
	}
	for _, entry := range table {
		if l.FlashSize > 0 && entry.End() > l.FlashSize {
			return nil, newFault(ReasonLayout, "beyond_flash", "label", entry.Label, "end_hex", entry.End(),
				"flash_mib", l.FlashSize>>20)
		}
	}
	l.add(PartTable, "", p.TableOffset, p.Table)
	return table, nil
}

// addPartitions adds the content of partitions: the application in the slot that a blank
// board starts, erased otadata, and data.
func (p Pieces) addPartitions(l *Layout, table []Partition) error {
	slot, err := bootSlot(table)
	if err != nil {
		return err
	}
	if p.App.Size() > slot.Size {
		return newFault(ReasonLayout, "app_size", "size", p.App.Size(), "label", slot.Label, "room", slot.Size)
	}
	l.add(PartApp, slot.Label, slot.Offset, p.App)
	if err := p.addOTAData(l, table); err != nil {
		return err
	}
	for _, d := range p.Data {
		if err := l.addData(table, d); err != nil {
			return err
		}
	}
	return nil
}

func (p Pieces) addOTAData(l *Layout, table []Partition) error {
	place, ok := findPartition(table, typeData, dataOTA)
	if !ok {
		if p.OTAData != nil {
			return newFault(ReasonOTAData, "no_partition")
		}
		return nil
	}
	if place.Size > maxOTAData {
		return newFault(ReasonOTAData, "partition_size", "size", place.Size, "most", maxOTAData)
	}
	if p.OTAData != nil {
		if err := checkOTAData(p.OTAData, place.Size); err != nil {
			return err
		}
	}
	erased := bytes.Repeat([]byte{0xFF}, int(place.Size))
	l.add(PartOTAData, place.Label, place.Offset, io.NewSectionReader(bytes.NewReader(erased), 0, place.Size))
	return nil
}

const maxOTAData = 2 * sectorSize

// checkOTAData accepts only erased otadata: any other content starts a slot that the layout
// leaves empty.
func checkOTAData(data *io.SectionReader, room int64) error {
	if data.Size() > room {
		return newFault(ReasonOTAData, "size", "size", data.Size(), "room", room)
	}
	end, err := written(data)
	if err == nil && end > 0 {
		return newFault(ReasonOTAData, "not_initial")
	}
	return err
}

func (l *Layout) addData(table []Partition, d Piece) error {
	end := d.Offset + d.Data.Size()
	if end == d.Offset {
		return newFault(ReasonLayout, "data_empty", "at_hex", d.Offset)
	}
	i := slices.IndexFunc(table, func(p Partition) bool { return p.Offset <= d.Offset && end <= p.End() })
	if i < 0 || table[i].Type == typeApp {
		return newFault(ReasonLayout, "data_nowhere", "size", d.Data.Size(), "at_hex", d.Offset)
	}
	l.add(PartData, table[i].Label, d.Offset, d.Data)
	return nil
}

func (l *Layout) check() error {
	for i, p := range l.Parts {
		if i > 0 && l.Parts[i-1].End() > p.Offset {
			return newFault(ReasonLayout, "overlap", "end_hex", l.Parts[i-1].End(), "at_hex", p.Offset)
		}
	}
	return nil
}

// written returns the offset after the last byte that is not erased flash.
func written(r *io.SectionReader) (int64, error) {
	buf := make([]byte, 32<<10)
	for end := r.Size(); end > 0; {
		part := buf[:min(int64(len(buf)), end)]
		if err := readAt(r, part, end-int64(len(part))); err != nil {
			return 0, err
		}
		if kept := len(bytes.TrimRight(part, "\xff")); kept > 0 {
			return end - int64(len(part)-kept), nil
		}
		end -= int64(len(part))
	}
	return 0, nil
}
