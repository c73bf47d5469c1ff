package enrolment

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"fleetd/fleet"
)

// Limits of a list of serial numbers.
const (
	MaxSerials       = 200_000  // on record in total
	MaxSerialFile    = 16 << 20 // bytes of one file
	maxSerialLine    = 400      // bytes
	maxLineProblems  = 20       // reported per file
	serialKeyBytes   = 32       // an HMAC key in eFuse
	serialFileHeader = "serial,key"
)

var serialPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// A serialRow is one line of a list: a serial number and its HMAC key.
type serialRow struct {
	line   int
	serial string
	key    []byte
}

// A LineCode is the code of a problem with a line of a list of serial numbers.
type LineCode string

// The problems of a line.
const (
	LineFields      LineCode = "serial_line_fields"        // not two fields
	LineTooLong     LineCode = "serial_line_too_long"      // longer than any valid line
	LineSerial      LineCode = "serial_line_serial"        // no serial number
	LineKey         LineCode = "serial_line_key"           // not 64 hex digits
	LineDuplicate   LineCode = "serial_line_duplicate"     // the same serial number as line Other
	LineOtherKey    LineCode = "serial_line_other_key"     // already on record with another key
	LineUnreadable  LineCode = "serial_line_unreadable"    // its key on record cannot be opened for comparison
	LineTooManyRows LineCode = "serial_line_too_many_rows" // more than MaxSerials
)

// A LineProblem is a line that cannot be loaded. It never quotes the line, because half of it
// is a secret.
type LineProblem struct {
	Line  int // from 1
	Code  LineCode
	Other int // the line with the same serial number, for a LineDuplicate
}

// A SerialFileError refuses a whole list: none of it was loaded.
type SerialFileError struct {
	Problems []LineProblem // the first problems
	More     int           // how many more lines are wrong
	refusal  *fleet.Error
}

func newSerialFileError(problems []LineProblem) *SerialFileError {
	e := &SerialFileError{Problems: problems[:min(len(problems), maxLineProblems)]}
	e.More = len(problems) - len(e.Problems)
	first := problems[0]
	e.refusal = fleet.Refuse(fleet.ErrInvalid, "invalid_serial_file", "line", first.Line,
		"cause", first.Reason()).At(fmt.Sprintf("line %d", first.Line))
	return e
}

func (e *SerialFileError) Error() string { return e.refusal.Error() }
func (e *SerialFileError) Unwrap() error { return e.refusal }

// Reason returns the problem of the line.
func (p LineProblem) Reason() fleet.Reason {
	return fleet.Because(string(p.Code), "n", p.Other, "max", MaxSerials)
}

// readSerials reads a list. Each line contains a serial number, a comma and 64 hex digits. The
// first line may be a heading; blank lines and lines that begin with # are skipped. Fields may
// be quoted, as spreadsheets write them.
func readSerials(r io.Reader) ([]serialRow, []LineProblem, error) {
	var rows []serialRow
	var problems []LineProblem
	seen := make(map[string]int)
	in := bufio.NewReaderSize(io.LimitReader(r, MaxSerialFile+1), 64<<10)
	for line, size := 1, 0; ; line++ {
		text, long, err := readLine(in)
		if size += len(text); size > MaxSerialFile {
			return nil, nil, fleet.Refuse(fleet.ErrInvalid, "serial_file_too_large", "limit", MaxSerialFile>>20)
		}
		end := errors.Is(err, io.EOF)
		if err != nil && !end {
			return nil, nil, err
		}
		if line == 1 {
			text = strings.TrimPrefix(text, "\ufeff") // a byte order mark, as spreadsheets write it
		}
		text = strings.TrimSpace(text)
		heading := line == 1 && strings.EqualFold(strings.ReplaceAll(text, " ", ""), serialFileHeader)
		switch {
		case long:
			problems = append(problems, LineProblem{Line: line, Code: LineTooLong})
		case text == "" || heading || text[0] == '#':
		case len(rows) == MaxSerials:
			return nil, append(problems, LineProblem{Line: line, Code: LineTooManyRows}), nil
		default:
			row, code := parseSerialLine(text)
			row.line = line
			switch other := seen[row.serial]; {
			case code != "":
				problems = append(problems, LineProblem{Line: line, Code: code})
			case other != 0:
				problems = append(problems, LineProblem{Line: line, Code: LineDuplicate, Other: other})
			default:
				seen[row.serial] = line
				rows = append(rows, row)
			}
		}
		if end {
			return rows, problems, nil
		}
	}
}

// readLine returns the next line. From a line that is too long it reads only enough to detect that.
func readLine(in *bufio.Reader) (line string, long bool, err error) {
	var text []byte
	for {
		part, err := in.ReadSlice('\n')
		if room := maxSerialLine + 1 - len(text); room > 0 {
			text = append(text, part[:min(room, len(part))]...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return string(text), len(text) > maxSerialLine, err
		}
	}
}

func parseSerialLine(text string) (serialRow, LineCode) {
	serial, key, ok := strings.Cut(text, ",")
	if !ok || strings.Contains(key, ",") {
		return serialRow{}, LineFields
	}
	row := serialRow{serial: unquoted(serial)}
	if !serialPattern.MatchString(row.serial) {
		return serialRow{}, LineSerial
	}
	var err error
	if row.key, err = hex.DecodeString(unquoted(key)); err != nil || len(row.key) != serialKeyBytes {
		return serialRow{}, LineKey
	}
	return row, ""
}

func unquoted(field string) string {
	field = strings.TrimSpace(field)
	if len(field) >= 2 && field[0] == '"' && field[len(field)-1] == '"' {
		return strings.TrimSpace(field[1 : len(field)-1])
	}
	return field
}
