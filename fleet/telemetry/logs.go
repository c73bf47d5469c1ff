package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// Times and bounds of following a log.
const (
	FollowStep   = 60 * time.Second // how long one call makes the device stream
	FollowLimit  = 10 * time.Minute // after that an operator must start again
	renewBefore  = 15 * time.Second
	logsIdle     = time.Hour // after that the lines of a device are discarded
	maxLogged    = 64        // devices whose lines are in memory
	tailLines    = 100       // of one call; the device sends fewer if the lines are long
	maxTailCalls = 6
)

// LogsOptions configures [Logs]. Calls is required.
type LogsOptions struct {
	Calls  *call.Service
	Events *fleet.Events // nil: no events are published
	Log    *slog.Logger
	Now    func() time.Time // default: time.Now
}

// Logs fetches and follows the logs of devices with the included firmware. It stores lines only
// in memory: [MaxLogLines] per device, and only for the few devices that operators look at. A
// log may contain data that should not outlive the hour.
type Logs struct {
	o LogsOptions

	mu       sync.Mutex
	devices  map[fleet.DeviceID]*deviceLog
	watchers map[fleet.DeviceID]int
}

type deviceLog struct {
	logBuffer
	follow  Following
	dropped int64
	touched time.Time
}

// Following is the state of a device that streams its log.
type Following struct {
	By      fleet.Principal // the principal who started it, and in whose name it is renewed
	Level   string
	Since   time.Time
	Until   time.Time // end of the stream that the device was called for
	renewal bool      // a renewal is under way
}

// Active reports whether the device streams.
func (f Following) Active(now time.Time) bool { return now.Before(f.Until) }

// end returns when an operator must start again.
func (f Following) end() time.Time { return f.Since.Add(FollowLimit) }

// NewLogs returns the service.
func NewLogs(o LogsOptions) *Logs {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Events == nil {
		o.Events = new(fleet.Events)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Logs{o: o, devices: make(map[fleet.DeviceID]*deviceLog), watchers: make(map[fleet.DeviceID]int)}
}

// A LogView is the part of a device's log for a page.
type LogView struct {
	Lines      []LogLine
	Generation uint64 // a change means that earlier lines have changed
	Last       uint64 // Seq of the newest line
	Dropped    int64  // lines that the device could not send while it streamed
	Following  Following
}

// View returns the lines that came after seq; 0 returns all lines.
func (s *Logs) View(id fleet.DeviceID, seq uint64) LogView {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.devices[id]
	if d == nil {
		return LogView{}
	}
	d.touched = s.o.Now()
	return LogView{Lines: d.after(seq), Generation: d.generation, Last: d.seq, Dropped: d.dropped, Following: d.follow}
}

// Fetch requests the newest lines of the device's log and adds them to the buffer. It returns
// the last call that it made; each call is on record. If that call failed, the lines from
// earlier calls are in the buffer nevertheless.
func (s *Logs) Fetch(ctx context.Context, actor fleet.Principal, id fleet.DeviceID) (last fleet.Call, err error) {
	var lines []LogLine
	var from uint32
	for range maxTailCalls {
		last, err = s.o.Calls.Make(ctx, call.Request{Actor: actor, Device: id, Tool: fleet.ToolLogsTail,
			Arguments: json.RawMessage(fmt.Sprintf(`{"from":%d,"lines":%d}`, from, tailLines))})
		if err != nil || last.State != fleet.CallSucceeded {
			break
		}
		report, ok := readLogReport(json.RawMessage(fleet.ResultText(last.Result)))
		if !ok {
			break
		}
		lines = append(lines, report.Lines...)
		whole := len(report.Lines) == 0 || len(report.Lines) >= tailLines || report.Next <= from
		from = report.Next
		if whole || len(lines) >= tailLines {
			break
		}
	}
	if len(lines) > 0 {
		s.add(id, lines, from, 0)
	}
	return last, err
}

// followRequest returns the call that makes the device stream its log for step; 0 ends the stream.
func (s *Logs) followRequest(actor fleet.Principal, id fleet.DeviceID, level string,
	step time.Duration) call.Request {
	return call.Request{Actor: actor, Device: id, Tool: fleet.ToolLogsStream,
		Arguments: json.RawMessage(fmt.Sprintf(`{"seconds":%d,"level":%q}`, int(step.Round(time.Second)/time.Second), level))}
}

// LevelRequest returns the call that sets the log level of one part of the firmware, or of all
// parts for the tag "".
func (s *Logs) LevelRequest(actor fleet.Principal, id fleet.DeviceID, level, tag string) call.Request {
	args, _ := json.Marshal(map[string]string{"level": level, "tag": tag}) // strings marshal
	return call.Request{Actor: actor, Device: id, Tool: fleet.ToolLogsLevel, Arguments: args}
}

// Follow makes the device stream its log for [FollowStep]. While an operator watches
// ([Logs.Watch]), Logs renews the stream in the actor's name, until [FollowLimit].
func (s *Logs) Follow(ctx context.Context, actor fleet.Principal, id fleet.DeviceID, level string) (fleet.Call, error) {
	now := s.o.Now()
	if err := s.startFollowing(id, Following{By: actor, Level: level, Since: now,
		Until: now.Add(FollowStep)}); err != nil {
		return fleet.Call{}, err
	}
	c, err := s.o.Calls.Make(ctx, s.followRequest(actor, id, level, FollowStep))
	if err != nil || c.State != fleet.CallSucceeded {
		s.endFollowing(id)
	}
	return c, err
}

// Stop makes the device end its stream.
func (s *Logs) Stop(ctx context.Context, actor fleet.Principal, id fleet.DeviceID) (fleet.Call, error) {
	c, err := s.o.Calls.Make(ctx, s.followRequest(actor, id, LogLevels[0], 0))
	if err == nil && c.State == fleet.CallSucceeded {
		s.endFollowing(id)
	}
	return c, err
}

// startFollowing admits lines before the device is called: its first lines may arrive before
// its answer.
func (s *Logs) startFollowing(id fleet.DeviceID, f Following) error {
	s.mu.Lock()
	d, err := s.open(id)
	if err == nil {
		d.follow, d.dropped = f, 0
	}
	s.mu.Unlock()
	if err == nil {
		s.publish(id)
	}
	return err
}

func (s *Logs) endFollowing(id fleet.DeviceID) {
	s.mu.Lock()
	if d := s.devices[id]; d != nil {
		d.follow = Following{}
	}
	s.mu.Unlock()
	s.publish(id)
}

// OnLog handles the params of notifications/log. It drops lines that were not requested: a
// device must not fill memory unasked. It does not block.
func (s *Logs) OnLog(id fleet.DeviceID, params json.RawMessage) {
	s.mu.Lock()
	d := s.devices[id]
	wanted := d != nil && d.follow.Active(s.o.Now())
	s.mu.Unlock()
	if !wanted {
		return
	}
	if report, ok := readLogReport(params); ok {
		s.add(id, report.Lines, report.Next, report.Dropped)
	}
}

func (s *Logs) add(id fleet.DeviceID, lines []LogLine, end uint32, dropped int64) {
	s.mu.Lock()
	d, err := s.open(id)
	added := false
	if err == nil {
		added = d.add(lines, end)
		d.dropped += dropped
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		s.o.Log.Info("lines of a device's log dropped", "device", id, "err", err)
	case added:
		s.publish(id)
	}
}

func (s *Logs) publish(id fleet.DeviceID) {
	s.o.Events.Publish(fleet.Event{Kind: fleet.EventLog, At: s.o.Now().UTC(), Device: id, Subject: string(id)})
}

// open returns the device's log. If there are too many logs, it first discards the one that was
// not looked at for the longest time. The caller must have locked s.mu.
func (s *Logs) open(id fleet.DeviceID) (*deviceLog, error) {
	now := s.o.Now()
	if d := s.devices[id]; d != nil {
		d.touched = now
		return d, nil
	}
	if len(s.devices) >= maxLogged && !s.makeRoom(now) {
		return nil, fleet.Refuse(fleet.ErrTooMany, "too_many_logs", "limit", maxLogged)
	}
	d := &deviceLog{touched: now}
	s.devices[id] = d
	return d, nil
}

func (s *Logs) makeRoom(now time.Time) bool {
	var oldest fleet.DeviceID
	for id, d := range s.devices {
		if !d.follow.Active(now) && (oldest == "" || d.touched.Before(s.devices[oldest].touched)) {
			oldest = id
		}
	}
	delete(s.devices, oldest)
	return oldest != ""
}

// Watch marks the device's log as watched until ctx ends.
func (s *Logs) Watch(ctx context.Context, id fleet.DeviceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[id]++
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watchers[id]--; s.watchers[id] == 0 {
			delete(s.watchers, id)
		}
	})
}

// Run renews the streams that are watched, and discards the logs that are no longer looked at,
// until ctx ends.
func (s *Logs) Run(ctx context.Context) error {
	tick := time.NewTicker(renewBefore / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.tend(ctx)
		}
	}
}

func (s *Logs) tend(ctx context.Context) {
	for id, f := range s.due() {
		s.renew(ctx, id, f)
	}
}

// due returns the streams to renew, and marks them. It publishes the ends of expired streams,
// and discards the logs that are no longer looked at.
func (s *Logs) due() map[fleet.DeviceID]Following {
	now, due := s.o.Now(), make(map[fleet.DeviceID]Following)
	var ended []fleet.DeviceID
	s.mu.Lock()
	for id, d := range s.devices {
		f := &d.follow
		switch {
		case !f.Active(now) && !f.Until.IsZero():
			*f = Following{}
			ended = append(ended, id)
		case f.Active(now) && !f.renewal && s.watchers[id] > 0 && f.Until.Sub(now) <= renewBefore && f.Until.Before(f.end()):
			f.renewal = true
			due[id] = *f
		case !f.Active(now) && s.watchers[id] == 0 && now.Sub(d.touched) > logsIdle:
			delete(s.devices, id)
		}
	}
	s.mu.Unlock()
	for _, id := range ended {
		s.publish(id)
	}
	return due
}

// renew requests another step. If the device refuses, its stream expires. renew does not wait
// for the outcome: one slow device delays no other.
func (s *Logs) renew(ctx context.Context, id fleet.DeviceID, f Following) {
	now := s.o.Now()
	until := now.Add(FollowStep)
	if until.After(f.end()) {
		until = f.end()
	}
	c, err := s.o.Calls.Start(ctx, s.followRequest(f.By, id, f.Level, until.Sub(now)))
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.devices[id]
	if d == nil || !d.follow.Since.Equal(f.Since) {
		return // ended, or started again
	}
	d.follow.renewal = false
	if err != nil || c.State.Failed() {
		d.follow.Since = f.Until.Add(-FollowLimit) // no more tries: the stream ends
		s.o.Log.Info("log no longer followed", "device", id, "state", c.State, "err", err)
		return
	}
	d.follow.Until = until
}
