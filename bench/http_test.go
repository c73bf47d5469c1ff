package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

func TestReadResponse(t *testing.T) {
	tests := []struct {
		name, wire string
		status     int
		body       string
		bad        string // part of the error; empty without one
	}{
		{name: "by length", wire: "HTTP/1.1 201 Created\r\nX: y\r\ncontent-length: 5\r\n\r\nhello", status: 201, body: "hello"},
		{name: "empty", wire: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", status: 200},
		{name: "without a reason", wire: "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok"},
		{name: "no content", wire: "HTTP/1.1 204 No Content\r\n\r\n", status: 204},
		{name: "chunks", wire: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n",
			status: 200, body: "abc0123456789"},
		{name: "trailer", wire: "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n1\r\na\r\n0\r\nT: v\r\n\r\n", status: 200,
			body: "a"},
		{name: "no length", wire: "HTTP/1.1 200 OK\r\n\r\nhello", status: 200, bad: "no length"},
		{name: "negative length", wire: "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", status: 200, bad: "is not a length"},
		{name: "too long", wire: "HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n", status: 200, bad: "longer than"},
		{name: "cut off", wire: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", status: 200, bad: "unexpected EOF"},
		{name: "cut off in its head", wire: "HTTP/1.1 200 OK\r\nContent-", status: 200, bad: "unexpected EOF"},
		{name: "another protocol", wire: "SSH-2.0-OpenSSH\r\n", bad: "not a status line"},
		{name: "bad chunk", wire: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", status: 200, bad: "size of a chunk"},
		{name: "chunk beyond its size", wire: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
			status: 200, bad: "longer than its size"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			const next = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext"
			wire := tt.wire
			if tt.bad == "" {
				wire += next
			}
			r := bufio.NewReader(strings.NewReader(wire))
			status, body, err := readResponse(r, nil)
			if tt.bad != "" {
				if err == nil || !strings.Contains(err.Error(), tt.bad) || status != tt.status {
					t.Fatalf("readResponse = %d, %q, %v; want status %d and an error with %q", status, body, err, tt.status, tt.bad)
				}
				return
			}
			if err != nil || status != tt.status || string(body) != tt.body {
				t.Fatalf("readResponse = %d, %q, %v; want %d, %q", status, body, err, tt.status, tt.body)
			}
			if _, body, err = readResponse(r, body[:0]); err != nil || string(body) != "next" {
				t.Fatalf("the response after it: %q, %v", body, err)
			}
		})
	}
}

// The client reads everything that the server of net/http sends, over one
// connection.
func TestHTTPClient(t *testing.T) {
	var connections atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s", r.Method, r.Header.Get("Authorization"), body)
		if r.URL.Path == "/long" { // more than the server buffers: in chunks
			_, _ = w.Write(make([]byte, 10_000))
		}
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	load := newHTTPLoad(host, "POST Bearer x {}", [][]byte{
		httpRequest("POST", host, "/", "{}", "Authorization: Bearer x"),
		httpRequest("POST", host, "/long", "{}", "Authorization: Bearer x"),
		httpRequest("GET", host, "/", ""),
	})
	defer load.close()
	for range 3 {
		for worker := range 2 {
			if err := load.do(worker); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := load.do(2); err == nil {
		t.Error("an answer without what is wanted passed")
	}
	if n := connections.Load(); n != 3 {
		t.Errorf("%d connections; want one for each of 3 workers", n)
	}
}
