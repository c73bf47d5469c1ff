package program

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	scanInterval = 500 * time.Millisecond // between scans of /proc
	tickInterval = 100 * time.Millisecond // between checks of programs that use much CPU
)

// A supervisor knows the processes of all programs and enforces their limits.
type supervisor struct {
	mu       sync.Mutex
	programs map[int]*Process // by PID of the main process, until it is reaped
	procs    map[int]*proc    // all processes of the machine, by PID
	scanned  time.Time        // start of the last scan
	scans    int
	quit     chan struct{} // ends run
	buf      []byte        // for files of /proc
}

var super = &supervisor{
	programs: make(map[int]*Process), procs: make(map[int]*proc), buf: make([]byte, 128<<10),
}

// A proc is a process of the machine.
type proc struct {
	stat
	owner   *Process // nil: of no program
	counted bool     // owner has been charged for its CPU time so far
	seen    int      // number of the last scan that found it
	looked  int      // number of the last scan that looked for its owner
	looks   int      // number of scans that did
	marker  string   // that another fleetd made; "": none
}

// add starts to supervise a program.
func (s *supervisor) add(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st, err := readStat(p.pid, s.buf); err == nil {
		p.start = st.start
	}
	s.programs[p.pid] = p
	if len(s.programs) == 1 {
		s.quit = make(chan struct{})
		go s.run(s.quit)
	}
}

func (s *supervisor) remove(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.programs, p.pid)
	for _, q := range s.procs {
		if q.owner == p {
			s.drop(q)
		}
	}
	p.usage = Usage{CPU: p.usage.CPU, Throttled: p.usage.Throttled}
	if len(s.programs) == 0 {
		close(s.quit)
		clear(s.procs)
	}
}

// finalUsage records the CPU time that the kernel reports for the main process and those that
// it waited for: it is exact, but lacks processes that lost their parent.
func (s *supervisor) finalUsage(p *Process, cpu time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.usage.CPU = max(p.usage.CPU, cpu)
}

func (s *supervisor) run(quit chan struct{}) {
	interval := tickInterval
	for {
		select {
		case <-quit:
			return
		case <-time.After(interval):
		}
		s.mu.Lock()
		interval = s.tick()
		s.mu.Unlock()
	}
}

// tick scans if it is time, else updates only the programs that use much CPU, and enforces the
// limits. It returns the time until the next tick.
func (s *supervisor) tick() time.Duration {
	now := time.Now()
	if now.Sub(s.scanned) >= scanInterval-tickInterval/2 {
		s.scan(now)
	} else {
		for _, q := range s.procs {
			if q.owner != nil && q.owner.busy(q.owner.limits.CPU) {
				s.read(q.pid)
			}
		}
		for _, p := range s.programs {
			if p.busy(p.limits.CPU) {
				s.charge(p, now)
			}
		}
	}
	next := scanInterval
	for _, p := range s.programs {
		s.limitCPU(p, now)
		if p.busy(p.limits.CPU) {
			next = tickInterval
		}
	}
	return next
}

// scan reads the state of all processes, unless it was read after the given time. With 100
// programs of two processes on a machine of 300 processes it takes 5 ms, which is
// 1 % of a core; see BenchmarkScan.
func (s *supervisor) scan(after time.Time) {
	if s.scanned.After(after) {
		return
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return // out of descriptors: what is known stays known
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return
	}
	now := time.Now()
	s.scanned = now
	s.scans++
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			s.read(pid)
		}
	}
	for _, q := range s.procs {
		if q.seen != s.scans {
			s.drop(q)
		}
	}
	owners := s.byOwner()
	for _, q := range s.procs {
		s.findOwner(q, owners)
	}
	s.killLeftovers()
	for _, p := range s.programs {
		p.usage.Memory, p.usage.Processes = 0, 0
	}
	self := os.Getpid()
	for _, q := range s.procs {
		switch p := q.owner; {
		case p == nil:
		case q.state != 'Z' && q.state != 'X':
			p.usage.Memory += q.memory
			p.usage.Processes++
		case q.ppid == self && q.pid != p.pid:
			// It lost its parent, and fleetd is PID 1 as in a container.
			unix.Wait4(q.pid, nil, unix.WNOHANG, nil) // the next scan tries again
		}
	}
	for _, p := range s.programs {
		s.charge(p, now)
		s.limitUse(p)
	}
}

// read reads the state of one process.
func (s *supervisor) read(pid int) {
	st, err := readStat(pid, s.buf)
	q := s.procs[pid]
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH):
		if q != nil {
			s.drop(q)
		}
		return
	case err != nil: // out of descriptors: what is known stays known
		if q != nil {
			q.seen = s.scans
		}
		return
	case q == nil || q.start != st.start:
		if q != nil {
			s.drop(q)
		}
		q = new(proc)
		s.procs[pid] = q
	case q.counted:
		q.owner.own += st.cpu - q.cpu
		q.owner.inherited += max(st.childCPU-q.childCPU, 0)
	}
	q.stat, q.seen = st, s.scans
	q.count()
}

// count charges the owner for a process that is new.
func (q *proc) count() {
	if q.owner != nil && !q.counted {
		q.owner.own += q.cpu
		q.owner.inherited += q.childCPU
		q.counted = true
	}
}

func (s *supervisor) drop(q *proc) {
	delete(s.procs, q.pid)
	if q.counted {
		q.owner.gone += q.cpu + q.childCPU
	}
}

// owners finds programs by what their processes have in common.
type owners struct {
	marker map[string]*Process
	uid    map[uint32]*Process // nil for a user of several programs
}

func (s *supervisor) byOwner() owners {
	o := owners{make(map[string]*Process), make(map[uint32]*Process)}
	for _, p := range s.programs {
		o.marker[p.marker] = p
		if p.ownUID {
			if _, shared := o.uid[p.uid]; shared {
				o.uid[p.uid] = nil
			} else {
				o.uid[p.uid] = p
			}
		}
	}
	return o
}

// findOwner finds the program of a process. A process keeps its owner. One without is looked at
// in two scans, as a process shows no environment while it executes a program.
func (s *supervisor) findOwner(q *proc, o owners) *Process {
	if p := s.programs[q.pid]; p != nil && q.owner == nil {
		q.owner = p
		q.count()
	}
	if q.owner != nil || q.looks >= 2 || q.looked == s.scans {
		return q.owner
	}
	q.looks++
	q.looked = s.scans
	parent := s.procs[q.ppid]
	switch {
	case q.pid == 1 || q.pid == os.Getpid():
		q.looks = 2
	case s.programs[q.session] != nil:
		q.owner = s.programs[q.session]
	case s.programs[q.group] != nil:
		q.owner = s.programs[q.group]
	case parent != nil && s.findOwner(parent, o) != nil:
		q.owner = parent.owner
	default:
		if m := readMarker(q.pid, s.buf); m != "" {
			if q.owner = o.marker[m]; q.owner == nil {
				q.marker = m
			}
		}
		var st unix.Stat_t
		if q.owner == nil && len(o.uid) > 0 && unix.Stat(procPath(q.pid, ""), &st) == nil {
			if p := o.uid[st.Uid]; p != nil && q.start >= p.start {
				q.owner = p
			}
		}
	}
	q.count()
	return q.owner
}

// killLeftovers kills the processes of programs whose fleetd was killed. Another fleetd may be
// alive: its PID says so, if it means the same here.
func (s *supervisor) killLeftovers() {
	for _, q := range s.procs {
		if q.marker == "" || q.owner != nil {
			continue
		}
		namespace, pid, start, ok := instanceOf(q.marker)
		if !ok || !strings.HasPrefix(instance(), namespace+".") || namespace == "" || pid == os.Getpid() {
			continue
		}
		st, err := readStat(pid, s.buf)
		gone := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
		if gone || err == nil && (st.start != start || st.state == 'Z') {
			q.signal(unix.SIGKILL, s.buf)
		}
	}
}

func (s *supervisor) charge(p *Process, now time.Time) {
	p.charge(p.limits.CPU, now)
	p.usage.CPU = p.cpu
}

// limitUse kills the processes of a program that uses too much memory or too many processes.
// Those that it misses, wait finds once the main process has ended.
func (s *supervisor) limitUse(p *Process) {
	var e Exit
	switch l := p.limits; {
	case l.Memory > 0 && p.usage.Memory > l.Memory:
		e = Exit{Reason: OverMemory, Used: p.usage.Memory, Limit: l.Memory}
	case p.usage.Processes > l.Processes:
		e = Exit{Reason: TooManyProcesses, Used: int64(p.usage.Processes), Limit: int64(l.Processes)}
	default:
		return
	}
	if p.reason.Reason == "" {
		p.reason = e
	}
	s.send(p, unix.SIGKILL)
}

// limitCPU stops a program that has overspent, and lets it go on once it has earned one tick.
func (s *supervisor) limitCPU(p *Process, now time.Time) {
	limit := p.limits.CPU
	switch {
	case limit <= 0 || p.stopping || p.reason.Reason != "":
	case p.throttledAt.IsZero() && p.budget < 0:
		p.throttledAt = now
		s.send(p, unix.SIGSTOP)
	case p.throttledAt.IsZero():
	case p.budget >= cores(limit, tickInterval):
		s.resume(p)
	default: // there may be processes that are new, or that another one has resumed
		for _, q := range s.procs {
			if q.owner == p && (q.state == 'R' || q.state == 'S') {
				q.signal(unix.SIGSTOP, s.buf)
			}
		}
	}
}

func (s *supervisor) resume(p *Process) {
	if !p.throttledAt.IsZero() {
		p.usage.Throttled += time.Since(p.throttledAt)
		p.throttledAt = time.Time{}
		s.send(p, unix.SIGCONT)
	}
}

// beginStop notes that Stop was called and ends the effect of the CPU limit.
func (s *supervisor) beginStop(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.stopping || s.programs[p.pid] != p {
		return
	}
	p.stopping = true
	if p.reason.Reason == "" {
		p.reason.Reason = Stopped
	}
	s.resume(p)
}

// ended notes that the main process ended, and returns why.
func (s *supervisor) ended(p *Process) Exit {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !p.throttledAt.IsZero() {
		p.usage.Throttled += time.Since(p.throttledAt)
		p.throttledAt = time.Time{}
	}
	if p.reason.Reason == "" {
		p.reason.Reason = Exited
	}
	return p.reason
}

// signal sends a signal to all processes of a program.
func (s *supervisor) signal(p *Process, sig unix.Signal) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.programs[p.pid] != p {
		return
	}
	s.scan(now)
	s.send(p, sig)
}

// send sends a signal to the processes that the last scan found. The caller holds the mutex.
func (s *supervisor) send(p *Process, sig unix.Signal) {
	if s.programs[p.pid] != p {
		return // reaped: the kernel may reuse the PID
	}
	unix.Kill(-p.pid, sig) // fails if the group has ended
	for _, q := range s.procs {
		if q.owner == p && q.group != p.pid {
			q.signal(sig, s.buf)
		}
	}
}

// killRest kills all processes but the main process, which has ended, and returns how many there
// were. The caller repeats it until there are none, as they may fork meanwhile.
func (s *supervisor) killRest(p *Process) (n int) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	unix.Kill(-p.pid, unix.SIGKILL) // fails if the group has ended
	s.scan(now)
	if !s.scanned.After(now) {
		return 1 // the scan failed
	}
	s.send(p, unix.SIGKILL)
	self := os.Getpid()
	for _, q := range s.procs {
		dead := q.state == 'X' || q.state == 'Z' && q.ppid != self // another process reaps it
		if q.owner == p && q.pid != p.pid && !dead {
			n++
		}
	}
	return n
}

// A stat is the part of /proc/PID/stat that matters here. The PID and the start name a process
// uniquely until the next boot.
type stat struct {
	pid, ppid, group, session int
	state                     byte
	cpu, childCPU             time.Duration // childCPU is of children that ended
	start                     uint64        // in ticks since the boot
	memory                    int64         // resident bytes
}

var pageSize = int64(os.Getpagesize())

func readStat(pid int, buf []byte) (stat, error) {
	data, err := readFile(procPath(pid, "stat"), buf[:4096])
	if err != nil {
		return stat{}, err
	}
	// The second field is a name in parentheses and may contain any character.
	data = data[bytes.LastIndexByte(data, ')')+1:]
	var fields [23]int64 // from the third on
	var state byte
	n := 0
	for f := range bytes.FieldsSeq(data) {
		if n == 0 {
			state = f[0]
		} else {
			fields[n] = parseInt(f)
		}
		if n++; n == len(fields) {
			break
		}
	}
	if n < 22 {
		return stat{}, unix.ESRCH
	}
	const tick = time.Second / 100 // USER_HZ
	return stat{
		pid: pid, state: state, ppid: int(fields[1]), group: int(fields[2]), session: int(fields[3]),
		cpu:      time.Duration(fields[11]+fields[12]) * tick,
		childCPU: time.Duration(fields[13]+fields[14]) * tick,
		start:    uint64(fields[19]), memory: fields[21] * pageSize,
	}, nil
}

func parseInt(digits []byte) (n int64) {
	for _, c := range digits {
		if c >= '0' && c <= '9' {
			n = 10*n + int64(c-'0')
		}
	}
	return n
}

// signal sends a signal to the process, and to no other that got its PID meanwhile.
func (q *proc) signal(sig unix.Signal, buf []byte) {
	fd, err := unix.PidfdOpen(q.pid, 0)
	if err != nil {
		return // it has ended
	}
	defer unix.Close(fd)
	if now, err := readStat(q.pid, buf); err == nil && now.start == q.start {
		unix.PidfdSendSignal(fd, sig, nil, 0) // fails if it has ended
	}
}

// readMarker returns the value of FLEETD_PROGRAM in the environment of a process, or "".
func readMarker(pid int, buf []byte) string {
	env, err := readFile(procPath(pid, "environ"), buf)
	if err != nil {
		return ""
	}
	for e := range bytes.SplitSeq(env, []byte{0}) {
		if v, ok := bytes.CutPrefix(e, []byte(markerVariable+"=")); ok {
			return string(v)
		}
	}
	return ""
}

// readFile reads a file of /proc, or as much as buf holds.
func readFile(path string, buf []byte) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n := 0
	for n < len(buf) {
		m, err := unix.Read(fd, buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n += m; m == 0 {
			break
		}
	}
	return buf[:n], nil
}
