package edge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/time/rate"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
	"fleetd/mcp"
)

const (
	socketPing    = 20 * time.Second // between pings, which devices answer
	socketGoodbye = time.Second      // to send the close frame: a stuck device accepts none

	// Limits of the queue for a device that reads slowly. Audio that waits longer than lateAudio
	// is dropped.
	maxSocketTexts = 64
	maxSocketAudio = 60
	lateAudio      = 600 * time.Millisecond

	// Limits of what a device may send. A board sends at most 50 frames of audio and some
	// messages a second; a stalled network delivers seconds of it at once.
	textRate, textBurst   = 50, 200
	audioRate, audioBurst = 100, 400
)

var (
	errFlood       = brokenSocket("more messages than a device would send")
	errLongMessage = brokenSocket("a message of more than " + strconv.Itoa(maxPacket) + " bytes")
)

// brokenSocket returns the cause for ending a WebSocket that is used as no device uses it.
func brokenSocket(how string) link.CauseError {
	return link.CauseOf(fleet.CauseSocketMisused, how, "detail", how)
}

// A socket is the WebSocket of a connection. The goroutine of serveSocket reads; a second
// goroutine writes the queued messages in order.
type socket struct {
	c       *connection
	ws      *websocket.Conn
	version atomic.Int32 // of binary messages: 1, 2 or 3

	// These belong to the reader's goroutine.
	message      []byte
	extend       time.Time
	introduced   bool // it has sent hello, or need not
	texts, audio *rate.Limiter

	mu      sync.Mutex
	waiting []outgoing
	waits   [2]int          // queued texts and audio frames
	closing bool            // no more messages are accepted
	last    link.CauseError // of closing: the socket ends for it when the messages are written
	wake    chan struct{}   // has an element while the queue may have messages
}

// An outgoing is a message that waits to be written.
type outgoing struct {
	data  []byte
	audio bool
	at    time.Time
}

func newSocket(c *connection, version string) *socket {
	s := &socket{c: c, introduced: c.dialect.Opening().AtOnce, wake: make(chan struct{}, 1),
		texts: rate.NewLimiter(textRate, textBurst),
		audio: rate.NewLimiter(audioRate, audioBurst)}
	n, _ := strconv.Atoi(version)
	s.setVersion(n)
	return s
}

// attach sets the WebSocket.
func (s *socket) attach(ws *websocket.Conn) {
	s.ws = ws
	ws.SetReadLimit(maxPacket)
	ws.SetPongHandler(func(string) error { return s.alive() })
	answerPing := ws.PingHandler()
	ws.SetPingHandler(func(data string) error {
		_ = s.alive() // the next read finds a closed socket
		return answerPing(data)
	})
}

// setVersion records the version of the device's binary messages. An unknown version means raw
// frames, as for a device that states none.
func (s *socket) setVersion(n int) {
	if n < 1 || n > 3 {
		n = 1
	}
	s.version.Store(int32(n))
}

// read handles the device's messages until the socket ends.
func (s *socket) read() error {
	_ = s.ws.SetReadDeadline(time.Now().Add(s.c.edge.o.SocketHello))
	for {
		kind, r, err := s.ws.NextReader()
		if err == nil {
			buf := bytes.NewBuffer(s.message[:0])
			_, err = buf.ReadFrom(r)
			s.message = buf.Bytes()
		}
		switch {
		case errors.Is(err, websocket.ErrReadLimit):
			return s.broken(errLongMessage)
		case err != nil && !s.introduced && isTimeout(err):
			return s.broken(brokenSocket("no hello within " + s.c.edge.o.SocketHello.String()))
		case err != nil:
			return err
		}
		if err = s.alive(); err == nil {
			err = s.handle(kind, s.message)
		}
		if err != nil {
			return err
		}
		if cap(s.message) > 16<<10 {
			s.message = nil // do not retain one large result for the length of a conversation
		}
	}
}

// broken ends the connection of a device that behaves as no device does.
func (s *socket) broken(cause link.CauseError) error {
	c := s.c
	c.edge.stats.protocolErrors.Add(1)
	if ok, skipped := c.edge.refusals.allow(c.clientID+cause.Text, time.Now()); ok {
		c.edge.log.Warn("WebSocket ended", "device", c.device, "remote", c.remoteAddr, "reason", cause.Text,
			"not_logged", skipped)
	}
	c.stop(cause)
	return cause
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// alive records a frame of any kind, and extends the deadline for the next.
func (s *socket) alive() error {
	now := time.Now()
	s.c.seen(now)
	if !s.introduced || now.Before(s.extend) {
		return nil
	}
	s.extend = now.Add(time.Second)
	return s.ws.SetReadDeadline(now.Add(s.c.edge.o.SocketSilence))
}

func (s *socket) handle(kind int, message []byte) error {
	now := time.Now()
	if kind == websocket.BinaryMessage {
		frame, timestamp, isText := parseAudio(int(s.version.Load()), message)
		if !isText {
			if s.c.conversation != nil && len(frame) > 0 && s.audio.AllowN(now, 1) {
				s.c.conversation.Hear(frame, timestamp)
			} else {
				s.c.edge.stats.audioDropped.Add(1)
			}
			return nil
		}
		message = frame
	}
	if !s.texts.AllowN(now, 1) {
		return s.broken(errFlood)
	}
	s.c.receive("", message, nil)
	return nil
}

func (s *socket) greeted(audioVersion int) {
	if audioVersion != 0 {
		s.setVersion(audioVersion)
	}
	if !s.introduced {
		s.introduced = true
		s.extend = time.Time{}
		_ = s.alive()
	}
}

// Headers of binary messages (protocol 5): none for raw frames, else 16 or 4 bytes.
const (
	header2, header3 = 16, 4
	typeAudio        = 0
	typeText         = 1
)

// parseAudio returns the frame in a binary message, empty if it contains none, with its time
// stamp in milliseconds. isText means that the frame is a JSON message.
func parseAudio(version int, m []byte) (frame []byte, timestamp uint32, isText bool) {
	var kind, size, header int
	switch version {
	case 2:
		if len(m) < header2 || binary.BigEndian.Uint16(m) != 2 {
			return nil, 0, false
		}
		kind, size, header = int(binary.BigEndian.Uint16(m[2:])), int(binary.BigEndian.Uint32(m[12:])), header2
		timestamp = binary.BigEndian.Uint32(m[8:])
	case 3:
		if len(m) < header3 {
			return nil, 0, false
		}
		kind, size, header = int(m[0]), int(binary.BigEndian.Uint16(m[2:])), header3
	default:
		return m, 0, false
	}
	if size != len(m)-header || kind > typeText {
		return nil, 0, false
	}
	return m[header:], timestamp, kind == typeText
}

// appendAudio appends a frame as a binary message. The length in the header must be right: a
// device does not check it.
func appendAudio(b []byte, version int, frame []byte, timestamp uint32) []byte {
	switch version {
	case 2:
		b = binary.BigEndian.AppendUint16(b, 2)
		b = binary.BigEndian.AppendUint16(b, typeAudio)
		b = binary.BigEndian.AppendUint32(b, 0)
		b = binary.BigEndian.AppendUint32(b, timestamp)
		b = binary.BigEndian.AppendUint32(b, uint32(len(frame)))
	case 3:
		b = append(b, typeAudio, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(len(frame)))
	}
	return append(b, frame...)
}

var _ Stream = (*socket)(nil)

// SendAudio implements [Stream].
func (s *socket) SendAudio(frame []byte, timestamp uint32) bool {
	if len(frame) > 0xffff {
		return false
	}
	m := appendAudio(make([]byte, 0, header2+len(frame)), int(s.version.Load()), frame, timestamp)
	return s.queue(m, true) == nil
}

// Close implements [Stream].
func (s *socket) Close() {
	s.mu.Lock()
	s.endQueue(link.ErrConversationOver)
	s.mu.Unlock()
	s.stir()
}

func (s *socket) leave(why link.CauseError, busy func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if busy() {
		return false
	}
	s.c.asked.Store(true)
	s.endQueue(why)
	s.stir()
	return true
}

// endQueue permits no further message. The caller holds s.mu.
func (s *socket) endQueue(why link.CauseError) {
	if !s.closing {
		s.closing, s.last = true, why
	}
}

func (s *socket) stream() Stream         { return s }
func (s *socket) Finish()                { s.Close() }
func (s *socket) Stop(cause fleet.Cause) { s.c.stopped(cause) }

// Begin returns an empty frame, since each message is one frame.
func (s *socket) Begin(_ dialect.Address, size int) []byte { return make([]byte, 0, size) }

// Post implements [link.Carrier].
func (s *socket) Post(message []byte) error {
	s.c.posted.Store(time.Now().UnixNano())
	return s.Notify(message)
}

// Notify implements [link.Carrier].
func (s *socket) Notify(message []byte) error { return s.queue(message, false) }

// queue queues a message, or returns an error if it cannot. It does not wait.
func (s *socket) queue(m []byte, audio bool) error {
	kind, limit := 0, maxSocketTexts
	if audio {
		kind, limit = 1, maxSocketAudio
	}
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return fmt.Errorf("%w: %w", mcp.ErrNotSent, s.last)
	}
	if s.waits[kind] >= limit {
		s.mu.Unlock()
		if !audio {
			s.c.edge.stats.outboxFull.Add(1)
		}
		return fmt.Errorf("%w: %w", mcp.ErrNotSent, errOutboxFull)
	}
	s.waits[kind]++
	s.waiting = append(s.waiting, outgoing{m, audio, time.Now()})
	s.mu.Unlock()
	s.stir()
	return nil
}

func (s *socket) stir() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// next returns the next message to write; ok is false if the queue is empty. over means
// that no message will follow.
func (s *socket) next(now time.Time) (m outgoing, ok, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.waiting) > 0 {
		m = s.waiting[0]
		s.waiting[0] = outgoing{}
		s.waiting = s.waiting[1:]
		if m.audio {
			s.waits[1]--
		} else {
			s.waits[0]--
		}
		if !m.audio || now.Sub(m.at) <= lateAudio {
			return m, true, false
		}
		s.c.edge.stats.audioDropped.Add(1)
	}
	s.waiting = nil
	return outgoing{}, false, s.closing
}

// write writes the queued messages until the connection ends or must be closed.
func (s *socket) write() {
	ping := time.NewTicker(socketPing)
	defer ping.Stop()
	for {
		var err error
		select {
		case <-s.wake:
			for err == nil {
				m, ok, over := s.next(time.Now())
				if over {
					s.c.stop(s.last)
					return
				}
				if !ok {
					break
				}
				err = s.writeNow(m)
			}
		case <-ping.C:
			err = s.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(s.c.edge.o.WriteTimeout))
		case <-s.c.lost:
			return
		}
		switch {
		case err == nil:
		case isTimeout(err):
			s.c.stop(errNotTaken)
		default:
			_ = s.ws.NetConn().Close() // the reader knows better why the connection ended
			return
		}
	}
}

func (s *socket) writeNow(m outgoing) error {
	kind := websocket.TextMessage
	if m.audio {
		kind = websocket.BinaryMessage
	} else {
		s.c.edge.stats.publishesOut.Add(1)
	}
	_ = s.ws.SetWriteDeadline(time.Now().Add(s.c.edge.o.WriteTimeout))
	return s.ws.WriteMessage(kind, m.data)
}

// farewell does nothing: shut sends the reason.
func (s *socket) farewell(link.CauseError, time.Duration) {}

func (s *socket) silence(err error) (link.CauseError, bool) {
	return link.CauseOf(fleet.CauseNoPong, "no answer to pings of its WebSocket"), isTimeout(err)
}

// shut closes the socket, and sends the reason if the device reads. It does not wait.
func (s *socket) shut(cause error) {
	s.mu.Lock()
	s.waiting = nil
	if !s.closing {
		s.closing, s.last = true, link.ErrConversationOver
	}
	s.mu.Unlock()
	code := websocket.CloseNormalClosure
	if ours, ok := errors.AsType[link.CauseError](cause); ok {
		switch ours.Reason.Code {
		case fleet.CauseStopping:
			code = websocket.CloseGoingAway
		case fleet.CauseEdgeDrained:
			code = websocket.CloseServiceRestart
		case fleet.CauseSocketMisused:
			code = websocket.ClosePolicyViolation
		}
	}
	s.c.edge.sockets.serving.Go(func() {
		_ = s.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""),
			time.Now().Add(socketGoodbye))
		_ = s.ws.Close()
	})
}
