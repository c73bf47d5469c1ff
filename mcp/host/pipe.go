package host

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"
)

// Limits of what a server may send.
const (
	maxMessage     = 4 << 20 // bytes of one message
	keptOfLong     = 4 << 10 // bytes at each end of a longer one, which are searched for its id
	bytesPerSecond = 64 << 20
	messagesPerSec = 2000
	writeTimeout   = 10 * time.Second // for a program to read a message
	maxOutputText  = 1 << 10
)

// A pace slows down the reading from a server that floods: its own writes then wait.
type pace struct{ bytes, messages *rate.Limiter }

func newPace() pace {
	return pace{rate.NewLimiter(bytesPerSecond, 4*maxMessage), rate.NewLimiter(messagesPerSec, 2*messagesPerSec)}
}

func (p pace) wait(ctx context.Context, size int) error {
	if err := p.bytes.WaitN(ctx, min(size, p.bytes.Burst())); err != nil {
		return err
	}
	return p.messages.Wait(ctx)
}

// A pipe is the connection to a program: messages are lines of its standard input and output.
type pipe struct {
	in    io.WriteCloser
	out   io.ReadCloser
	stray func(text string) // receives lines that are no messages
	pace  pace
	reads chan jsonrpc.Message
	got   atomic.Int64            // bytes
	life  context.Context         // its cause says why the connection ended
	end   context.CancelCauseFunc // the first one counts

	writing sync.Mutex
}

var _ sdk.Connection = (*pipe)(nil)

func newPipe(in io.WriteCloser, out io.ReadCloser, stray func(string)) *pipe {
	p := &pipe{in: in, out: out, stray: stray, pace: newPace(), reads: make(chan jsonrpc.Message, 16)}
	p.life, p.end = context.WithCancelCause(context.Background())
	go p.read()
	return p
}

// Connect implements [sdk.Transport].
func (p *pipe) Connect(context.Context) (sdk.Connection, error) { return p, nil }

func (p *pipe) read() {
	r := bufio.NewReaderSize(&counted{p.out, &p.got}, 64<<10)
	for {
		line, long, err := readLine(r)
		if len(line) > 0 || long > 0 {
			if err := p.pace.wait(p.life, len(line)+long); err != nil {
				p.end(err)
				return
			}
			if m := parseMessage(line, long, p.stray); m != nil {
				select {
				case p.reads <- m:
				case <-p.life.Done():
					return
				}
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				err = errors.New(err.Error()) // os.File changes its error afterwards
			}
			p.end(err)
			return
		}
	}
}

// A counted reader counts the bytes that arrive.
type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// readLine reads a line. If it has more than [maxMessage] bytes, readLine returns its two ends
// and the number of bytes left out.
func readLine(r *bufio.Reader) (line []byte, long int, err error) {
	for {
		var part []byte
		part, err = r.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxMessage {
			const keep = 2 * keptOfLong
			if long == 0 {
				long = len(line) - keep
				line = append(line[:keptOfLong:keptOfLong], line[len(line)-keptOfLong:]...)
			}
		}
		if long > 0 && len(line) > 2*keptOfLong {
			long += len(line) - 2*keptOfLong
			line = append(line[:keptOfLong], line[len(line)-keptOfLong:]...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, long, err
		}
	}
}

// parseMessage returns the message in a line or a frame, or nil without one. An answer that is too
// long becomes an error, so that its call ends and others go on. stray receives the rest.
func parseMessage(line []byte, long int, stray func(text string)) jsonrpc.Message {
	line = bytes.TrimSpace(line)
	if long > 0 {
		size := len(line) + long
		stray(fmt.Sprintf("a message of %d bytes was dropped; at most %d are read", size, maxMessage))
		if id, ok := idOf(line); ok {
			return &jsonrpc.Response{ID: id, Error: &jsonrpc.Error{Code: jsonrpc.CodeInternalError,
				Message: fmt.Sprintf("the answer has %d bytes; fleetd reads at most %d", size, maxMessage)}}
		}
		return nil
	}
	if len(line) == 0 {
		return nil
	}
	m, err := jsonrpc.DecodeMessage(line)
	if line[0] != '{' || err != nil {
		stray(string(line[:min(len(line), maxOutputText)]))
		return nil
	}
	return m
}

// idOf finds the id of an answer in its two ends.
func idOf(ends []byte) (jsonrpc.ID, bool) {
	for _, end := range [][]byte{ends[:min(len(ends), keptOfLong)], ends[max(0, len(ends)-keptOfLong):]} {
		for rest := end; ; {
			_, after, found := bytes.Cut(rest, []byte(`"id"`))
			if !found {
				break
			}
			rest = after
			value, isMember := bytes.CutPrefix(bytes.TrimLeft(after, " \t"), []byte(":"))
			if !isMember {
				continue
			}
			var n int64
			if _, err := fmt.Sscan(string(value[:min(len(value), 20)]), &n); err == nil {
				if id, err := jsonrpc.MakeID(float64(n)); err == nil {
					return id, true
				}
			}
		}
	}
	return jsonrpc.ID{}, false
}

// Read implements [sdk.Connection].
func (p *pipe) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-p.reads:
		return m, nil
	default:
	}
	select {
	case m := <-p.reads:
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.life.Done():
		return nil, context.Cause(p.life)
	}
}

// Write implements [sdk.Connection].
func (p *pipe) Write(ctx context.Context, m jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if p.life.Err() != nil {
		return sdk.ErrConnectionClosed
	}
	if d, ok := p.in.(interface{ SetWriteDeadline(time.Time) error }); ok {
		_ = d.SetWriteDeadline(time.Now().Add(writeTimeout))
	}
	if _, err := p.in.Write(append(data, '\n')); err != nil {
		_ = p.Close() // half a message may have been written
		return fmt.Errorf("the program does not read its standard input: %w", err)
	}
	wrote(ctx)
	return nil
}

// Close implements [sdk.Connection].
func (p *pipe) Close() error {
	p.end(io.EOF)
	_ = p.in.Close()
	return p.out.Close()
}

// SessionID implements [sdk.Connection].
func (p *pipe) SessionID() string { return "" }

// wrote notes that the message of the call in ctx was written.
func wrote(ctx context.Context) {
	if s, ok := ctx.Value(sendingKey{}).(*sending); ok {
		s.done()
	}
}
