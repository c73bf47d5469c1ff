package fleet_test

import (
	"bytes"
	"encoding/csv"
	"errors"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"fleetd/fleet"
)

func TestParseDeviceFile(t *testing.T) {
	f, err := fleet.ParseDeviceFile([]byte("\ufeffID, Name ,board,tags,notes\n" +
		"A0:85:E3:11:22:33,Kitchen,x,\"Lab, shelf-2\",\"two\nlines\"\n" + // 2 and 3
		"a085e3112244,'=1+1,,,\n" +
		"a085e3112233,again,,,\n" +
		"../x,bad id,,,\n" +
		"a085e3112255,too few\n" +
		"a085e3112266,a\"quote,,,\n" +
		"a085e3112277,x,,a:b,\n" +
		"a085e3112288,last,,,\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Lines) != 3 || f.Invalid != 5 || strings.Join(f.Columns, ",") != "id,name,tags,notes" {
		t.Fatalf("%d lines, %d invalid, columns %q: %v", len(f.Lines), f.Invalid, f.Columns, f.Problems)
	}
	first, second := f.Lines[0], f.Lines[1]
	if first.ID != "a085e3112233" || *first.Patch.Name != "Kitchen" || *first.Patch.Notes != "two\nlines" ||
		strings.Join(*first.Patch.Tags, " ") != "lab shelf-2" || first.Line != 2 {
		t.Errorf("the first line says %+v", first)
	}
	if *second.Patch.Name != "=1+1" || second.Line != 4 || len(*second.Patch.Tags) != 0 {
		t.Errorf("the second line says %+v", second)
	}
	var lines []int
	for _, p := range f.Problems {
		lines = append(lines, p.Line)
	}
	if want := []int{5, 6, 7, 8, 9}; len(lines) != 5 || lines[0] != want[0] || lines[4] != want[4] {
		t.Errorf("lines at fault are %v, want %v", lines, want)
	}
	semicolons, err := fleet.ParseDeviceFile([]byte("id;name\na085e3112233;a,b\n"))
	if err != nil || len(semicolons.Lines) != 1 || *semicolons.Lines[0].Patch.Name != "a,b" {
		t.Errorf("with semicolons: %+v, %v", semicolons, err)
	}
	for text, code := range map[string]string{"": "columns", "name\nx": "columns", "id,board\nx,y": "columns",
		"id,name,name\nx,y,z": "twice", "id,name\n\xff": "text", "id,name\n\x00": "text"} {
		var no *fleet.Error
		if _, err := fleet.ParseDeviceFile([]byte(text)); !errors.As(err, &no) || no.Params.Case() != code {
			t.Errorf("%q: %v, want %s", text, err, code)
		}
	}
	if _, err := fleet.ParseDeviceFile(make([]byte, fleet.MaxDeviceFile+1)); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a file too large: %v", err)
	}
	long := "id,name\n" + strings.Repeat("x,y\n", fleet.MaxFileLines+1)
	if _, err := fleet.ParseDeviceFile([]byte(long)); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a file too long: %v", err)
	}
}

func writeFile(t testing.TB, columns []string, devices ...fleet.Device) string {
	t.Helper()
	var b bytes.Buffer
	err := fleet.WriteDeviceFile(&b, columns, func() (page []fleet.Device, _ error) {
		page, devices = devices, nil
		return page, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A spreadsheet evaluates no cell of an export as a formula, and an import reads the original
// text back.
func TestDeviceFileIsNoFormula(t *testing.T) {
	for _, name := range []string{"=HYPERLINK(1)", "+1", "-1", "@x", "'=1", "''x", "'s", "'", "plain", "a,\"b\"", "＝1",
		"|x", ";x", "＠x"} {
		text := writeFile(t, nil, fleet.Device{ID: "a085e3112233", Name: name, Notes: name})
		rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
		if err != nil || len(rows) != 2 || len(rows[1]) != len(fleet.DeviceColumns) {
			t.Fatalf("%q: %q, %v", name, text, err)
		}
		if first, _ := utf8.DecodeRuneInString(rows[1][1]); strings.ContainsRune("=+-@|;＝＋－＠\t\r\n", first) {
			t.Errorf("%q is exported as %q", name, rows[1][1])
		}
		f, err := fleet.ParseDeviceFile([]byte(text))
		if err != nil || len(f.Lines) != 1 || *f.Lines[0].Patch.Name != name {
			t.Errorf("%q is read back as %+v (%v)", name, f, err)
		}
	}
}

// Parsing a file needs memory in proportion to its length, whatever its content.
func TestParseDeviceFileIsBounded(t *testing.T) {
	const size = 7 << 20
	fill := func(head, unit string) []byte { return []byte(head + strings.Repeat(unit, size/len(unit))) }
	for name, c := range map[string]struct {
		text []byte
		code string
	}{
		"commas in the second line":   {fill("id,name\n", ","), "device_file_too_wide"},
		"commas in the first line":    {fill("id,name", ","), "device_file_too_wide"},
		"semicolons":                  {fill("id;name\n", ";"), "device_file_too_wide"},
		"lines of many cells":         {fill("id,name\n", strings.Repeat(",", fleet.MaxFileColumns-1)+"\n"), "device_file_too_long"},
		"empty quoted cells":          {fill("id,name\n", `"",`), "device_file_too_wide"},
		"quotes at fault":             {fill("id,name\n", "a\"\n"), "device_file_too_long"},
		"a quote that stays open":     {fill("id,name\n\"", "x\n"), "device_file_too_wide"},
		"a cell without an end":       {fill("id,name\n", "x"), "device_file_too_wide"},
		"empty lines":                 {fill("id,name\n", "\n"), ""},
		"lines of one cell":           {fill("id,name\n", "x\n"), "device_file_too_long"},
		"quotes doubled in the cells": {fill("id,name\n\"", `""`), "device_file_too_wide"},
	} {
		var err error
		allocated := bytesAllocated(func() { _, err = fleet.ParseDeviceFile(c.text) })
		var no *fleet.Error
		if c.code == "" && err != nil || c.code != "" && (!errors.As(err, &no) || no.Code != c.code) {
			t.Errorf("%s: %v, want %q", name, err, c.code)
		}
		if allocated > 64<<20 {
			t.Errorf("%s: %d MiB allocated for a file of 7 MiB", name, allocated>>20)
		}
	}
}

// bytesAllocated returns the number of bytes that work allocates, freed or not. Other
// goroutines may add to it, so callers use generous bounds.
func bytesAllocated(work func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func FuzzParseDeviceFile(f *testing.F) {
	f.Add([]byte("id,name,tags,notes\na085e3112233,'=x,lab,\"a\nb\"\n"))
	f.Add([]byte("id;notes\n\"a\";\"\"\"\"\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := fleet.ParseDeviceFile(text)
		if err != nil {
			return
		}
		var devices []fleet.Device
		for _, l := range file.Lines {
			d := fleet.Device{ID: l.ID}
			if l.Patch.Name != nil {
				d.Name = *l.Patch.Name
			}
			if l.Patch.Tags != nil {
				d.Tags = *l.Patch.Tags
			}
			if l.Patch.Notes != nil {
				d.Notes = *l.Patch.Notes
			}
			devices = append(devices, d)
		}
		again, err := fleet.ParseDeviceFile([]byte(writeFile(t, file.Columns, devices...)))
		if err != nil || len(again.Lines) != len(file.Lines) || again.Invalid != 0 {
			t.Fatalf("%q is written so that it reads as %+v (%v)", text, again, err)
		}
		for i, l := range again.Lines {
			if was := file.Lines[i]; l.ID != was.ID || was.Patch.Name != nil && *l.Patch.Name != *was.Patch.Name {
				t.Fatalf("line %d of %q is %+v, was %+v", i, text, l, was)
			}
		}
	})
}
