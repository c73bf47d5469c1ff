package server

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// A chaosProcess is a fleetd of a world: the single one, or a node of a cluster. It is started again
// whenever it ends, as systemd would.
type chaosProcess struct {
	w     *chaosWorld
	name  string // fleetd, or the node's
	admin string // address
	works string // path of the admin listener that answers 200 once the process works
	args  func() []string
	// ended is closed when the supervisor ends.
	ended chan struct{}

	mu       sync.Mutex
	process  *os.Process
	starts   []time.Time
	ready    bool // the process has worked since its start
	held     bool // a fault prevents its restart for now
	excused  bool // it may end: the current fault ends it
	stopping bool
}

func newChaosProcess(w *chaosWorld, name, admin, works string, args func() []string) *chaosProcess {
	return &chaosProcess{w: w, name: name, admin: admin, works: works, args: args, ended: make(chan struct{})}
}

// clock is the file with the offset of the process's wall clock.
func (p *chaosProcess) clock() string { return filepath.Join(p.w.dir, p.name+".clock") }

// supervise runs fleetd until the world ends. The kernel counts this thread as the parent of fleetd, so
// fleetd dies with the test.
func (p *chaosProcess) supervise() {
	defer close(p.ended)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := os.OpenFile(filepath.Join(p.w.dir, p.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		p.w.breachf("no log file: %v", err)
		return
	}
	defer out.Close()
	for p.waitForTurn() {
		cmd := exec.Command(os.Args[0], append([]string{"serve"}, p.args()...)...)
		cmd.Env = append(os.Environ(), beFleetd+"=1", "FLEETD_DATA_DIR="+p.w.dataDir)
		if p.w.schedule.has("clock-step") {
			cmd.Env = append(cmd.Env, clockFile+"="+p.clock())
		}
		if addr := p.w.internalOf[p.name]; addr != "" {
			cmd.Env = append(cmd.Env, announceAddr+"="+addr)
		}
		cmd.Stdout, cmd.Stderr = out, out
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			p.w.breachf("%s does not start: %v", p.name, err)
			return
		}
		p.mu.Lock()
		p.process, p.ready = cmd.Process, false
		p.starts = append(p.starts, time.Now())
		p.mu.Unlock()
		done := make(chan struct{})
		go p.watchReady(done)
		err := cmd.Wait()
		close(done)
		p.noteEnd(err)
	}
}

// waitForTurn waits until fleetd may start, and reports whether it should.
func (p *chaosProcess) waitForTurn() bool {
	for ; ; time.Sleep(20 * time.Millisecond) {
		p.mu.Lock()
		held, stopping := p.held, p.stopping
		p.mu.Unlock()
		if stopping || !held {
			return !stopping
		}
	}
}

// noteEnd checks how fleetd ended, and waits as long as systemd does before its next start.
func (p *chaosProcess) noteEnd(err error) {
	p.mu.Lock()
	excused := p.excused || p.stopping
	p.process, p.ready = nil, false
	p.mu.Unlock()
	p.w.journal.notef("%s ended: %v", p.name, err)
	if !excused {
		p.w.breachf("%s ended with %v, which no fault asked for", p.name, err)
	}
	time.Sleep(300 * time.Millisecond)
}

// watchReady records when the process works, until done.
func (p *chaosProcess) watchReady(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(50 * time.Millisecond):
		}
		if p.probe(p.works) == http.StatusOK {
			p.mu.Lock()
			p.ready = p.process != nil
			p.mu.Unlock()
			p.w.journal.notef("%s answers %s", p.name, p.works)
			return
		}
	}
}

// probe requests a path of the admin listener; 0 means no answer.
func (p *chaosProcess) probe(path string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.admin+path, nil)
	resp, err := p.w.client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// wasReady reports whether the current process has worked, whatever happened to its database since.
func (p *chaosProcess) wasReady() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready
}

// serving returns the process that has worked and that no fault is ending now; 0: no process.
func (p *chaosProcess) serving() (pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ready || p.excused {
		return 0
	}
	return p.process.Pid
}

// processes returns how often fleetd was started.
func (p *chaosProcess) processes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.starts)
}

// signal sends a signal to fleetd's process, if it runs.
func (p *chaosProcess) signal(s os.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process != nil {
		_ = p.process.Signal(s)
	}
}

func (p *chaosProcess) setHeld(held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = held
}

func (p *chaosProcess) setExcused(excused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.excused = excused
}

// stop ends the process for good.
func (p *chaosProcess) stop() {
	p.mu.Lock()
	p.stopping = true
	p.mu.Unlock()
	p.signal(syscall.SIGCONT)
	p.signal(os.Interrupt)
	select {
	case <-p.ended:
	case <-time.After(3 * time.Minute):
		p.w.breachf("%s does not stop", p.name)
		p.signal(syscall.SIGKILL)
		<-p.ended
	}
}
