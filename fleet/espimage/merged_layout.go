package espimage

import "io"

// MergedLayout extracts the parts of the merged binary that img was parsed from. It omits the
// data that belong to one device: settings, which may contain a Wi-Fi password, core dumps,
// and the choice of the slot.
func MergedLayout(r io.ReaderAt, size int64, img *Image) (*Layout, error) {
	start, err := readStart(r, size)
	if err != nil {
		return nil, err
	}
	table, at, err := findTable(r, size, start)
	if err != nil {
		return nil, err
	}
	if img.Merged == nil || table == nil {
		return nil, newFault(ReasonLayout, "app_alone")
	}
	partitions, err := ParseTable(table, at)
	if err != nil {
		return nil, err
	}
	slot, err := bootSlot(partitions)
	if err != nil {
		return nil, err
	}
	if slot != *img.Merged {
		return nil, newFault(ReasonLayout, "other_app", "label", slot.Label, "other", img.Merged.Label)
	}
	p := Pieces{Chip: img.Chip, TableOffset: at, Table: io.NewSectionReader(r, at, int64(len(table))),
		App: io.NewSectionReader(r, img.Offset, img.Size)}
	if from := BootloaderOffset(img.Chip); from < at {
		p.Bootloader = io.NewSectionReader(r, from, at-from)
	}
	if p.Data, err = mergedData(r, size, partitions); err != nil {
		return nil, err
	}
	return p.Layout()
}

// mergedData returns the non-empty data partitions, without the erased flash at their ends.
func mergedData(r io.ReaderAt, size int64, table []Partition) (data []Piece, err error) {
	for _, p := range table {
		if p.Type == typeApp || p.private() || p.Offset >= size {
			continue
		}
		whole := io.NewSectionReader(r, p.Offset, min(p.Size, size-p.Offset))
		end, err := written(whole)
		if err != nil {
			return nil, err
		}
		if end > 0 {
			data = append(data, Piece{p.Offset, io.NewSectionReader(whole, 0, end)})
		}
	}
	return data, nil
}

// private reports whether only the device itself writes the partition.
func (p Partition) private() bool {
	if p.Type != typeData {
		return false
	}
	switch p.Subtype {
	case dataOTA, dataNVS, dataCoreDump, dataNVSKeys, dataEFuse:
		return true
	}
	return false
}
