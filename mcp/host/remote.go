package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// A remote is how requests of one session with a server over HTTP are sent.
type remote struct {
	next    http.RoundTripper
	headers http.Header
	life    context.Context // ends the requests
	pace    pace
}

// remoteSource returns a source for a server at a URL.
func remoteSource(client *http.Client, url string, headers http.Header) source {
	life, end := context.WithCancel(context.Background())
	of := *client
	of.Transport = &remote{next: client.Transport, headers: headers, life: life, pace: newPace()}
	of.Timeout = 0 // streams stay open
	return source{transport: &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &of, MaxEventSize: maxMessage},
		name: "http", address: url, close: end}
}

// RoundTrip adds the headers, notes when a call was written, and bounds the answer.
func (r *remote) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.life.Err() != nil {
		return nil, sdk.ErrConnectionClosed
	}
	ctx, cancel := context.WithCancel(req.Context())
	stop := context.AfterFunc(r.life, cancel)
	if s, ok := ctx.Value(sendingKey{}).(*sending); ok {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: s.done})
	}
	req = req.Clone(ctx)
	for name, values := range r.headers {
		req.Header[name] = values
	}
	resp, err := r.next.RoundTrip(req)
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	body := &boundedBody{body: resp.Body, left: maxMessage, pace: r.pace, ctx: ctx, done: func() { stop(); cancel() }}
	body.stream = strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	resp.Body = body
	return resp, nil
}

// A boundedBody reads at most [maxMessage] bytes, or a stream at a limited pace.
type boundedBody struct {
	body   io.ReadCloser
	left   int
	stream bool
	pace   pace
	ctx    context.Context
	done   func()
}

var errLongBody = fmt.Errorf("the answer has more than %d bytes", maxMessage)

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if b.stream {
		if n > 0 {
			if e := b.pace.bytes.WaitN(b.ctx, min(n, b.pace.bytes.Burst())); e != nil && err == nil {
				err = e
			}
		}
		return n, err
	}
	if b.left -= n; b.left < 0 {
		return 0, errLongBody
	}
	return n, err
}

func (b *boundedBody) Close() error {
	defer b.done()
	return b.body.Close()
}

// readHeaders reads a file of lines "Name: value".
func readHeaders(path string) (http.Header, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return nil, err
	}
	r := textproto.NewReader(bufio.NewReader(strings.NewReader(strings.TrimSpace(string(text)) + "\r\n\r\n")))
	h, err := r.ReadMIMEHeader()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.New("it must have lines such as \"Authorization: Bearer ...\"")
	}
	return http.Header(h), nil
}
