package embedded

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"time"
)

// maxComplaint bounds how much of a log is read to find what went wrong.
const maxComplaint = 16 << 10

// complaintRE finds a line in which PostgreSQL's programs say why they end.
var complaintRE = regexp.MustCompile(`(?m)(?:FATAL|PANIC|error): +(.+)$`)

// complaint returns the last reason in a program's output.
func complaint(output []byte) string {
	if all := complaintRE.FindAllSubmatch(output, -1); len(all) > 0 {
		return string(all[len(all)-1][1])
	}
	if line := bytes.TrimSpace(output); len(line) > 0 {
		return string(line[bytes.LastIndexByte(line, '\n')+1:])
	}
	return "it gave no reason"
}

// startFailure explains a server that ended while starting: by what it wrote
// before its log file was open or, if that was nothing bad, by the log file.
func (s *Server) startFailure() error {
	out := tail(s.proc.said)
	if !complaintRE.Match(out) {
		out = append(out, s.lastLog()...)
	}
	if bytes.Contains(out, []byte(`"postmaster.pid" already exists`)) {
		return fmt.Errorf("another PostgreSQL seems to run in %s: end it or, if its pid belongs to another program, remove postmaster.pid there", s.dir.cluster())
	}
	return fmt.Errorf("embedded PostgreSQL did not start: %s (log: %s)", complaint(out), s.dir.logs())
}

// lastLog returns the end of the newest log file. The server's user owns the files, so they are
// opened below an [os.Root].
func (s *Server) lastLog() []byte {
	root, err := os.OpenRoot(s.dir.cluster())
	if err != nil {
		return nil
	}
	defer root.Close()
	f, err := root.Open(newestFile(root, "log"))
	if err != nil {
		return nil
	}
	defer f.Close()
	return tail(f)
}

func newestFile(root *os.Root, dir string) string {
	d, err := root.Open(dir)
	if err != nil {
		return ""
	}
	defer d.Close()
	entries, _ := d.ReadDir(-1)
	var name string
	var newest time.Time
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.ModTime().After(newest) {
			name, newest = path.Join(dir, e.Name()), info.ModTime()
		}
	}
	return name
}

func tail(f *os.File) []byte {
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	from := max(0, info.Size()-maxComplaint)
	b, _ := io.ReadAll(io.NewSectionReader(f, from, maxComplaint))
	return b
}
