package bridge

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The headers of Streamable HTTP.
const (
	versionHeader = "Mcp-Protocol-Version"
	methodHeader  = "Mcp-Method"
	sessionHeader = "Mcp-Session-Id"
)

// firstWithoutStreams is the first version in which GET opens no stream, and headers of
// requests carry their version and method.
const firstWithoutStreams = "2026-07-28"

// A delivery is the result of one HTTP request.
type delivery struct {
	method   string
	status   int  // 0 without an answer
	undialed bool // no connection was made, so nothing was sent
	cause    error
}

type deliveryKey struct{}

// transient reports whether the link is still usable after the failure.
func (d delivery) transient() bool {
	return d.undialed || d.status == http.StatusTooManyRequests || d.status >= http.StatusInternalServerError
}

// An undelivered error means that a message had no effect, unless its delivery has neither
// a status nor is undialed.
type undelivered struct {
	error
	delivery
}

func (u undelivered) Unwrap() error { return u.error }

// An mcpDoor sends the bridge's requests. It adds the token, and the protocol version if
// the transport does not, and records the results.
type mcpDoor struct {
	bridge *mcpBridge
	token  string
}

func (d *mcpDoor) RoundTrip(r *http.Request) (*http.Response, error) {
	result, _ := r.Context().Value(deliveryKey{}).(*delivery)
	if result == nil {
		result = new(delivery)
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+d.token)
	if version := d.bridge.version.Load(); version != nil && r.Header.Get(versionHeader) == "" &&
		result.method != "initialize" {
		r.Header.Set(versionHeader, *version)
		if *version >= firstWithoutStreams && result.method != "" {
			r.Header.Set(methodHeader, result.method)
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		var op *net.OpError
		result.undialed, result.cause = errors.As(err, &op) && op.Op == "dial", err
		return nil, err
	}
	result.status = resp.StatusCode
	return resp, nil
}

// maxEvent bounds one event of a stream.
const maxEvent = mcp.DefaultMaxEventSize

// follow passes to the client the messages that the server sends without a request, in the
// stream that older versions of the protocol use for them. The SDK's transport opens that
// stream only for its own clients.
func (b *mcpBridge) follow(l *mcpLink) {
	if *b.version.Load() >= firstWithoutStreams {
		return
	}
	last, missed := "", l.quiet.Load() != nil // true for a link that replaces a lost one
	for pause := streamPause; l.ctx.Err() == nil; pause = min(2*pause, maxStreamPause) {
		begin := time.Now()
		again, err := b.readStream(l, &last, &missed)
		if !again || l.ctx.Err() != nil {
			return
		}
		if err != nil {
			b.log.Debug("stream of notifications ended", "err", err)
		}
		if time.Since(begin) > maxStreamPause {
			pause = streamPause
		}
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
		}
	}
}

// readStream reads one stream to its end. last is the id of the latest event; missed
// reports that there was no stream for some time before, in which the tools may have
// changed.
func (b *mcpBridge) readStream(l *mcpLink, last *string, missed *bool) (again bool, err error) {
	r, err := http.NewRequestWithContext(l.ctx, http.MethodGet, b.endpoint, nil)
	if err != nil {
		return false, err
	}
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set(sessionHeader, l.SessionID())
	if *last != "" {
		r.Header.Set("Last-Event-ID", *last)
	}
	resp, err := b.client.Do(r)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound: // the session has ended; the next message begins another
		b.drop(l)
		return false, nil
	case resp.StatusCode >= http.StatusInternalServerError:
		return true, fmt.Errorf("answered %s", resp.Status)
	case resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream"):
		return false, nil // the server has no such stream
	}
	if *missed && l.lists {
		b.say(&jsonrpc.Request{Method: "notifications/tools/list_changed"})
	}
	*missed = true
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEvent)
	var data strings.Builder
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			*last = value
		case "data":
			if data.Len()+len(value) > maxEvent {
				return false, errors.New("an event is too large")
			}
			if data.Len() > 0 {
				data.WriteByte('\n')
			}
			data.WriteString(value)
		case "": // the event is complete
			if data.Len() == 0 {
				continue
			}
			msg, err := jsonrpc.DecodeMessage([]byte(data.String()))
			if data.Reset(); err != nil {
				return true, err
			}
			b.say(msg)
		}
	}
	if err := lines.Err(); err != nil {
		return true, err
	}
	return true, io.EOF
}
