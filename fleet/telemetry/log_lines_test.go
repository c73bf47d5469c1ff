package telemetry

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// line returns a line whose text contains its log and its number.
func line(log string, n uint32) LogLine {
	return LogLine{Number: n, Uptime: time.Duration(n) * time.Second, Level: "info", Text: fmt.Sprint(log, n)}
}

func lines(log string, from, to uint32) (all []LogLine) {
	for n := from; n <= to; n++ {
		all = append(all, line(log, n))
	}
	return all
}

func texts(all []LogLine) (s []string) {
	for _, l := range all {
		s = append(s, l.Text)
	}
	return s
}

func TestLogBuffer(t *testing.T) {
	type piece struct {
		lines []LogLine
		end   uint32
	}
	tests := []struct {
		name   string
		pieces []piece
		want   []LogLine
	}{
		{"in order", []piece{{lines("a", 1, 2), 3}, {lines("a", 3, 4), 5}}, lines("a", 1, 4)},
		{"sent twice", []piece{{lines("a", 1, 4), 5}, {lines("a", 2, 3), 4}}, lines("a", 1, 4)},
		{"what was before comes later", []piece{{lines("a", 7, 8), 9}, {lines("a", 3, 8), 9}}, lines("a", 3, 8)},
		{"lines of other levels between", []piece{{lines("a", 1, 2), 3}, {lines("a", 6, 7), 8}}, []LogLine{line("a", 1),
			line("a", 2), line("a", 6), line("a", 7)}},
		{"and then those, too", []piece{{lines("a", 1, 2), 3}, {lines("a", 6, 7), 8}, {lines("a", 1, 7), 8}},
			lines("a", 1, 7)},
		{"the device lost power", []piece{{lines("a", 500, 510), 511}, {lines("b", 0, 2), 3}}, lines("b", 0, 2)},
		{"it lost power and caught up", []piece{{lines("a", 1, 5), 6}, {lines("b", 4, 9), 10}}, lines("b", 4, 9)},
		{"only the newest stay", []piece{{lines("a", 1, MaxLogLines), MaxLogLines + 1},
			{lines("a", MaxLogLines+1, MaxLogLines+3), MaxLogLines + 4}},
			lines("a", 4, MaxLogLines+3)},
		{"the end of the count", []piece{{lines("a", 1<<32-2, 1<<32-2), 1<<32 - 1}, {lines("b", 0, 1), 2}}, lines("b", 0, 1)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b logBuffer
			for _, p := range tt.pieces {
				b.add(p.lines, p.end)
			}
			if got := texts(b.lines); !slices.Equal(got, texts(tt.want)) {
				t.Errorf("%q, want %q", got, texts(tt.want))
			}
		})
	}
}

// A follower sees each line once, or learns from the generation that it must re-read all lines.
func TestLogBufferAfter(t *testing.T) {
	var b logBuffer
	b.add(lines("a", 5, 6), 7)
	seq, generation := b.seq, b.generation
	b.add(lines("a", 6, 8), 9)
	if got := texts(b.after(seq)); !slices.Equal(got, []string{"a7", "a8"}) || b.generation != generation {
		t.Errorf("new lines %q, generation %d of %d", got, b.generation, generation)
	}
	b.add(lines("a", 1, 8), 9)
	if b.generation == generation {
		t.Error("lines came before others, and the generation is the same")
	}
}

func TestReadLogReport(t *testing.T) {
	r, ok := readLogReport(json.RawMessage(
		`{"lines":[{"n":4294967295,"t":-5,"level":"fatal","tag":"a\u0000b\u202e","text":"\u001b[31mred"}],"next":3,"dropped":-1}`))
	want := LogLine{Number: 4294967295, Level: "info", Tag: "ab", Text: "[31mred"}
	if !ok || len(r.Lines) != 1 || r.Lines[0] != want || r.Next != 3 || r.Dropped != 0 {
		t.Errorf("%+v, %v", r, ok)
	}
	for _, bad := range []string{``, `[]`, `"x"`, `{"lines":{}}`, `{"lines":[{"n":-1}]}`, `{"lines":[{"n":1.5}]}`,
		`{"lines":[` + strings.Repeat(`{},`, 200) + `{}]}`} {
		if r, ok := readLogReport(json.RawMessage(bad)); ok {
			t.Errorf("%.60s: %+v", bad, r)
		}
	}
}

func FuzzLogReport(f *testing.F) {
	f.Add([]byte(`{"lines":[{"n":1,"t":5,"level":"warn","tag":"ota","text":"x"},{"n":0}],"next":2,"dropped":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, ok := readLogReport(raw)
		if !ok {
			return
		}
		var b logBuffer
		b.add(lines("a", 0, 3), 4)
		b.add(r.Lines, r.Next)
		if !slices.IsSortedFunc(b.lines, func(a, b LogLine) int { return int(int64(a.Number) - int64(b.Number)) }) ||
			len(b.lines) > MaxLogLines {
			t.Errorf("%+v", b)
		}
		for _, l := range r.Lines {
			if !utf8.ValidString(l.Text+l.Tag) || strings.ContainsRune(l.Text+l.Tag, 0) || len(l.Text) > maxLogText ||
				len(l.Tag) > maxLogTag || !slices.Contains(LogLevels, l.Level) || l.Uptime < 0 {
				t.Errorf("%+v", l)
			}
		}
	})
}
