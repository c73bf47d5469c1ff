package program

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
)

const (
	maxLine     = 1 << 10 // bytes of a line that are kept
	linesPerSec = 100
	lastLines   = 2 // that the end of stderr may need: a count of dropped lines, and an error
)

// A stderrReader reads a program's stderr as fast as it comes and passes on some of its lines.
type stderrReader struct {
	pipe  *os.File
	lines chan string
	ended chan struct{} // closed when all lines have been passed on

	line    []byte // the unfinished line, at most maxLine bytes
	since   time.Time
	count   int // lines passed on since then
	dropped int
}

func readStderr(pipe *os.File, f func(string)) *stderrReader {
	r := &stderrReader{pipe: pipe, lines: make(chan string, linesPerSec+lastLines), ended: make(chan struct{})}
	go r.read()
	go func() { // f may be slow
		defer close(r.ended)
		for line := range r.lines {
			f(line)
		}
	}()
	return r
}

// finish waits until all was read and passed on, for as long as d. A process that escaped could
// keep the pipe open.
func (r *stderrReader) finish(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-r.ended:
	case <-t.C:
		r.pipe.Close() // ends read
	}
}

func (r *stderrReader) read() {
	defer close(r.lines)
	defer r.pipe.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := r.pipe.Read(buf)
		for rest := buf[:n]; len(rest) > 0; {
			part, after, ended := bytes.Cut(rest, []byte("\n"))
			r.line = append(r.line, part[:min(len(part), maxLine-len(r.line))]...)
			if ended {
				r.pass()
			}
			rest = after
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			r.report()
			continue
		}
		if err != nil {
			if len(r.line) > 0 {
				r.pass()
			}
			if r.dropped > 0 {
				r.lines <- r.droppedLine()
			}
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
				r.lines <- fmt.Sprintf("fleetd cannot read more of stderr: %v", err)
			}
			return
		}
	}
}

// pass passes on the line, or counts it as dropped.
func (r *stderrReader) pass() {
	line := r.line
	r.line = r.line[:0]
	if now := time.Now(); now.Sub(r.since) >= time.Second {
		if r.dropped > 0 {
			r.report()
		}
		r.since, r.count = now, 0
	}
	if r.count++; r.count <= linesPerSec && r.send(clean(line)) {
		return
	}
	if r.dropped++; r.dropped == 1 {
		r.pipe.SetReadDeadline(r.since.Add(time.Second)) // a pipe has deadlines
	}
}

// report says how many lines were dropped. If Stderr is busy, it tries again a second later.
func (r *stderrReader) report() {
	var next time.Time
	if r.send(r.droppedLine()) {
		r.dropped = 0
	} else {
		next = time.Now().Add(time.Second)
	}
	r.pipe.SetReadDeadline(next) // a pipe has deadlines
}

func (r *stderrReader) droppedLine() string {
	return fmt.Sprintf("fleetd dropped %d lines of stderr: more than %d a second", r.dropped, linesPerSec)
}

// send passes on the line unless Stderr is busy. It leaves room for the last lines, which must not
// be lost, and for which read must not wait. Only read sends, so the room cannot shrink in between.
func (r *stderrReader) send(line string) bool {
	if len(r.lines) >= linesPerSec {
		return false
	}
	r.lines <- line
	return true
}

// clean replaces tabs by spaces and drops all else that does not print, such as the escape
// character, which could change the terminal that shows a log.
func clean(line []byte) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '\t':
			return ' '
		case c == unicode.ReplacementChar || unicode.IsPrint(c):
			return c
		}
		return -1
	}, strings.ToValidUTF8(string(line), string(unicode.ReplacementChar)))
}
