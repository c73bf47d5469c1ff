package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/plugin"
	"fleetd/internal/program"
)

// watchEvery is how often the programs' files are compared. A replaced program starts once its
// files have stayed the same from one comparison to the next.
const watchEvery = 400 * time.Millisecond

const (
	steadyAfter = time.Minute // after which a plug-in that ends starts again at once
	crashLoop   = 5           // starts in a row that ended early
	stopTimeout = 8 * time.Second
	stopDrain   = 5 * time.Second // for calls in flight on a plug-in that is removed
)

var _ plugin.Runner = (*Host)(nil)

// A running plug-in. Its goroutine starts its program, or connects to its address, again and
// again.
type running struct {
	host *Host
	name string
	unit *unit
	log  lines
	wake chan struct{} // the plug-in, its program or the wish to run it changed
	stop context.Context
	end  context.CancelFunc
	done chan struct{}

	retiring sync.WaitGroup // sessions that another one replaced

	mu      sync.Mutex
	wanted  plugin.Plugin
	files   string // fingerprint at the latest start
	seen    string // fingerprint at the latest comparison
	restart bool
	process *program.Process
	uid     int
	status  plugin.Status
}

// Apply implements [plugin.Runner].
func (h *Host) Apply(list []plugin.Plugin) {
	h.mu.Lock()
	h.wanted = list
	h.mu.Unlock()
	select {
	case h.apply <- struct{}{}:
	default:
	}
}

// Run runs the plug-ins until ctx ends, and then stops them.
func (h *Host) Run(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			h.stopAll()
			return nil
		case <-h.apply:
			h.reconcile(ctx)
		case <-tick.C:
			for _, r := range h.all() {
				r.compare()
			}
		}
	}
}

func (h *Host) all() []*running {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*running, 0, len(h.plugins))
	for _, r := range h.plugins {
		list = append(list, r)
	}
	return list
}

// reconcile starts, changes and stops plug-ins until they are the wanted ones.
func (h *Host) reconcile(ctx context.Context) {
	h.mu.Lock()
	wanted := slices.Clone(h.wanted)
	h.mu.Unlock()
	names := map[string]bool{}
	for _, p := range wanted {
		runnable := len(p.Manifest.Command) > 0 || p.Manifest.URL != ""
		if !runnable || p.Problem.Is("plugin_duplicate") || p.Problem.Is("plugin_name") {
			continue // nothing that was ever right
		}
		names[p.Name] = true
		h.mu.Lock()
		r := h.plugins[p.Name]
		h.mu.Unlock()
		if r != nil {
			r.want(p)
			continue
		}
		h.add(p)
	}
	for _, r := range h.all() {
		if !names[r.name] {
			h.remove(ctx, r)
		}
	}
}

func (h *Host) add(p plugin.Plugin) {
	r := &running{host: h, name: p.Name, unit: h.unit(p.Device(), fleet.DevicePlugin), wake: make(chan struct{}, 1),
		done: make(chan struct{}), wanted: p, uid: -1}
	r.stop, r.end = context.WithCancel(context.Background())
	r.unit.mu.Lock()
	r.unit.log = func(_, text string) { r.log.add(plugin.FromMCP, text) }
	r.unit.mu.Unlock()
	h.mu.Lock()
	h.plugins[p.Name] = r
	h.mu.Unlock()
	go r.run()
}

// remove stops a plug-in that is not wanted any more, and retires its device.
func (h *Host) remove(ctx context.Context, r *running) {
	h.mu.Lock()
	delete(h.plugins, r.name)
	h.mu.Unlock()
	r.end()
	go func() {
		<-r.done
		h.mu.Lock()
		_, back := h.plugins[r.name]
		h.mu.Unlock()
		if back {
			return
		}
		if err := h.o.Devices.RetireProgram(context.WithoutCancel(ctx), plugin.DeviceOf(r.name)); err != nil {
			h.o.Log.Warn("device of a removed plug-in not retired", "plugin", r.name, "err", err)
		}
	}()
}

func (h *Host) stopAll() {
	all := h.all()
	for _, r := range all {
		r.end()
	}
	for _, r := range all {
		<-r.done
	}
	h.mu.Lock()
	var open []*session
	for _, u := range h.units {
		if s := u.current(); s != nil {
			open = append(open, s)
		}
	}
	h.mu.Unlock()
	for _, s := range open {
		s.close()
	}
	h.sessions.Wait()
}

// Status implements [plugin.Runner].
func (h *Host) Status(name string) (plugin.Status, bool) {
	h.mu.Lock()
	r := h.plugins[name]
	h.mu.Unlock()
	if r == nil {
		return plugin.Status{}, false
	}
	r.unit.mu.Lock()
	s := r.unit.session
	r.unit.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.status
	if s != nil {
		st.Prompts, st.Resources = int(s.prompts.Load()), int(s.resources.Load())
	}
	if !r.wanted.Problem.Is("") && st.State != plugin.Running {
		st.State, st.Reason = plugin.Invalid, r.wanted.Problem
	}
	st.UID = -1
	if r.process != nil {
		use := r.process.Usage()
		st.PID, st.UID = r.process.PID(), r.uid
		st.Processes, st.Memory, st.CPU, st.Throttled = use.Processes, use.Memory, use.CPU, use.Throttled
	}
	return st, true
}

// Lines implements [plugin.Runner].
func (h *Host) Lines(name string) []plugin.Line {
	h.mu.Lock()
	r := h.plugins[name]
	h.mu.Unlock()
	if r == nil {
		return nil
	}
	return r.log.all()
}

// Restart implements [plugin.Runner].
func (h *Host) Restart(name string) {
	h.mu.Lock()
	r := h.plugins[name]
	h.mu.Unlock()
	if r == nil {
		return
	}
	r.mu.Lock()
	r.restart = true
	r.mu.Unlock()
	r.notify()
}

func (r *running) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// want sets the definition. What is wrong in it leaves the plug-in as it is.
func (r *running) want(p plugin.Plugin) {
	r.mu.Lock()
	same := reflect.DeepEqual(r.wanted.Manifest, p.Manifest) && r.wanted.Directory == p.Directory
	r.wanted = p
	if !same {
		r.restart = true
	}
	r.mu.Unlock()
	if !same {
		r.notify()
	}
}

// compare starts the plug-in again if its files are others than at its start, and complete.
func (r *running) compare() {
	r.mu.Lock()
	now := fingerprint(r.wanted)
	changed := now != r.files && now == r.seen && r.status.Starts > 0
	r.seen = now
	if changed {
		r.files, r.restart = now, true
	}
	r.mu.Unlock()
	if changed {
		r.log.add(plugin.FromFleetd, "its files changed")
		r.notify()
	}
}

func (r *running) set(state plugin.State, reason fleet.Reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status.State != state {
		r.status.Since = time.Now().UTC()
	}
	r.status.State, r.status.Reason, r.status.Next = state, reason, time.Time{}
}

// run runs the plug-in until it is removed.
//
// A plug-in that changes is started next to its predecessor, which serves until the new one has
// answered initialize, and then finishes its calls. If the new one fails, the old one goes on.
func (r *running) run() {
	defer close(r.done)
	var now *session
	var lost <-chan struct{}
	early := 0 // starts in a row that failed or ended early
	for r.stop.Err() == nil {
		r.mu.Lock()
		p := r.wanted
		r.restart = false
		r.files = fingerprint(p)
		r.seen = r.files
		r.mu.Unlock()
		if p.Manifest.Disabled {
			if now != nil {
				r.retire(now)
				now, lost = nil, nil
			}
			r.set(plugin.Disabled, fleet.Reason{})
			r.pause(nil, nil)
			continue
		}
		if now == nil {
			r.set(plugin.Starting, r.reason())
		}
		began := time.Now()
		next, err := r.begin(p)
		if err == nil {
			if now != nil {
				old := now
				r.retiring.Go(func() { r.retire(old) })
			}
			now, lost = next, next.lost
			r.started(now)
			if !r.pause(lost, nil) {
				early = 0
				continue // it changed, or is removed
			}
			err = r.ending(now)
			now, lost = nil, nil
		}
		if r.stop.Err() != nil {
			break
		}
		if time.Since(began) > steadyAfter {
			early = 0
		}
		delay := r.host.o.Delays[min(early, len(r.host.o.Delays)-1)]
		early++
		r.failed(err, now, early, delay)
		if !r.pause(lost, time.After(delay)) {
			early = 0
		}
		if now != nil && now.hasEnded() { // the one that went on after a failed change
			_ = r.ending(now)
			now, lost = nil, nil
		}
	}
	if now != nil {
		r.set(plugin.Stopping, fleet.Because("plugin_stopped"))
		r.retire(now)
	}
	r.retiring.Wait()
}

func (r *running) reason() fleet.Reason {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status.Reason
}

// pause waits. It returns false if the plug-in changed or is removed, and true if the session was
// lost or the time is over.
func (r *running) pause(lost <-chan struct{}, wait <-chan time.Time) bool {
	for {
		select {
		case <-r.stop.Done():
			return false
		case <-lost:
			return true
		case <-wait:
			return true
		case <-r.wake:
			r.mu.Lock()
			restart := r.restart
			r.mu.Unlock()
			if restart {
				return false
			}
		}
	}
}

// begin starts the plug-in and makes its session the unit's.
func (r *running) begin(p plugin.Plugin) (*session, error) {
	ctx, cancel := context.WithCancel(r.stop)
	defer cancel()
	r.mu.Lock()
	r.status.Starts++
	r.mu.Unlock()
	var process *program.Process
	var opened source
	s, err := r.unit.connect(ctx, func() (source, error) {
		if opened.close != nil {
			opened.close()
		}
		if process != nil {
			r.stopProcess(process)
			process = nil
		}
		src, started, err := r.open(p)
		opened, process = src, started
		return src, err
	})
	if err != nil {
		if opened.close != nil {
			opened.close()
		}
		return nil, r.startFailure(err, process)
	}
	s.process = process
	r.unit.mu.Lock()
	r.unit.offers, r.unit.audience = p.Manifest.Offers, p.Manifest.Audience
	r.unit.mu.Unlock()
	if _, err := s.begin(ctx); err != nil {
		s.close()
		if process != nil {
			r.stopProcess(process)
		}
		return nil, notStarted(err)
	}
	return s, nil
}

// open starts the program or prepares the connection.
func (r *running) open(p plugin.Plugin) (source, *program.Process, error) {
	if p.Manifest.URL != "" {
		path := p.Manifest.HeadersFile
		if path != "" {
			path = pathOf(p, path)
		}
		headers, err := readHeaders(path)
		if err != nil {
			return source{}, nil, notStarted(fmt.Errorf("headers_file: %s", cmp.Or(fleet.SystemCause(err), err.Error())))
		}
		src := remoteSource(r.host.o.HTTP, p.Manifest.URL, headers)
		src.definition = definitionOf(r.host.o.Key, p, headers)
		return src, nil, nil
	}
	process, err := r.startProgram(p)
	if err != nil {
		return source{}, nil, err
	}
	r.log.add(plugin.FromFleetd, fmt.Sprintf("started %s, process %d", strings.Join(p.Manifest.Command, " "), process.PID()))
	pipe := newPipe(process.Stdin(), process.Stdout(), func(text string) { r.log.add(plugin.FromStdout, text) })
	return source{transport: pipe, name: "stdio", address: "", build: buildOf(p), close: func() { _ = pipe.Close() },
			definition: definitionOf(r.host.o.Key, p, nil), received: pipe.got.Load},
		process, nil
}

// startFailure returns why a start failed: the end of the program says more than that of the
// connection.
func (r *running) startFailure(err error, process *program.Process) error {
	if process == nil {
		if _, known := errors.AsType[*reasonError](err); known {
			return err
		}
		return notInitialized(err)
	}
	select {
	case <-process.Done():
	case <-time.After(time.Second): // a pipe closes before its program has ended
	}
	r.stopProcess(process)
	if exit := process.Exit(); exit.Reason != program.Stopped {
		return ended(exit)
	}
	return notInitialized(err)
}

func notInitialized(err error) error {
	return &reasonError{fleet.Because("plugin_initialize", "detail", detailOf(err)), err}
}

// broken returns the error of a connection that ended.
func broken(how string) error {
	return &reasonError{fleet.Because("plugin_broke", "detail", how), errors.New(how)}
}

func ended(exit program.Exit) error {
	err := errors.New(exit.String())
	switch exit.Reason {
	case program.OverMemory:
		return &reasonError{fleet.Because("plugin_memory", "used_bytes", exit.Used, "limit_bytes", exit.Limit), err}
	case program.TooManyProcesses:
		return &reasonError{fleet.Because("plugin_processes", "used", exit.Used, "limit", exit.Limit), err}
	}
	return &reasonError{fleet.Because("plugin_ended", "detail", detailOf(err)), err}
}

func (r *running) stopProcess(p *program.Process) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		r.host.o.Log.Error("a plug-in has processes that do not end", "plugin", r.name, "err", err)
	}
}

// started records that the plug-in answers.
func (r *running) started(s *session) {
	info := s.server()
	r.mu.Lock()
	r.process = s.process
	r.status.ServerName, r.status.ServerVersion, r.status.Protocol = info.Name, info.Version, s.protocol()
	r.mu.Unlock()
	r.set(plugin.Running, fleet.Reason{})
	r.log.add(plugin.FromFleetd, fmt.Sprintf("connected: %s %s, MCP %s", info.Name, info.Version, s.protocol()))
	r.host.o.Log.Info("plug-in connected", "plugin", r.name, "server", info.Name, "version", info.Version)
}

// ending returns why a session ended, once its program has ended.
func (r *running) ending(s *session) error {
	r.mu.Lock()
	r.process = nil
	r.mu.Unlock()
	if s.process == nil {
		return broken("the connection ended")
	}
	select {
	case <-s.process.Done():
	case <-time.After(time.Second):
	}
	r.stopProcess(s.process)
	exit := s.process.Exit()
	switch {
	case s.hung.Load():
		return &reasonError{fleet.Because("plugin_hung"), errors.New("it answered no ping")}
	case exit.Reason == program.Stopped:
		return broken("it closed its output, or stopped reading its input")
	}
	return ended(exit)
}

// failed records a failed start or an end. If the session before a change goes on, so does the
// state.
func (r *running) failed(err error, now *session, early int, delay time.Duration) {
	reason := fleet.Because("plugin_start", "detail", detailOf(err))
	if e, ok := errors.AsType[*reasonError](err); ok {
		reason = e.reason
	}
	r.log.add(plugin.FromFleetd, err.Error())
	r.host.o.Log.Warn("plug-in ended", "plugin", r.name, "err", err, "again_in", delay)
	state := plugin.Waiting
	if early >= crashLoop {
		state = plugin.Crashing
	}
	if now != nil {
		state = plugin.Running
	}
	r.set(state, reason)
	r.mu.Lock()
	r.status.Next = time.Now().Add(delay).UTC()
	r.mu.Unlock()
}

// retire ends a session that another one replaced, or that is not wanted any more: its calls
// have some time to finish.
func (r *running) retire(s *session) {
	s.stop()
	idle, drain := s.drained(), time.After(r.host.o.DrainTimeout)
	for stopping := r.stop.Done(); ; {
		select {
		case <-idle:
		case <-s.lost:
		case <-drain:
		case <-stopping:
			stopping, drain = nil, time.After(min(r.host.o.DrainTimeout, stopDrain))
			continue
		}
		break
	}
	s.close()
	if s.process != nil {
		r.stopProcess(s.process)
	}
	<-s.lost
}
