package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
)

// An httpClient is one keep-alive connection of HTTP/1.1 with minimal parsing. A client
// of package net/http needs more processor time per exchange than a separate program, on
// cores that fleetd shares.
type httpClient struct {
	addr string
	conn net.Conn // nil before the first request, and after a failed one
	r    *bufio.Reader
	buf  []byte
}

// do sends a request of [httpRequest] and returns the answer's status and body,
// which is valid until the next request.
func (c *httpClient) do(request []byte) (status int, body []byte, err error) {
	if c.conn == nil {
		if c.conn, err = net.Dial("tcp", c.addr); err != nil {
			c.conn = nil
			return 0, nil, err
		}
		c.r = bufio.NewReaderSize(c.conn, 4<<10)
	}
	if _, err = c.conn.Write(request); err == nil {
		status, c.buf, err = readResponse(c.r, c.buf[:0])
	}
	if err != nil {
		c.close()
	}
	return status, c.buf, err
}

func (c *httpClient) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// httpRequest returns the bytes of a request. Headers have no line ends.
func httpRequest(method, host, path, body string, headers ...string) []byte {
	head := []string{method + " " + path + " HTTP/1.1", "Host: " + host, "Content-Type: application/json",
		"Content-Length: " + strconv.Itoa(len(body))}
	return []byte(strings.Join(append(head, headers...), "\r\n") + "\r\n\r\n" + body)
}

// maxResponse bounds the body of an answer, in bytes.
const maxResponse = 1 << 20

// readResponse reads one response and appends its body to buf. It does not support bodies
// that end with the connection, which keep-alive never has.
func readResponse(r *bufio.Reader, buf []byte) (status int, body []byte, err error) {
	line, err := readLine(r)
	if err != nil {
		return 0, buf, err
	}
	version, rest, _ := bytes.Cut(line, []byte(" "))
	code, _, _ := bytes.Cut(rest, []byte(" "))
	if status, err = strconv.Atoi(string(code)); err != nil || !bytes.HasPrefix(version, []byte("HTTP/1.")) {
		return 0, buf, fmt.Errorf("%.60q is not a status line of HTTP/1.1", line)
	}
	length, chunked := -1, false
	for {
		if line, err = readLine(r); err != nil {
			return status, buf, err
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
				return status, buf, fmt.Errorf("%.60q is not a length", value)
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			chunked = bytes.EqualFold(value, []byte("chunked"))
		}
	}
	switch {
	case chunked:
		body, err = readChunks(r, buf)
	case status == http.StatusNoContent || status == http.StatusNotModified:
		body = buf
	case length < 0:
		return status, buf, errors.New("the response has no length")
	default:
		body, err = appendBytes(r, buf, length)
	}
	return status, body, err
}

func readChunks(r *bufio.Reader, buf []byte) ([]byte, error) {
	for {
		line, err := readLine(r)
		if err != nil {
			return buf, err
		}
		digits, _, _ := bytes.Cut(line, []byte(";"))
		n, err := strconv.ParseUint(string(bytes.TrimSpace(digits)), 16, 31)
		if err != nil {
			return buf, fmt.Errorf("%.60q is not the size of a chunk", line)
		}
		if buf, err = appendBytes(r, buf, int(n)); err != nil {
			return buf, err
		}
		for { // the empty line after a chunk; trailers and an empty line after the last
			if line, err = readLine(r); err != nil {
				return buf, err
			}
			if len(line) == 0 {
				break
			}
			if n > 0 {
				return buf, errors.New("a chunk is longer than its size")
			}
		}
		if n == 0 {
			return buf, nil
		}
	}
}

func appendBytes(r *bufio.Reader, buf []byte, n int) ([]byte, error) {
	begin := len(buf)
	if n > maxResponse-begin {
		return buf, fmt.Errorf("the response is longer than %d bytes", maxResponse)
	}
	buf = append(buf, make([]byte, n)...)
	_, err := io.ReadFull(r, buf[begin:])
	return buf, err
}

// readLine returns a line without its line end, valid until the next read.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), nil
}

// An httpLoad makes one request after another, each worker on a separate
// connection.
type httpLoad struct {
	clients  []httpClient
	requests [][]byte // by worker
	want     []byte   // part of a good answer
}

func newHTTPLoad(addr, want string, requests [][]byte) *httpLoad {
	l := &httpLoad{clients: make([]httpClient, len(requests)), requests: requests, want: []byte(want)}
	for i := range l.clients {
		l.clients[i].addr = addr
	}
	return l
}

func (l *httpLoad) do(worker int) error {
	status, body, err := l.clients[worker].do(l.requests[worker])
	if err == nil && !bytes.Contains(body, l.want) {
		err = fmt.Errorf("status %d: %.200s", status, body)
	}
	return err
}

func (l *httpLoad) close() {
	for i := range l.clients {
		l.clients[i].close()
	}
}

// bareCommand is a child with only net/http: it reads the body and sends an answer as
// long as that to a call.
type bareCommand struct{}

func (bareCommand) Run() error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	answer := fmt.Appendf(nil, `{"state":"succeeded","text":%q}`, strings.Repeat("x", 600))
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends
		ln.Close()
	}()
	err = http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	}))
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// startBare starts a bareCommand, and sends requests as long as calls.
func startBare(n int) (v variant, err error) {
	server, err := startChild("bare")
	if err != nil {
		return v, err
	}
	addr, err := bufio.NewReader(server.stdout).ReadString('\n')
	if err != nil {
		server.stop()
		return v, fmt.Errorf("bench bare: %w", err)
	}
	addr = strings.TrimSpace(addr)
	request := httpRequest("POST", addr, "/api/v1/devices/02beef000000/calls", callBody,
		"Authorization: Bearer "+strings.Repeat("x", 40))
	load := newHTTPLoad(addr, `"state":"succeeded"`, slices.Repeat([][]byte{request}, n))
	return variant{do: load.do, calls: 1, processes: []process{server.process(ofHTTP), self(ofLoad)},
		stop: func() { load.close(); server.stop() }}, nil
}
