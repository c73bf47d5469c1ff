package voice

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"fleetd/fleet"
	"fleetd/fleet/outbound"
)

// gorilla/websocket is the client: it is already part of the program, as mochi's dependency, a
// frame is written from the caller's bytes under a deadline and read into the caller's buffer,
// and closing the connection stops the reader. coder/websocket needs a context and two
// allocations for each frame.

// An Upstream is a voice server.
type Upstream struct {
	// ID identifies the upstream; Changed is when it was last changed. Failures before that time
	// no longer count.
	ID      uuid.UUID
	Changed time.Time
	// Name identifies the upstream in records. Default: the host of URL.
	Name string
	// URL has the scheme ws or wss. If it ends with ?from=mqtt_gateway, audio has the 16-byte
	// header of the gateway, with time stamps.
	URL string
	// Secret is shared by the server and the makers of tokens; "" for none.
	Secret string
	// Token is used for all devices instead of tokens made with Secret.
	Token string
	// NoTools hides the tools of devices from the upstream's model, which may call none.
	NoTools bool
	// AllowReboot relays the upstream's system message that restarts a device.
	AllowReboot bool

	// Find returns the address and token of a device if the upstream is reached through its OTA
	// address, which is then URL. refused is a token that did not work. Its errors are made by [Failed].
	// findNew does the same without storing the result.
	Find    func(ctx context.Context, p Poll, refused string) (url, token string, err error)
	findNew func(ctx context.Context, p Poll) (url, token string, err error)
	// Guard opens the connections. Default: one without options.
	Guard *outbound.Guard

	// handedOutBy is set for an address that an upstream handed out. It is the host and port of
	// that upstream, which an admin wrote.
	handedOutBy string
}

// at returns the upstream with an address and token that it handed out.
func (u *Upstream) at(url, token string) *Upstream {
	found := *u
	found.URL, found.Token, found.Secret, found.handedOutBy, found.Find = url, token, "", u.Written(), nil
	return &found
}

// For returns the upstream with a token for one device in place of the secret.
func (u Upstream) For(clientID string, id fleet.DeviceID) Upstream {
	if u.Token == "" && u.Secret != "" {
		u.Token = u.token(clientID, nameOf(id), time.Now())
	}
	u.Secret = ""
	return u
}

// nameOf returns the id of a device as upstreams know it.
func nameOf(id fleet.DeviceID) string { return cmp.Or(id.MAC(), string(id)) }

// Written returns the address, host:port, that an admin wrote for this upstream.
func (u *Upstream) Written() string { return cmp.Or(u.handedOutBy, outbound.HostPort(u.URL)) }

// Check returns an error if the address is invalid, and sets the default name.
func (u *Upstream) Check() error {
	parsed, err := url.Parse(u.URL)
	if err != nil || parsed.Scheme != "ws" && parsed.Scheme != "wss" || parsed.Hostname() == "" || parsed.User != nil ||
		parsed.Fragment != "" {
		return fmt.Errorf("%q is not a voice server address; use ws://host:8000/xiaozhi/v1/ or wss://", u.URL)
	}
	if u.Name == "" {
		u.Name = parsed.Hostname()
	}
	return nil
}

// framed reports whether audio has the gateway's header.
func (u *Upstream) framed() bool { return strings.HasSuffix(u.URL, "?from=mqtt_gateway") }

// token returns a token that the server accepts for 30 days.
func (u *Upstream) token(clientID, deviceID string, at time.Time) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(u.Secret))
	_, _ = io.WriteString(mac, clientID+"|"+deviceID+"|"+seconds)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)) + "." + seconds
}

const (
	maxMessage    = 256 << 10        // from the upstream; longer messages end the conversation
	maxHandshake  = 64 << 10         // bytes of the response to the upgrade, certificates included
	writeTimeout  = 5 * time.Second  // until the connection to an upstream that accepts no bytes is ended
	pingEvery     = 20 * time.Second // to detect a server that vanished
	silenceLimit  = 65 * time.Second // without a message or an answer to a ping
	gatewayHeader = 16
)

// An upstreamError is the cause with which a conversation ends because of the upstream.
type upstreamError struct {
	how   fleet.ConversationEnd
	cause error
}

func (e *upstreamError) Error() string { return string(e.how) + ": " + e.cause.Error() }
func (e *upstreamError) Unwrap() error { return e.cause }

func failed(how fleet.ConversationEnd, cause error) error { return &upstreamError{how, cause} }

// Failed returns an error of [Upstream.Find]: the conversation ends with how.
func Failed(how fleet.ConversationEnd, cause error) error { return failed(how, cause) }

// EndOf returns how a conversation ends after an error of [Upstream.Find].
func EndOf(err error) fleet.ConversationEnd { return readEnd(err) }

// An upstreamConn is the socket of one conversation. One goroutine reads. One writes, except
// frames of audio that the socket accepts at once.
type upstreamConn struct {
	ws      *websocket.Conn
	direct  *directConn // nil with TLS
	writing sync.Mutex  // held for each message: a frame may not be sent between the parts of a message
	framed  bool
	message []byte    // the latest message read
	extend  time.Time // when to set the read deadline again
	header  [gatewayHeader]byte
	sent    uint32
}

var writeBuffers sync.Pool // shared by all connections; a connection needs one only while it writes

// dial opens the socket. The error is an upstreamError.
func (u *Upstream) dial(ctx context.Context, clientID, deviceID, remoteAddr string) (*upstreamConn, error) {
	head := http.Header{"Device-Id": {deviceID}, "Client-Id": {clientID}, "Protocol-Version": {"1"}}
	switch {
	case u.Token != "":
		head.Set("Authorization", "Bearer "+u.Token)
	case u.Secret != "":
		head.Set("Authorization", "Bearer "+u.token(clientID, deviceID, time.Now()))
	}
	if remoteAddr != "" {
		head.Set("X-Forwarded-For", remoteAddr)
	}
	var bounded *boundedConn
	var direct *directConn
	d := websocket.Dialer{ReadBufferSize: 2048, WriteBufferSize: 2048, WriteBufferPool: &writeBuffers,
		NetDialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := u.Guard.DialFrom(u.Written())(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			direct = newDirectConn(conn)
			bounded = &boundedConn{Conn: direct, left: maxHandshake}
			return bounded, nil
		}}
	ws, answer, err := d.DialContext(ctx, u.URL, head)
	if err != nil {
		return nil, failed(dialEnd(answer, err), err)
	}
	bounded.left = -1
	ws.SetReadLimit(maxMessage)
	c := &upstreamConn{ws: ws, framed: u.framed()}
	if ws.NetConn() == net.Conn(bounded) {
		c.direct = direct
	}
	ws.SetPongHandler(func(string) error { return c.alive() })
	return c, nil
}

func dialEnd(answer *http.Response, err error) fleet.ConversationEnd {
	switch {
	case errors.Is(err, errLongHandshake):
		return fleet.EndedNoWebSocket
	case answer == nil:
		return fleet.EndedUnreachable
	case answer.StatusCode == http.StatusUnauthorized, answer.StatusCode == http.StatusForbidden:
		return fleet.EndedRefused
	}
	return fleet.EndedNoWebSocket // an HTML page, for example
}

// A boundedConn limits the length of the response to the upgrade.
type boundedConn struct {
	net.Conn
	left int // bytes; negative: no limit
}

var errLongHandshake = errors.New("the answer to the upgrade is too long")

func (c *boundedConn) Read(p []byte) (int, error) {
	if c.left < 0 {
		return c.Conn.Read(p)
	}
	if c.left == 0 {
		return 0, errLongHandshake
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// A serverHello is the upstream's answer to hello.
type serverHello struct {
	session string
	audio   audioParams

	more, audioMore []byte // other members, of the hello and of its audio_params
}

// noHello is sent to a device if the upstream sent no hello.
var noHello = serverHello{audio: audioParams{"opus", 24000, 1, 60}}

func (h *serverHello) audioParams() json.RawMessage {
	params, _ := json.Marshal(h.audio) // numbers and a string
	return withMembers(params, h.audioMore)
}

type audioParams struct {
	Format        string `json:"format"`
	SampleRate    int    `json:"sample_rate"`
	Channels      int    `json:"channels"`
	FrameDuration int    `json:"frame_duration"`
}

var errNotJSON = errors.New("the server answered with text that is not JSON, as it does to a token that it refuses")

// hello sends fleetd's hello and returns the server's. Messages that arrive before it are passed
// to early: a server may start MCP at once.
func (c *upstreamConn) hello(text []byte, until time.Time, early func([]byte)) (serverHello, error) {
	if err := c.writeText(text); err != nil {
		return serverHello{}, err
	}
	for {
		_ = c.ws.SetReadDeadline(until)
		kind, message, err := c.read()
		if err != nil {
			if errors.Is(err, errTooLarge) {
				return serverHello{}, err
			}
			return serverHello{}, failed(fleet.EndedNoHello, err)
		}
		if kind != websocket.TextMessage {
			continue
		}
		if !json.Valid(message) {
			return serverHello{}, failed(fleet.EndedRefused, errNotJSON)
		}
		m, ok := parseMessage(message)
		if !ok || m.kind != "hello" {
			early(message)
			continue
		}
		h, err := parseServerHello(message)
		if err != nil {
			return serverHello{}, failed(fleet.EndedBadHello, err)
		}
		return h, c.alive()
	}
}

func parseServerHello(message []byte) (serverHello, error) {
	var h struct {
		SessionID string          `json:"session_id"`
		Audio     json.RawMessage `json:"audio_params"`
	}
	if err := json.Unmarshal(message, &h); err != nil {
		return serverHello{}, err
	}
	a := noHello.audio
	if h.Audio != nil {
		if err := json.Unmarshal(h.Audio, &a); err != nil {
			return serverHello{}, err
		}
	}
	if a.SampleRate < 8000 || a.SampleRate > 48000 || a.Channels < 1 || a.Channels > 2 || a.FrameDuration < 1 ||
		a.FrameDuration > 120 || len(a.Format) > 16 || len(h.SessionID) > 128 {
		return serverHello{}, fmt.Errorf("unsupported audio_params: %+v", a)
	}
	return serverHello{h.SessionID, a,
		otherMembers(message, "type", "version", "transport", "session_id", "audio_params", "udp"),
		otherMembers(h.Audio, "format", "sample_rate", "channels", "frame_duration")}, nil
}

var errTooLarge = errors.New("message too large")

// read returns the next message, valid until the next call.
func (c *upstreamConn) read() (kind int, message []byte, err error) {
	kind, r, err := c.ws.NextReader()
	if err == nil {
		buf := bytes.NewBuffer(c.message[:0])
		_, err = buf.ReadFrom(r)
		c.message = buf.Bytes()
	}
	if errors.Is(err, websocket.ErrReadLimit) {
		return 0, nil, failed(fleet.EndedTooLarge, errors.Join(errTooLarge, err))
	}
	return kind, c.message, err
}

// alive extends the deadline for the next message.
func (c *upstreamConn) alive() error {
	if now := time.Now(); now.After(c.extend) {
		c.extend = now.Add(time.Second)
		return c.ws.SetReadDeadline(now.Add(silenceLimit))
	}
	return nil
}

// readEnd returns how a conversation ends after an error of read.
func readEnd(err error) fleet.ConversationEnd {
	if e, ok := errors.AsType[*upstreamError](err); ok {
		return e.how
	}
	if e, ok := errors.AsType[*websocket.CloseError](err); ok && e.Code != websocket.CloseAbnormalClosure {
		return fleet.EndedByUpstream
	}
	return fleet.EndedLost
}

func (c *upstreamConn) writeText(text []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.ws.SetWriteDeadline(time.Now().Add(writeTimeout))
	return writeError(c.ws.WriteMessage(websocket.TextMessage, text))
}

// writeAudio sends a frame, with the gateway's header if the server requires it. The caller holds
// writing.
func (c *upstreamConn) writeAudio(frame []byte, timestamp uint32) error {
	_ = c.ws.SetWriteDeadline(time.Now().Add(writeTimeout))
	if !c.framed {
		return writeError(c.ws.WriteMessage(websocket.BinaryMessage, frame))
	}
	w, err := c.ws.NextWriter(websocket.BinaryMessage)
	if err == nil {
		_, err = w.Write(c.audioHeader(frame, timestamp))
	}
	if err == nil {
		_, err = w.Write(frame)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		c.sent++
	}
	return writeError(err)
}

// audioHeader returns the gateway's header of the next frame, or nil if the server requires none.
// The caller holds writing.
func (c *upstreamConn) audioHeader(frame []byte, timestamp uint32) []byte {
	if !c.framed {
		return nil
	}
	c.header[0] = 1
	binary.BigEndian.PutUint16(c.header[2:], uint16(len(frame)))
	binary.BigEndian.PutUint32(c.header[4:], c.sent+1)
	binary.BigEndian.PutUint32(c.header[8:], timestamp)
	binary.BigEndian.PutUint32(c.header[12:], uint32(len(frame)))
	return c.header[:]
}

// writeAudioNow sends a frame if that does not wait and the queue is empty. It runs on the
// goroutine that reads the device's audio.
func (c *upstreamConn) writeAudioNow(q *queue, frame []byte, timestamp uint32) bool {
	if c.direct == nil || !c.writing.TryLock() {
		return false
	}
	defer c.writing.Unlock()
	if !q.empty() {
		return false
	}
	sent, whole := c.direct.writeBinary(c.audioHeader(frame, timestamp), frame)
	if sent {
		c.sent++
	}
	if sent && !whole {
		q.notify()
	}
	return sent
}

// writeQueued sends the oldest frame of the queue. It reports false if the queue
// is empty.
func (c *upstreamConn) writeQueued(q *queue, buf *[]byte) (ok bool, dropped int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	frame, timestamp, ok, dropped := q.pop((*buf)[:0], time.Now())
	if *buf = frame; ok {
		return true, dropped, c.writeAudio(frame, timestamp)
	}
	if c.direct != nil {
		_ = c.ws.NetConn().SetWriteDeadline(time.Now().Add(writeTimeout))
		err = writeError(c.direct.Flush())
	}
	return false, dropped, err
}

func writeError(err error) error {
	if err == nil {
		return nil
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return failed(fleet.EndedSlow, err)
	}
	return failed(fleet.EndedLost, err)
}

// audio returns the frame in a binary message, and its time stamp if the
// message has one.
func (c *upstreamConn) audio(message []byte) (frame []byte, timestamp uint32, ok bool) {
	if !c.framed {
		return message, 0, len(message) > 0
	}
	if len(message) <= gatewayHeader || message[0] != 1 {
		return nil, 0, false
	}
	return message[gatewayHeader:], binary.BigEndian.Uint32(message[8:]), true
}

func (c *upstreamConn) ping() error {
	return writeError(c.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(writeTimeout)))
}

// close sends a close frame if the server reads, and closes the socket. Any goroutine may call
// it.
func (c *upstreamConn) close() {
	_ = c.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""),
		time.Now().Add(100*time.Millisecond))
	_ = c.ws.Close()
}
