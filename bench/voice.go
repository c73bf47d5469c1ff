package main

import (
	"bufio"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// voiceCommand measures conversations, for use while tuning.
type voiceCommand struct {
	serveOptions
	voiceLoad
	Repeat     int    `help:"Measurements, each with a new fleetd." default:"1"`
	Output     string `help:"Also write the section of conversations into this file of run." placeholder:"FILE"`
	JSON       string `name:"json" help:"Also write the figures to this file." placeholder:"FILE"`
	CPUProfile string `name:"cpu-profile" help:"Also write fleetd's CPU profile while all talk for go tool pprof, and print the functions that use most." placeholder:"FILE"`
}

// voiceLoad is the number and length of the measured conversations.
type voiceLoad struct {
	Conversations int           `help:"Conversations in which audio flows." default:"500"`
	Open          int           `help:"Conversations that are open at once, in which nothing is said at first." default:"2000"`
	Length        time.Duration `help:"How long audio flows." default:"10s"`
}

func (c *voiceCommand) Run(ctx context.Context) error {
	var rounds []round
	for range c.Repeat {
		dir, err := os.MkdirTemp("", "fleetd-bench")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		v, top, err := measureVoice(ctx, dir, c.serveOptions, c.voiceLoad, c.CPUProfile)
		if err != nil {
			return err
		}
		fmt.Print(top)
		rounds = append(rounds, round{Voice: v})
	}
	var text strings.Builder
	voiceSection(&text, rounds, fmt.Sprintf("Made by `bin/bench voice --repeat %d --length %v` on %s.\n\n", c.Repeat, c.Length,
		time.Now().UTC().Format("2006-01-02 15:04 MST")))
	fmt.Print(text.String())
	if c.JSON != "" {
		if err := writeRun(c.JSON, voiceFigures(rounds), len(rounds)); err != nil {
			return err
		}
	}
	if c.Output == "" {
		return nil
	}
	old, err := os.ReadFile(c.Output)
	if err != nil {
		return err
	}
	return os.WriteFile(c.Output, []byte(withSection(string(old), text.String())), 0o644)
}

// withSection replaces the section of conversations in a report, or inserts it
// before the figures of other commands.
func withSection(report, section string) string {
	before, after, found := strings.Cut(report, voiceHeading)
	if !found {
		if before, after, found = strings.Cut(report, keptHeading); found {
			after = keptHeading + after
		}
	} else if i := strings.Index(after, "\n## "); i >= 0 {
		after = after[i+1:]
	} else {
		after = ""
	}
	if after != "" {
		section += "\n"
	}
	return strings.TrimRight(before, "\n") + "\n\n" + section + after
}

// A voiceReading is one measurement of conversations. Times are in
// milliseconds, shares in percent.
type voiceReading struct {
	Conversations, Open int

	Echo, Relayed talk    // through a plain UDP echo, and through fleetd and a voice server
	IdleCPU       float64 // of fleetd with all conversations open and silent, of a core
	KiB           float64 // of fleetd, for an open conversation

	Calls, FloodedCalls reading // through REST while audio flows, without and with a flood
	Flooded             talk
	Flood               float64 // datagrams a second

	OpenSeconds float64 // until all conversations were open
}

// A talk is a measurement while audio flows.
type talk struct {
	P50, P99, Max     float64
	Back              float64 // of the frames sent
	CPU, LoadCPU      float64 // of fleetd, and of boards and voice server, of a core
	Foreign           float64 // share of the machine used by processes that are not measured
	CPUPerFrameMicros float64 // of fleetd
}

// addedP50 and addedP99 are the delays that fleetd and the voice server add to
// the echo.
func (v voiceReading) addedP50() float64 { return v.Relayed.P50 - v.Echo.P50 }
func (v voiceReading) addedP99() float64 { return v.Relayed.P99 - v.Echo.P99 }

// measureVoice starts fleetd serve and a voice server that echoes. It opens
// conversations of as many boards, and talks in some of them.
func measureVoice(ctx context.Context, dir string, serving serveOptions, load voiceLoad,
	profile string) (v voiceReading, top string, err error) {
	load.Open = max(load.Open, load.Conversations)
	v.Conversations, v.Open = load.Conversations, load.Open
	server, err := startVoiceServer()
	if err != nil {
		return v, "", err
	}
	defer server.stop()
	udp, err := freeUDPAddr()
	if err != nil {
		return v, "", err
	}
	r, err := startServe(ctx, filepath.Join(dir, "voice"), serving, "--voice-upstream", server.URL,
		"--voice-udp-addr", udp)
	if err != nil {
		return v, "", err
	}
	defer r.stop()
	boards, err := r.connectBoards(ctx, load.Open)
	defer func() {
		for _, b := range boards {
			b.close()
		}
	}()
	if err != nil {
		return v, "", err
	}
	settle(load.Open)
	processes := []process{r.fleetd, server.process(ofDevices), self(ofLoad)}
	before, err := r.inUse()
	if err != nil {
		return v, "", err
	}
	begin := time.Now()
	if err := openAll(boards); err != nil {
		return v, "", err
	}
	v.OpenSeconds = time.Since(begin).Seconds()
	settle(load.Open)
	after, err := r.inUse()
	if err != nil {
		return v, "", err
	}
	v.KiB = (after - before) / 1024 / float64(load.Open)
	idle := watch(processes)
	time.Sleep(min(load.Length, 5*time.Second))
	v.IdleCPU = 100 * idle.share(ofFleetd)

	for _, b := range boards[load.Conversations:] {
		b.say(`{"type":"goodbye","session_id":"` + b.session + `"}`)
	}
	talkers := boards[:load.Conversations]
	settle(load.Open)
	if v.Echo, err = echoed(talkers, server.Echo, load.Length, processes); err != nil {
		return v, "", err
	}
	for _, b := range talkers { // fleetd learns where they are
		if err := b.dial(udp); err != nil {
			return v, "", err
		}
	}
	talkAll(talkers, time.Second, processes)
	v.Relayed = talkAll(talkers, load.Length, processes)
	if v.Calls, _, err = r.callsMeanwhile(talkers, load.Length/2, processes); err != nil {
		return v, "", err
	}
	flood, err := startFlood(udp)
	if err != nil {
		return v, "", err
	}
	v.FloodedCalls, v.Flooded, err = r.callsMeanwhile(talkers, load.Length/2, processes)
	v.Flood = flood.stop()
	if err != nil {
		return v, "", err
	}
	if profile != "" {
		top, err = r.cpuProfile(variant{do: func(int) error { talkAll(talkers, load.Length, processes); return nil }}, 1,
			load.Length, profile)
	}
	return v, top, err
}

// inUse returns the memory of fleetd's heap and stacks after a collection, in
// bytes.
func (r *rig) inUse() (bytes float64, err error) {
	for _, path := range []string{"/debug/pprof/heap?gc=1", "/metrics"} {
		resp, err := http.Get("http://" + r.admin + path)
		if err != nil {
			return 0, err
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return 0, err
		}
		bytes = 0
		for line := range strings.Lines(string(text)) {
			var n float64
			for _, name := range []string{"heap", "stack"} {
				if _, err := fmt.Sscanf(line, "go_memstats_"+name+"_inuse_bytes %g", &n); err == nil {
					bytes += n
				}
			}
		}
	}
	if bytes == 0 {
		err = errors.New("/metrics has no go_memstats_heap_inuse_bytes")
	}
	return bytes, err
}

// callsMeanwhile runs four callers while all boards talk.
func (r *rig) callsMeanwhile(boards []*voiceBoard, d time.Duration, processes []process) (calls reading, t talk,
	err error) {
	load := r.rest(4)
	defer load.close()
	talked := make(chan talk)
	go func() { talked <- talkAll(boards, d, processes) }()
	calls = closedLoop(4, d, load.do)
	return calls, <-talked, calls.Error
}

// A voiceFlood sends datagrams of conversations that do not exist.
type voiceFlood struct {
	begin time.Time
	sent  int
	end   chan struct{}
	ended chan struct{}
}

const floodEvery, floodBurst = 5 * time.Millisecond, 100 // 20,000 a second

func startFlood(addr string) (*voiceFlood, error) {
	conn, err := net.Dial("udp", addr)
	if err != nil {
		return nil, err
	}
	f := &voiceFlood{time.Now(), 0, make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(f.ended)
		defer conn.Close()
		b := make([]byte, audioHeader+audioFrame)
		b[0] = 1
		binary.BigEndian.PutUint16(b[2:], audioFrame)
		beat := time.NewTicker(floodEvery)
		defer beat.Stop()
		for {
			select {
			case <-beat.C:
			case <-f.end:
				return
			}
			for range floodBurst {
				f.sent++
				binary.BigEndian.PutUint32(b[4:], uint32(f.sent))
				_, _ = conn.Write(b)
			}
		}
	}()
	return f, nil
}

// stop ends the flood and returns the number of datagrams sent per second.
func (f *voiceFlood) stop() float64 {
	close(f.end)
	<-f.ended
	return float64(f.sent) / time.Since(f.begin).Seconds()
}

// echoed measures the same packets to a plain echo.
func echoed(boards []*voiceBoard, addr string, d time.Duration, processes []process) (talk, error) {
	for _, b := range boards {
		if err := b.dial(addr); err != nil {
			return talk{}, err
		}
		b.plain = true
	}
	talkAll(boards, time.Second, processes)
	t := talkAll(boards, d, processes)
	for _, b := range boards {
		b.plain = false
	}
	return t, nil
}

// A voiceBoard is a board's side of a conversation.
type voiceBoard struct {
	mqtt  net.Conn
	topic string
	hello chan []byte // the server's

	session  string
	block    cipher.Block
	udp      net.Conn
	plain    bool // the other side echoes packets unchanged
	sequence uint32
	up, down []byte
	took     samples
}

const (
	boardHello = `{"type":"hello","version":3,"transport":"udp","features":{"mcp":true},` +
		`"audio_params":{"format":"opus","sample_rate":16000,"channels":1,"frame_duration":60}}`
	audioHeader = 16
	audioFrame  = 120 // bytes: 16 kbit/s
	audioTOC    = 11 << 3
	framePeriod = 60 * time.Millisecond
)

// connectBoards enrols n boards and connects them to MQTT.
func (r *rig) connectBoards(ctx context.Context, n int) (boards []*voiceBoard, err error) {
	all, err := r.enrol(n)
	if err != nil {
		return nil, err
	}
	boards = make([]*voiceBoard, n)
	var g errgroup.Group
	g.SetLimit(64)
	for i, c := range all {
		b := &voiceBoard{topic: c.Up, hello: make(chan []byte, 1)}
		boards[i] = b
		g.Go(func() error {
			conn, reader, err := dial(r.mqtt, c)
			if err != nil {
				return err
			}
			b.mqtt = conn
			go b.answer(reader)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return boards, err
	}
	return boards, r.listed(ctx, n)
}

// answer simulates the board on MQTT until its connection ends.
func (b *voiceBoard) answer(r *bufio.Reader) {
	var buf []byte
	for {
		kind, body, err := readPacket(r, buf)
		if err != nil {
			return
		}
		buf = body[:0]
		if kind&0xF0 != packetPublish {
			continue
		}
		text := payload(body)
		var m struct{ Type string }
		if json.Unmarshal(text, &m) == nil && m.Type == "hello" {
			b.hello <- append([]byte(nil), text...)
		} else if reply := replyTo(text); reply != nil {
			b.say(string(reply))
		}
	}
}

func (b *voiceBoard) say(text string) { _, _ = b.mqtt.Write(publishPacket(b.topic, []byte(text))) }

func (b *voiceBoard) close() {
	for _, c := range []net.Conn{b.mqtt, b.udp} {
		if c != nil {
			c.Close()
		}
	}
}

// openAll begins a conversation of each board, a few at a time.
func openAll(boards []*voiceBoard) error {
	var g errgroup.Group
	g.SetLimit(64)
	for _, b := range boards {
		g.Go(b.open)
	}
	return g.Wait()
}

func (b *voiceBoard) open() error {
	b.say(boardHello)
	var text []byte
	select {
	case text = <-b.hello:
	case <-time.After(10 * time.Second):
		return errors.New("no answer to hello within 10s")
	}
	var h struct {
		SessionID string `json:"session_id"`
		UDP       struct{ Key, Nonce string }
	}
	if err := json.Unmarshal(text, &h); err != nil {
		return err
	}
	b.session = h.SessionID
	key, err := hex.DecodeString(h.UDP.Key)
	if err != nil {
		return err
	}
	nonce, err := hex.DecodeString(h.UDP.Nonce)
	if err != nil || len(nonce) != audioHeader {
		return fmt.Errorf("nonce %q", h.UDP.Nonce)
	}
	b.up, b.down = make([]byte, audioHeader+audioFrame), make([]byte, 2048)
	copy(b.up, nonce)
	binary.BigEndian.PutUint16(b.up[2:], audioFrame)
	b.block, err = aes.NewCipher(key)
	return err
}

// dial sends the board's audio to an address from now on.
func (b *voiceBoard) dial(addr string) (err error) {
	if b.udp != nil {
		b.udp.Close()
	}
	b.udp, err = net.Dial("udp", addr)
	return err
}

// talkAll makes all boards send a frame every 60 ms, one board after the other
// within that time, and measures the round trip of the frames.
func talkAll(boards []*voiceBoard, d time.Duration, processes []process) (t talk) {
	runtime.GC() // collects the garbage of the last talk
	w := watch(processes)
	begin := time.Now()
	var listening errgroup.Group
	for _, b := range boards {
		b.took = make(samples, 0, d/framePeriod+1)
		_ = b.udp.SetReadDeadline(begin.Add(d + time.Second))
		listening.Go(func() error { b.listen(begin); return nil })
	}
	frames := int(d / framePeriod)
	for i := range frames * len(boards) {
		due := framePeriod * time.Duration(i) / time.Duration(len(boards))
		if wait := due - time.Since(begin); wait > 0 {
			time.Sleep(wait)
		}
		boards[i%len(boards)].speak(begin)
	}
	t.CPU, t.LoadCPU = 100*w.share(ofFleetd), 100*(w.share(ofLoad)+w.share(ofDevices))
	t.Foreign = 100 * w.foreign()
	t.CPUPerFrameMicros = w.used(ofFleetd) / float64(frames*len(boards))
	_ = listening.Wait()
	var all samples
	for _, b := range boards {
		all = append(all, b.took...)
	}
	t.Back = 100 * float64(len(all)) / float64(frames*len(boards))
	t.P50, t.P99, t.Max = ms(all.percentile(50)), ms(all.percentile(99)), ms(all.percentile(100))
	return t
}

// speak sends a frame that contains the time. Frames of another talk are not
// counted.
func (b *voiceBoard) speak(begin time.Time) {
	b.sequence++
	binary.BigEndian.PutUint32(b.up[12:], b.sequence)
	frame := b.up[audioHeader:]
	clear(frame)
	frame[0] = audioTOC
	binary.BigEndian.PutUint64(frame[1:], uint64(begin.UnixNano()))
	binary.BigEndian.PutUint64(frame[9:], uint64(time.Since(begin)))
	if !b.plain {
		cipher.NewCTR(b.block, b.up[:audioHeader]).XORKeyStream(frame, frame)
	}
	_, _ = b.udp.Write(b.up) // an unsent packet counts as one that does not return
}

func (b *voiceBoard) listen(begin time.Time) {
	for {
		n, err := b.udp.Read(b.down)
		if err != nil {
			return
		}
		now := time.Since(begin)
		if n != audioHeader+audioFrame {
			continue
		}
		frame := b.down[audioHeader:n]
		if !b.plain {
			cipher.NewCTR(b.block, b.down[:audioHeader]).XORKeyStream(frame, frame)
		}
		if frame[0] == audioTOC && binary.BigEndian.Uint64(frame[1:]) == uint64(begin.UnixNano()) {
			b.took = append(b.took, now-time.Duration(binary.BigEndian.Uint64(frame[9:])))
			if len(b.took) == cap(b.took)-1 {
				return
			}
		}
	}
}

// A usageWatch measures what processes have used since it was created.
type usageWatch struct {
	processes []process
	begin     time.Time
	before    map[string]usage
	busy      float64
}

func watch(processes []process) usageWatch {
	return usageWatch{processes, time.Now(), usages(processes), busy()}
}

// used returns the processor time of a process, in microseconds.
func (w usageWatch) used(name string) float64 {
	return usages(w.processes)[name].cpu() - w.before[name].cpu()
}

// share returns the processor time of a process as a share of one core.
func (w usageWatch) share(name string) float64 {
	return w.used(name) / float64(time.Since(w.begin).Microseconds())
}

// foreign returns the share of the machine that other processes used.
func (w usageWatch) foreign() float64 {
	others := busy() - w.busy
	for _, p := range w.processes {
		others -= w.used(p.name)
	}
	return max(0, others/float64(time.Since(w.begin).Microseconds())/float64(runtime.NumCPU()))
}

func freeUDPAddr() (string, error) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return "127.0.0.1:" + strconv.Itoa(conn.LocalAddr().(*net.UDPAddr).Port), nil
}
