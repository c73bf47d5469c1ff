package voice

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"fleetd/broker/edge"
	"fleetd/fleet"
)

const (
	maxTexts  = 64       // messages queued for the upstream; one more ends the conversation
	maxUp     = 16 << 10 // from a device; longer messages are not relayed
	maxDown   = 64 << 10 // to a device
	maxAsking = 8        // concurrent MCP requests of the upstream; a device has room for 16 calls

	// maxBadAudio frames in a row that cannot be relayed end the conversation: for 1.5 s the
	// person was not heard.
	maxBadAudio = 25
)

// A conversation is one voice session. The goroutine of run opens it and reads from the upstream.
// The goroutine of write writes to the upstream and detects the end of the device's connection.
//
// The device, the upstream and fleetd may each end it. The first call of end sets the cause.
type conversation struct {
	relay   *Relay
	device  edge.VoiceDevice
	server  Upstream
	line    *line // of server
	id      uuid.UUID
	session string // the session id sent to the device
	begin   time.Time
	helloAt time.Time // when the device's hello arrived

	path   path          // for audio between fleetd and the device
	frame  time.Duration // frame duration of the device's audio; 0 if its hello has none
	opus   bool
	frames *queue
	bad    int         // frames in a row that could not be relayed; used by the reader of the device's audio only
	texts  chan []byte // for the upstream, with the device's session id
	asking chan struct{}

	askingPrograms chan struct{}

	life   context.Context // ends with the conversation
	cancel context.CancelFunc
	ready  chan struct{} // closed when the fields of the next group are set
	wrote  chan struct{} // closed when write has returned

	upstream        *upstreamConn
	upstreamSession string
	downFrame       time.Duration // of the upstream's audio

	mu     sync.Mutex
	how    fleet.ConversationEnd // "" while it is open
	opened bool                  // the device was sent its hello

	programs *offers // the latest list; nil before it

	vision Vision // of the upstream; the zero value if it has none

	resultsWithoutErrors atomic.Bool // the upstream reads JSON-RPC errors only: see xiaozhiClient

	superseded bool // nothing more may be sent to the device

	helloIn       time.Duration
	calls         atomic.Int64
	late, sentOut atomic.Int64
}

func newConversation(r *Relay, d edge.VoiceDevice, server Upstream, id uuid.UUID) *conversation {
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	c := &conversation{relay: r, device: d, server: server, line: r.lines.of(&server), id: id,
		session: "s-" + hex.EncodeToString(random), begin: r.o.Now(), opus: true, texts: make(chan []byte, maxTexts), asking: make(chan struct{}, maxAsking),
		askingPrograms: make(chan struct{}, maxAskingPrograms),
		ready:          make(chan struct{}), wrote: make(chan struct{})}
	c.life, c.cancel = context.WithCancel(r.life)
	if c.path = (&udpPath{c: c}); d.Stream != nil {
		c.path = &streamPath{c: c, stream: d.Stream}
	}
	return c
}

// audioOf reads the audio parameters of the device's hello.
func (c *conversation) audioOf(params json.RawMessage) error {
	var a audioParams
	if err := json.Unmarshal(params, &a); err != nil {
		return err
	}
	c.opus = a.Format == "" || a.Format == "opus"
	if a.FrameDuration > 0 && a.FrameDuration <= 120 {
		c.frame = time.Duration(a.FrameDuration) * time.Millisecond
	}
	return nil
}

// end ends the conversation unless it has ended. It does not wait.
func (c *conversation) end(how fleet.ConversationEnd) {
	c.mu.Lock()
	if c.how == "" {
		c.how = how
	}
	c.mu.Unlock()
	c.cancel()
}

// End implements [edge.Conversation].
func (c *conversation) End(how fleet.ConversationEnd) {
	c.mu.Lock()
	c.superseded = true
	c.mu.Unlock()
	c.end(how)
}

// run runs the conversation from the device's hello to its end. If it is refused, it ends at once.
func (c *conversation) run(hello []byte, refused fleet.ConversationEnd) {
	defer c.relay.leave(c)
	c.relay.stats.begun.Add(1)
	if refused != "" {
		c.end(refused)
		c.finish()
		return
	}
	c.save(c.summary())
	go func() { defer close(c.wrote); c.write() }()
	c.relay.log.Debug("conversation begins", "device", c.device.ID, "conversation", c.id)
	err := c.open(hello)
	if err == nil {
		// The device may have disconnected, and write ended, while its hello was in transit.
		stop := context.AfterFunc(c.life, c.upstream.close)
		err = c.read()
		stop()
	}
	c.end(readEnd(err))
	<-c.wrote
	c.finish()
	if c.how.Failed() {
		c.relay.log.Warn("conversation failed", "device", c.device.ID, "upstream", c.server.Name, "end", c.how,
			"err", err)
	}
}

// open connects to the upstream, exchanges hellos with it, and answers the
// device's.
func (c *conversation) open(hello []byte) error {
	r := c.relay
	if how := c.line.allow(time.Now()); how != "" {
		return failed(how, errors.New("the voice server failed a moment ago"))
	}
	until := c.helloAt.Add(r.o.HelloTimeout)
	ctx, cancel := context.WithDeadline(c.life, until)
	defer cancel()
	err := c.openUpstream(ctx, hello, until)
	took := time.Since(c.helloAt)
	if err == nil || c.life.Err() == nil { // a conversation that ended meanwhile did not fail
		c.line.note(openEnd(err), took, time.Now())
	}
	if err != nil {
		return err
	}
	c.helloIn = took
	r.stats.hello(c.helloIn)
	return nil
}

func openEnd(err error) fleet.ConversationEnd {
	if err == nil {
		return ""
	}
	return readEnd(err)
}

// openUpstream opens the conversation at the upstream, after requesting the upstream's address if
// needed. A refused token is replaced once.
func (c *conversation) openUpstream(ctx context.Context, hello []byte, until time.Time) error {
	if c.server.Find == nil {
		return c.openAt(ctx, &c.server, hello, until)
	}
	p := Poll{Device: c.device.ID, ClientID: c.device.ClientID}
	url, token, err := c.server.Find(ctx, p, "")
	if err != nil {
		return err
	}
	err = c.openAt(ctx, c.server.at(url, token), hello, until)
	if err == nil || token == "" || openEnd(err) != fleet.EndedRefused {
		return err
	}
	again, fresh, failure := c.server.Find(ctx, p, token)
	if failure != nil || fresh == token {
		return err
	}
	if c.upstream != nil {
		c.upstream.close()
		c.upstream = nil
	}
	return c.openAt(ctx, c.server.at(again, fresh), hello, until)
}

func (c *conversation) openAt(ctx context.Context, server *Upstream, hello []byte, until time.Time) error {
	up, err := server.dial(ctx, c.device.ClientID, nameOf(c.device.ID), c.device.RemoteAddr)
	if err != nil {
		return err
	}
	c.upstream = up
	stop := context.AfterFunc(ctx, up.close)
	defer stop()
	answer, err := up.hello(hello, until, func(text []byte) {
		if m, ok := parseMessage(text); ok && m.kind == "mcp" {
			c.ask(bytes.Clone(m.payload))
		}
	})
	if err != nil {
		return err
	}
	c.upstreamSession = answer.session
	c.downFrame = time.Duration(answer.audio.FrameDuration) * time.Millisecond
	frame := c.frame
	if frame == 0 {
		frame = 60 * time.Millisecond
	}
	c.frames = newQueue(frame)
	if err := c.path.open(); err != nil {
		return err
	}
	if !stop() && ctx.Err() != nil {
		return failed(fleet.EndedNoHello, ctx.Err())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.how != "" {
		return context.Canceled
	}
	c.opened = true
	if err := c.device.Send(c.path.hello(&answer)); err != nil {
		c.how = fleet.EndedByDeviceLost
		return err
	}
	close(c.ready)
	c.device.Opened()
	return nil
}

// read relays the upstream's messages until the connection ends.
func (c *conversation) read() error {
	for {
		kind, message, err := c.upstream.read()
		if err == nil {
			err = c.upstream.alive()
		}
		if err != nil {
			return err
		}
		if kind == websocket.BinaryMessage {
			c.audioDown(message)
		} else if !c.textDown(message) {
			return failed(fleet.EndedByUpstream, errors.New("goodbye"))
		}
	}
}

func (c *conversation) audioDown(message []byte) {
	frame, timestamp, ok := c.upstream.audio(message)
	if ok && !c.upstream.framed {
		timestamp = uint32(c.sentOut.Load() * c.downFrame.Milliseconds())
	}
	if !ok || !c.path.send(frame, timestamp) {
		c.late.Add(1)
		c.relay.stats.late.Add(1)
		return
	}
	c.sentOut.Add(1)
	c.relay.stats.audioDown.Add(1)
}

// textDown relays a message of the upstream. It reports false if the message ends the
// conversation.
func (c *conversation) textDown(text []byte) bool {
	m, ok := parseMessage(text)
	relay := ok && len(text) <= maxDown
	switch {
	case !relay:
	case m.kind == "mcp":
		c.ask(bytes.Clone(m.payload))
		return true
	case m.kind == "goodbye":
		return m.session != "" && m.session != c.upstreamSession
	case m.kind == "ping":
		c.say([]byte(`{"type":"pong"}`))
		return true
	case m.kind == "pong":
		return true
	case m.kind == "hello", m.kind == "server",
		m.kind == "system" && m.command == commandReboot && !c.server.AllowReboot:
		relay = false
	}
	if !relay || c.device.Send(withSession(text, c.upstreamSession, c.session)) != nil {
		c.relay.stats.notRelayed.Add(1)
		return true
	}
	c.relay.stats.messages.Add(1)
	return true
}

// Receive implements [edge.Conversation].
func (c *conversation) Receive(kind, session string, payload []byte) (ended bool) {
	switch kind {
	case "goodbye":
		if session != "" && session != c.session {
			return false // of an earlier conversation
		}
		c.end(fleet.EndedByDevice)
		return true
	case "ping":
		_ = c.device.Send([]byte(`{"type":"pong"}`)) // lost with the connection
		return false
	case "pong":
		return false
	}
	m, ok := parseMessage(payload)
	if !ok || m.kind == "server" || m.kind == "mcp" || m.kind == "hello" || len(payload) > maxUp {
		c.relay.stats.notRelayed.Add(1)
		return false
	}
	if c.say(bytes.Clone(payload)) {
		c.relay.stats.messages.Add(1)
	}
	return false
}

// say queues a message for the upstream. If the queue is full, the upstream has stopped reading.
func (c *conversation) say(text []byte) bool {
	select {
	case c.texts <- text:
		return true
	case <-c.life.Done():
	default:
		c.end(fleet.EndedSlow)
	}
	return false
}

// heard sends a frame of the device, or queues it if sending would wait. It runs on the goroutine
// that reads the device's audio.
func (c *conversation) heard(frame []byte, timestamp uint32, at time.Time) {
	c.bad = 0
	if c.upstream.writeAudioNow(c.frames, frame, timestamp) {
		c.relay.stats.audioUp.Add(1)
		return
	}
	c.drop(c.frames.push(frame, timestamp, at))
}

// badAudio counts a frame of the device that cannot be relayed. A conversation with no other
// frames ends, because the upstream would wait for speech in vain.
func (c *conversation) badAudio() {
	if c.bad++; c.bad == maxBadAudio {
		c.end(fleet.EndedBadAudio)
	}
}

func (c *conversation) drop(n int) {
	if n > 0 {
		c.late.Add(int64(n))
		c.relay.stats.late.Add(int64(n))
	}
}

// write sends queued messages to the upstream until the conversation ends. Then it closes the
// socket, which ends read.
func (c *conversation) write() {
	select {
	case <-c.ready:
	case <-c.device.Lost:
		c.end(fleet.EndedByDeviceLost)
		return
	case <-c.life.Done():
		return
	}
	defer c.upstream.close()
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	buf := make([]byte, 0, 256)
	for {
		var err error
		select {
		case text := <-c.texts:
			err = c.upstream.writeText(withSession(text, c.session, c.upstreamSession))
		case <-c.frames.wake:
			for ok := true; ok && err == nil; {
				var dropped int
				ok, dropped, err = c.upstream.writeQueued(c.frames, &buf)
				c.drop(dropped)
				if ok {
					c.relay.stats.audioUp.Add(1)
				}
			}
		case <-ping.C:
			err = c.upstream.ping()
		case <-c.device.Lost:
			c.end(fleet.EndedByDeviceLost)
			return
		case <-c.life.Done():
			return
		}
		if err != nil {
			if e, ok := errors.AsType[*upstreamError](err); !ok || e.how != fleet.EndedLost {
				c.end(readEnd(err))
			} // else the reader knows whether the server closed it
			return
		}
	}
}

// finish notifies the device, unless the device ended the conversation, and stores the record.
func (c *conversation) finish() {
	c.path.close()
	if c.upstream != nil {
		c.upstream.close()
	}
	switch c.how {
	case fleet.EndedByDevice, fleet.EndedByNewHello, fleet.EndedByDeviceLost:
	default:
		c.sendOff()
	}
	s := c.summary()
	now := c.relay.o.Now()
	s.End, s.Ended = &now, c.how
	if c.how != fleet.EndedNoLeader { // it has no voice server
		c.save(s)
	}
	c.relay.stats.end(c.how, s.Audio)
}

// sendOff returns the device to idle. A device without a hello waits for one and accepts no other
// answer, so it gets a hello, followed by goodbye.
func (c *conversation) sendOff() {
	var messages [][]byte
	if !c.opened {
		messages = append(messages, c.path.hello(&noHello))
	}
	if c.device.Stream == nil { // on a stream the end of the connection ends the conversation
		messages = append(messages, []byte(`{"type":"goodbye","session_id":"`+c.session+`"}`))
	}
	if c.how.Failed() {
		title, text := c.relay.o.Texts.Ended(c.how)
		alert, _ := json.Marshal(struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Message string `json:"message"`
			Emotion string `json:"emotion"`
		}{"alert", title, text, "neutral"})
		messages = append(messages, alert)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.superseded {
		return // these messages could answer the device's next hello
	}
	c.device.Closed()
	for _, m := range messages {
		_ = c.device.Send(m) // an error means that the connection is lost
	}
	if c.device.Stream != nil {
		c.device.Stream.Close()
	}
}

// summary returns the record of the conversation so far.
func (c *conversation) summary() fleet.Conversation {
	s := fleet.Conversation{ID: c.id, Device: c.device.ID, Upstream: c.server.Name, Begin: c.begin,
		Calls: c.calls.Load(), HelloIn: c.helloIn}
	s.Audio = c.path.counts()
	s.Audio.Sent, s.Audio.Dropped = c.sentOut.Load(), c.late.Load()
	return s
}

func (c *conversation) save(s fleet.Conversation) { c.relay.record.save(s) }
