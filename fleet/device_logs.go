package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Times and bounds of following a log.
const (
	FollowStep   = 60 * time.Second // what the device is asked to stream at a time
	FollowLimit  = 10 * time.Minute // then an operator has to ask again
	renewBefore  = 15 * time.Second
	logsIdle     = time.Hour // then the lines of a device are forgotten
	maxLogged    = 64        // devices whose lines are kept
	tailLines    = 100       // of one call; the device sends fewer if they are long
	maxTailCalls = 6
)

// DeviceLogsOptions configures [DeviceLogs]. Calls is required.
type DeviceLogsOptions struct {
	Calls  *Calls
	Events *Events // nil: nobody is told
	Log    *slog.Logger
	Now    func() time.Time // default: time.Now
}

// DeviceLogs fetches and follows the logs of devices with the included
// firmware. Lines are kept in memory alone, [MaxLogLines] of each device, of
// the few devices that somebody looks at: a log may hold what should not
// outlive the hour.
type DeviceLogs struct {
	o DeviceLogsOptions

	mu       sync.Mutex
	devices  map[DeviceID]*deviceLog
	watchers map[DeviceID]int
}

type deviceLog struct {
	logBuffer
	follow  Following
	dropped int64
	touched time.Time
}

// Following says that a device streams its log.
type Following struct {
	By      Actor // who started it, and in whose name it is renewed
	Level   string
	Since   time.Time
	Until   time.Time // what the device was asked for
	renewal bool      // under way
}

// Active reports whether the device streams.
func (f Following) Active(now time.Time) bool { return now.Before(f.Until) }

// end is when an operator has to ask again.
func (f Following) end() time.Time { return f.Since.Add(FollowLimit) }

// NewDeviceLogs makes the service.
func NewDeviceLogs(o DeviceLogsOptions) *DeviceLogs {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Events == nil {
		o.Events = new(Events)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &DeviceLogs{o: o, devices: make(map[DeviceID]*deviceLog), watchers: make(map[DeviceID]int)}
}

// A LogView is what is there of a device's log.
type LogView struct {
	Lines      []LogLine
	Generation uint64 // when it changes, earlier lines have changed
	Last       uint64 // Seq of the newest line
	Dropped    int64  // lines that the device could not send while it was followed
	Following  Following
}

// View returns the lines that came after seq; 0 is all of them.
func (s *DeviceLogs) View(id DeviceID, seq uint64) LogView {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.devices[id]
	if d == nil {
		return LogView{}
	}
	d.touched = s.o.Now()
	return LogView{Lines: d.after(seq), Generation: d.generation, Last: d.seq, Dropped: d.dropped, Following: d.follow}
}

// Fetch asks the device for the newest lines of its log and adds them to what
// is there. It returns the last call that was made: each is on record. If it
// failed, the lines that came before it are there nevertheless.
func (s *DeviceLogs) Fetch(ctx context.Context, actor Actor, id DeviceID) (last Call, err error) {
	var lines []LogLine
	var from uint32
	for range maxTailCalls {
		last, err = s.o.Calls.Call(ctx, CallRequest{Actor: actor, Device: id, Tool: ToolLogsTail,
			Arguments: json.RawMessage(fmt.Sprintf(`{"from":%d,"lines":%d}`, from, tailLines))})
		if err != nil || last.State != CallSucceeded {
			break
		}
		report, ok := readLogReport(json.RawMessage(resultText(last.Result)))
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

// followRequest is the call that makes the device stream its log for step; 0
// stops it.
func (s *DeviceLogs) followRequest(actor Actor, id DeviceID, level string, step time.Duration) CallRequest {
	return CallRequest{Actor: actor, Device: id, Tool: ToolLogsStream,
		Arguments: json.RawMessage(fmt.Sprintf(`{"seconds":%d,"level":%q}`, int(step.Round(time.Second)/time.Second), level))}
}

// LevelRequest is the call that sets how much the device logs, of one part or
// ("") of all.
func (s *DeviceLogs) LevelRequest(actor Actor, id DeviceID, level, tag string) CallRequest {
	args, _ := json.Marshal(map[string]string{"level": level, "tag": tag}) // strings marshal
	return CallRequest{Actor: actor, Device: id, Tool: ToolLogsLevel, Arguments: args}
}

// Follow makes the device stream its log for [FollowStep]. While somebody
// watches ([DeviceLogs.Watch]) it is renewed in the actor's name, until
// [FollowLimit].
func (s *DeviceLogs) Follow(ctx context.Context, actor Actor, id DeviceID, level string) (Call, error) {
	now := s.o.Now()
	if err := s.startFollowing(id, Following{By: actor, Level: level, Since: now, Until: now.Add(FollowStep)}); err != nil {
		return Call{}, err
	}
	c, err := s.o.Calls.Call(ctx, s.followRequest(actor, id, level, FollowStep))
	if err != nil || c.State != CallSucceeded {
		s.endFollowing(id)
	}
	return c, err
}

// Stop makes the device end its stream.
func (s *DeviceLogs) Stop(ctx context.Context, actor Actor, id DeviceID) (Call, error) {
	c, err := s.o.Calls.Call(ctx, s.followRequest(actor, id, LogLevels[0], 0))
	if err == nil && c.State == CallSucceeded {
		s.endFollowing(id)
	}
	return c, err
}

// startFollowing opens the door before the device is asked: its first lines
// may be faster than its answer.
func (s *DeviceLogs) startFollowing(id DeviceID, f Following) error {
	s.mu.Lock()
	d, err := s.open(id)
	if err == nil {
		d.follow, d.dropped = f, 0
	}
	s.mu.Unlock()
	if err == nil {
		s.tell(id)
	}
	return err
}

func (s *DeviceLogs) endFollowing(id DeviceID) {
	s.mu.Lock()
	if d := s.devices[id]; d != nil {
		d.follow = Following{}
	}
	s.mu.Unlock()
	s.tell(id)
}

// OnLog takes the params of notifications/log. What nobody asked for is
// dropped: a device must not fill memory by itself. It does not block.
func (s *DeviceLogs) OnLog(id DeviceID, params json.RawMessage) {
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

func (s *DeviceLogs) add(id DeviceID, lines []LogLine, end uint32, dropped int64) {
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
		s.tell(id)
	}
}

func (s *DeviceLogs) tell(id DeviceID) {
	s.o.Events.Publish(Event{Kind: EventLog, At: s.o.Now().UTC(), Device: id, Subject: string(id)})
}

// open returns the device's log, in the place of the one that nobody has
// looked at for longest if there are too many. s.mu is held.
func (s *DeviceLogs) open(id DeviceID) (*deviceLog, error) {
	now := s.o.Now()
	if d := s.devices[id]; d != nil {
		d.touched = now
		return d, nil
	}
	if len(s.devices) >= maxLogged && !s.makeRoom(now) {
		return nil, Errorf(ErrTooMany, "too_many_logs", "the logs of %d devices are followed already; stop one, or wait", maxLogged)
	}
	d := &deviceLog{touched: now}
	s.devices[id] = d
	return d, nil
}

func (s *DeviceLogs) makeRoom(now time.Time) bool {
	var oldest DeviceID
	for id, d := range s.devices {
		if !d.follow.Active(now) && (oldest == "" || d.touched.Before(s.devices[oldest].touched)) {
			oldest = id
		}
	}
	delete(s.devices, oldest)
	return oldest != ""
}
