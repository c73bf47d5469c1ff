package sheet_test

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"strings"
	"testing"

	"fleetd/fleet/sheet"
)

func TestShield(t *testing.T) {
	for _, s := range []string{"=1+1", "+1", "-1", "@SUM(A1)", "|calc", ";=1", "\uff1d1", "\uff0b1", "\uff0d1", "\uff201",
		"\t=1", "\r=1", "\n=1", "\nplain", "\u00a0=1", "\ufeff=1", "\u200b=1", "\u3000\uff1d1", " =1", "\u202e=1", "\xff=1",
		"\x01=1", "'=1", "''x", "''", "'\u00a0\uff1d1"} {
		got := sheet.Shield(s)
		if got != "'"+s {
			t.Errorf("Shield(%q) = %q: a spreadsheet may calculate it", s, got)
		}
		if back := sheet.Unshield(got); back != s {
			t.Errorf("Unshield(%q) = %q, want %q", got, back, s)
		}
	}
	for _, s := range []string{"", "kitchen", " kitchen", "1-2", "a=b", "'", "'s", "\u00a0kitchen", "灯"} {
		if got := sheet.Shield(s); got != s || sheet.Unshield(s) != s {
			t.Errorf("Shield(%q) = %q, Unshield = %q: it is plain text", s, got, sheet.Unshield(s))
		}
	}
}

func TestCheck(t *testing.T) {
	l := sheet.Limits{Columns: 4, CellBytes: 10}
	for text, want := range map[string]*sheet.BoundError{
		"":                                   nil,
		"a,b,c,d\n1,2,3,4\n":                 nil,
		"a,b,c,d,e\n":                        {Line: 1, Columns: true},
		"a\n\n\"x\ny\"\n,,,,\n":              {Line: 5, Columns: true},
		"\",,,,,,\",\",,,\"\n":               nil,
		"a\"b,,,,,,,,,\nx\n":                 nil, // the quote is invalid: encoding/csv skips the rest of this line
		"a\"b,\"\n,,,,\n":                    {Line: 2, Columns: true},
		"\"a\"b,\"\n,,,,\n":                  {Line: 2, Columns: true},
		"0123456789,x\n":                     nil,
		"x\n0123456789a\n":                   {Line: 2},
		"\"01234567\"\n":                     nil,
		"\"012345678\"\n":                    {Line: 1},
		"\"" + strings.Repeat("x\n", 20):     {Line: 1},
		"x\r\n,,,,\r\n":                      {Line: 2, Columns: true},
		"\"a\"\",,,\"\"\",b,c,d\n\"\",,,\n":  nil,
		"\"a\"\",,,\"\"\",b,c,d\n\"\",,,,\n": {Line: 2, Columns: true},
	} {
		err := sheet.Check([]byte(text), ',', l)
		if want == nil {
			if err != nil {
				t.Errorf("%q: %v", text, err)
			}
			continue
		}
		var got *sheet.BoundError
		if !errors.As(err, &got) || *got != *want {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
}

// A file that Check accepts stays within the limits when encoding/csv reads it.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{"a,b\n\"c\nd\",e\n", "a\"b,c\n", "\"a\"b,\"\n,,\n", "\"\"\"\",x\r\n\r\n,\n", "\"open", "\r"} {
		f.Add([]byte(s))
	}
	l := sheet.Limits{Columns: 3, CellBytes: 12}
	f.Fuzz(func(t *testing.T, text []byte) {
		if sheet.Check(text, ',', l) != nil {
			return
		}
		in := csv.NewReader(bytes.NewReader(text))
		in.FieldsPerRecord = -1
		for {
			cells, err := in.Read()
			if err == io.EOF {
				return
			}
			if len(cells) > l.Columns {
				t.Fatalf("%q has a record of %d cells", text, len(cells))
			}
			for _, c := range cells {
				if err == nil && len(c) > l.CellBytes {
					t.Fatalf("%q has a cell of %d bytes", text, len(c))
				}
			}
		}
	})
}

func TestCheckAllocatesNothing(t *testing.T) {
	text := bytes.Repeat([]byte(","), 7<<20)
	l := sheet.Limits{Columns: 64, CellBytes: 1 << 10}
	if n := testing.AllocsPerRun(1, func() { _ = sheet.Check(text, ',', l) }); n > 2 {
		t.Errorf("%v allocations for 7 MiB of commas", n)
	}
}
