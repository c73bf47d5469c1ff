package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// A socket is the connection to a program that dialled in: messages are text frames.
type socket struct {
	ws    *websocket.Conn
	limit int               // bytes of a message that is read
	stray func(text string) // receives frames that are no messages
	pace  pace
	every time.Duration // between WebSocket pings

	life context.Context
	end  context.CancelFunc

	silent atomic.Bool // it ended because nothing came from the peer

	mu    sync.Mutex
	timer *time.Timer // sends the next ping; nil after the end

	writing sync.Mutex
}

var (
	_ sdk.Transport  = (*socket)(nil)
	_ sdk.Connection = (*socket)(nil)
)

const (
	// missedPings is how many intervals without a frame end a connection.
	missedPings = 3
	// maxDiscarded is how many bytes of a message are read to find its end. A longer one ends the
	// connection.
	maxDiscarded = 64 << 20
	closeWait    = 500 * time.Millisecond // for the write of a close frame
)

func newSocket(ws *websocket.Conn, limit int, every time.Duration, stray func(string)) *socket {
	s := &socket{ws: ws, limit: limit, stray: stray, pace: newPace(), every: every}
	s.life, s.end = context.WithCancel(context.Background())
	ws.SetPongHandler(func(string) error { return s.control() })
	ws.SetPingHandler(func(data string) error {
		_ = ws.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(closeWait))
		return s.control()
	})
	s.heard()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(every, s.ping)
	return s
}

// ping sends a WebSocket ping. The peer's WebSocket library answers it.
func (s *socket) ping() {
	_ = s.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(writeTimeout))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Reset(s.every)
	}
}

// control handles a ping or a pong.
func (s *socket) control() error {
	s.heard()
	return s.pace.messages.Wait(s.life)
}

// heard extends the time until the peer counts as gone.
func (s *socket) heard() { _ = s.ws.SetReadDeadline(time.Now().Add(missedPings * s.every)) }

// Connect implements [sdk.Transport].
func (s *socket) Connect(context.Context) (sdk.Connection, error) { return s, nil }

// Read implements [sdk.Connection]. It ends when the socket is closed, not with ctx.
func (s *socket) Read(context.Context) (jsonrpc.Message, error) {
	for {
		frame, long, err := s.frame()
		if err != nil {
			s.close(websocket.CloseNormalClosure, "")
			switch {
			case websocket.IsCloseError(err, websocket.CloseNormalClosure, websocket.CloseGoingAway,
				websocket.CloseNoStatusReceived, websocket.CloseAbnormalClosure):
				err = io.EOF // the peer closed it, with or without a close frame
			case errors.Is(err, os.ErrDeadlineExceeded):
				s.silent.Store(true)
			}
			return nil, err
		}
		if m := parseMessage(frame, long, s.stray); m != nil {
			return m, nil
		}
	}
}

// frame reads a message. If it has more than limit bytes, frame returns its two ends and the
// number of bytes left out.
func (s *socket) frame() (data []byte, long int, err error) {
	_, r, err := s.ws.NextReader()
	if err != nil {
		return nil, 0, err
	}
	if err := s.control(); err != nil {
		return nil, 0, err
	}
	paced := pacedReader{s, r}
	if data, err = io.ReadAll(io.LimitReader(paced, int64(s.limit)+1)); err != nil || len(data) <= s.limit {
		return data, 0, err
	}
	size := len(data)
	tail := append([]byte(nil), data[len(data)-keptOfLong:]...)
	data = append([]byte(nil), data[:keptOfLong]...) // frees the rest
	buffer := make([]byte, 16<<10)
	for {
		n, err := paced.Read(buffer)
		size += n
		tail = append(tail, buffer[:n]...)
		tail = append(tail[:0], tail[max(0, len(tail)-keptOfLong):]...)
		switch {
		case err == io.EOF: //nolint:errorlint // of the frame
			return append(data, tail...), size - len(data) - len(tail), nil
		case err != nil:
			return nil, 0, err
		case size > maxDiscarded:
			s.close(websocket.CloseMessageTooBig, "message too big")
			return nil, 0, fmt.Errorf("a message has more than %d bytes", maxDiscarded)
		}
	}
}

// A pacedReader reads a message at the pace of its socket.
type pacedReader struct {
	s *socket
	r io.Reader
}

func (p pacedReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if n > 0 {
		if e := p.s.pace.bytes.WaitN(p.s.life, min(n, p.s.pace.bytes.Burst())); e != nil {
			return n, e
		}
		p.s.heard()
	}
	return n, err
}

// Write implements [sdk.Connection].
func (s *socket) Write(ctx context.Context, m jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.life.Err() != nil {
		return sdk.ErrConnectionClosed
	}
	_ = s.ws.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err := s.ws.WriteMessage(websocket.TextMessage, data); err != nil {
		s.close(websocket.CloseNormalClosure, "")
		return fmt.Errorf("the program does not read its socket: %w", err)
	}
	wrote(ctx)
	return nil
}

// Close implements [sdk.Connection].
func (s *socket) Close() error {
	s.close(websocket.CloseNormalClosure, "")
	return nil
}

// close ends the connection. The peer gets the first reason.
func (s *socket) close(code int, reason string) {
	s.mu.Lock()
	open := s.timer != nil
	if open {
		s.timer.Stop()
		s.timer = nil
	}
	s.mu.Unlock()
	if !open {
		return
	}
	s.end()
	_ = s.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason), time.Now().Add(closeWait))
	_ = s.ws.Close()
}

// SessionID implements [sdk.Connection].
func (s *socket) SessionID() string { return "" }
