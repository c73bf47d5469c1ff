package fleet

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"fleetd/fleet/sheet"
)

// Limits of a file of devices.
const (
	MaxDeviceFile  = 8 << 20 // bytes
	MaxFileLines   = MaxBulkDevices
	MaxFileColumns = 64
	maxFileCell    = 64 << 10 // bytes, including cells of ignored columns
	maxFileProblem = 1000     // invalid lines that are listed
	exportPage     = 1000     // devices read at a time
)

// DeviceColumns are the columns of an exported file. An import reads the columns id, name,
// tags and notes and ignores the others.
var DeviceColumns = []string{"id", "name", "tags", "notes", "board", "chip", "version", "presence", "last_seen",
	"enrolment", "hold", "transport", "address", "kind"}

// WriteDeviceFile writes devices as lines of CSV, after a line with the column names; nil
// columns mean all of [DeviceColumns]. next returns the devices page by page, and an empty
// page at the end.
func WriteDeviceFile(w io.Writer, columns []string, next func() ([]Device, error)) error {
	if len(columns) == 0 {
		columns = DeviceColumns
	}
	out := csv.NewWriter(w)
	_ = out.Write(columns) // Flush returns the error
	now := time.Now()
	for {
		page, err := next()
		if err != nil {
			return err
		}
		if len(page) == 0 {
			out.Flush()
			return out.Error()
		}
		for i := range page {
			cells := make([]string, len(columns))
			for j, c := range columns {
				cells[j] = sheet.Shield(deviceCell(&page[i], c, now))
			}
			_ = out.Write(cells)
		}
		out.Flush()
		if err := out.Error(); err != nil {
			return err
		}
	}
}

func checkColumns(columns []string) error {
	for _, c := range columns {
		if !slices.Contains(DeviceColumns, c) {
			return Refuse(ErrInvalid, "invalid_column", "value", c).At("columns")
		}
	}
	return nil
}

func deviceCell(d *Device, column string, now time.Time) string {
	switch column {
	case "id":
		return string(d.ID)
	case "name":
		return d.Name
	case "tags":
		return strings.Join(d.Tags, " ")
	case "notes":
		return d.Notes
	case "board":
		return d.Board
	case "chip":
		return d.Chip
	case "kind":
		return string(d.Kind)
	case "version":
		return d.Version
	case "presence":
		return string(d.Presence)
	case "last_seen":
		if d.LastSeen != nil {
			return d.LastSeen.UTC().Format(time.RFC3339)
		}
	case "enrolment":
		return string(d.Enrolment)
	case "hold":
		if d.Hold.Active(now) {
			return d.Hold.Reason
		}
	case "transport":
		return d.Transport
	case "address":
		return d.RemoteAddr
	}
	return ""
}

// A DeviceFile is a parsed import of devices.
type DeviceFile struct {
	Columns  []string     // of id, name, tags and notes, those that the file has
	Lines    []DeviceLine // in the file's order
	Invalid  int          // number of lines that could not be parsed
	Problems []LineProblem
}

// A DeviceLine is the change of one device in an imported file.
type DeviceLine struct {
	Line  int // in the file, from 1
	ID    DeviceID
	Patch DevicePatch
}

// A LineProblem is the reason why a line is invalid.
type LineProblem struct {
	Line int
	Why  Reason // a refusal's code
}

func (f *DeviceFile) fault(line int, err error) {
	f.Invalid++
	if len(f.Problems) < maxFileProblem {
		f.Problems = append(f.Problems, LineProblem{line, CauseOf(err)})
	}
}

// ParseDeviceFile parses a file of devices. Its first line names the columns, which must
// include id. ParseDeviceFile fails if the text is not such a file; it lists invalid lines in
// the result.
func ParseDeviceFile(text []byte) (DeviceFile, error) {
	var f DeviceFile
	if len(text) > MaxDeviceFile {
		return f, Refuse(ErrInvalid, "device_file_too_large", "limit_bytes", MaxDeviceFile).At("file")
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
		return f, Refuse(ErrInvalid, "invalid_device_file.text").At("file")
	}
	comma := byte(',')
	first, _, _ := bytes.Cut(text, []byte("\n"))
	if bytes.Count(first, []byte(";")) > bytes.Count(first, []byte(",")) {
		comma = ';' // spreadsheets use it where the comma is the decimal separator
	}
	if err := checkSize(text, comma); err != nil {
		return f, err
	}
	in := csv.NewReader(bytes.NewReader(text))
	in.FieldsPerRecord, in.Comma, in.ReuseRecord = -1, rune(comma), true
	columns, err := in.Read()
	if err != nil {
		return f, Refuse(ErrInvalid, "invalid_device_file.columns").At("file")
	}
	columns = slices.Clone(columns) // the reader reuses the slice
	for i, c := range columns {
		columns[i] = strings.ToLower(strings.TrimSpace(c))
	}
	if !slices.Contains(columns, "id") || !slices.ContainsFunc(columns, changeable) {
		return f, Refuse(ErrInvalid, "invalid_device_file.columns").At("file")
	}
	if sorted := slices.Sorted(slices.Values(columns)); len(slices.Compact(sorted)) < len(columns) {
		return f, Refuse(ErrInvalid, "invalid_device_file.twice").At("file")
	}
	for _, c := range columns {
		if c == "id" || changeable(c) {
			f.Columns = append(f.Columns, c)
		}
	}
	seen := map[DeviceID]int{}
	for {
		cells, err := in.Read()
		if err == io.EOF {
			return f, nil
		}
		if len(f.Lines)+f.Invalid >= MaxFileLines {
			return f, Refuse(ErrInvalid, "device_file_too_long", "limit", MaxFileLines).At("file")
		}
		if wrong, ok := errors.AsType[*csv.ParseError](err); ok {
			f.fault(wrong.StartLine, Refuse(ErrInvalid, "invalid_line.quotes"))
			continue
		}
		if err != nil {
			return f, err
		}
		line, _ := in.FieldPos(0)
		l, err := deviceLine(columns, cells)
		if err == nil && seen[l.ID] > 0 {
			err = Refuse(ErrInvalid, "invalid_line.again", "device", l.ID, "line", seen[l.ID])
		}
		if err != nil {
			f.fault(line, err)
			continue
		}
		l.Line, seen[l.ID] = line, line
		f.Lines = append(f.Lines, l)
	}
}

// checkSize refuses a file that would need much more memory when parsed than its length.
func checkSize(text []byte, comma byte) error {
	err := sheet.Check(text, comma, sheet.Limits{Columns: MaxFileColumns, CellBytes: maxFileCell})
	over, ok := errors.AsType[*sheet.BoundError](err)
	switch {
	case !ok:
		return err
	case over.Columns:
		return Refuse(ErrInvalid, "device_file_too_wide", "line", over.Line, "limit", MaxFileColumns).At("file")
	}
	return Refuse(ErrInvalid, "device_file_too_wide.cell", "line", over.Line, "limit_bytes", maxFileCell).At("file")
}

func changeable(column string) bool { return column == "name" || column == "tags" || column == "notes" }

func deviceLine(columns, cells []string) (l DeviceLine, err error) {
	if len(cells) != len(columns) {
		return l, Refuse(ErrInvalid, "invalid_line.cells", "n", len(cells), "columns", len(columns))
	}
	for i, column := range columns {
		cell := sheet.Unshield(cells[i])
		switch column {
		case "id":
			if l.ID, err = ParseDeviceID(cell); err != nil {
				return l, err
			}
		case "name":
			l.Patch.Name = &cell
		case "tags":
			l.Patch.Tags = new(strings.FieldsFunc(cell, func(r rune) bool { return strings.ContainsRune(" ,;\t\n", r) }))
		case "notes":
			l.Patch.Notes = new(strings.ReplaceAll(cell, "\r\n", "\n"))
		}
	}
	return l, l.Patch.clean()
}
