package device_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/web/device"
)

// lingeringSite serves the routes of devices over a Lingerer; l may be nil.
func lingeringSite(t *testing.T, l *device.Lingerer) net.Addr {
	t.Helper()
	s := newSite(t, fleet.EnrolOpen)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr()
	if l != nil {
		ln = l.Listener(ln)
		t.Cleanup(l.Stop)
	}
	r := chi.NewRouter()
	r.Mount("/", s.Config.Handler)
	r.Get("/other", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "other") })
	srv := &http.Server{Handler: r, ConnContext: device.WithConn}
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
	return addr
}

func rawRequest(line, headers, body string) string {
	return line + "\r\nHost: x\r\nDevice-Id: " + unit.MAC() + "\r\nClient-Id: " + uuid1 + "\r\n" + headers +
		fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body)) + body
}

const closing = "Connection: close\r\n"

// answersOf reads n responses and returns them as received, without their dates.
func answersOf(t *testing.T, r *bufio.Reader, n int) (text string) {
	t.Helper()
	for range n {
		length := 0
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				t.Fatalf("%v behind %q", err, text)
			}
			if !strings.HasPrefix(line, "Date: ") {
				text += line
			}
			fmt.Sscanf(line, "Content-Length: %d", &length)
			if line == "\r\n" {
				break
			}
		}
		body := make([]byte, length)
		if _, err := io.ReadFull(r, body); err != nil {
			t.Fatal(err)
		}
		text += string(body)
	}
	return text
}

func TestDevicesCloseFirst(t *testing.T) {
	poll := rawRequest("POST /xiaozhi/ota/ HTTP/1.1", closing, "{}")
	tests := []struct {
		name, request string
		answers       int
		lingers       bool
	}{
		{"boot poll", poll, 1, true},
		{"activation", rawRequest("POST /xiaozhi/ota/activate HTTP/1.1", closing, "{}"), 1, true},
		{"HTTP/1.0", rawRequest("POST /xiaozhi/ota/ HTTP/1.0", "", "{}"), 1, true},
		{"unknown download", rawRequest("GET /d/x/preview.jpg HTTP/1.1", closing, ""), 1, true},
		{"unknown upload", rawRequest("POST /u/x HTTP/1.1", closing, strings.Repeat("x", 1000)), 1, true},
		{"large upload, not read", rawRequest("POST /u/x HTTP/1.1", closing, strings.Repeat("x", 1<<20)), 1, true},
		{"body beyond the limit", rawRequest("POST /xiaozhi/ota/ HTTP/1.1", closing, strings.Repeat("x", 1<<20)), 1, true},
		{"two polls, kept alive and closed", strings.Replace(poll, closing, "", 1) + poll, 2, true},
		{"bad header", rawRequest("POST /xiaozhi/ota/ HTTP/1.1", closing+"Device-Id: x\r\n", "{}"), 1, true},
		{"not a device's", rawRequest("GET /other HTTP/1.1", closing, ""), 1, false},
		{"no route", rawRequest("GET /nothing HTTP/1.1", closing, ""), 1, false},
	}
	plain := lingeringSite(t, nil)
	l := device.NewLingerer(device.LingerOptions{For: time.Hour})
	addr, brief := lingeringSite(t, l), lingeringSite(t, device.NewLingerer(device.LingerOptions{For: time.Millisecond}))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			written := make(chan error, 3)
			ask := func(addr net.Addr) (net.Conn, *bufio.Reader, string) {
				c, err := net.Dial("tcp", addr.String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				go func() {
					_, err := io.WriteString(c, tt.request)
					written <- err
				}()
				r := bufio.NewReader(c)
				return c, r, answersOf(t, r, tt.answers)
			}
			ends := func(what string, c net.Conn, r *bufio.Reader) {
				t.Helper()
				c.SetReadDeadline(time.Now().Add(time.Minute))
				if _, err := r.ReadByte(); err != io.EOF {
					t.Errorf("%s: the end: %v", what, err)
				}
			}
			_, _, want := ask(plain)
			<-written
			c, r, got := ask(addr)
			if timestamps.ReplaceAllString(got, "") != timestamps.ReplaceAllString(want, "") {
				t.Errorf("answered\n%s\nwant\n%s", got, want)
			}
			if !tt.lingers {
				ends("not a device's", c, r)
				return
			}
			if err := <-written; err != nil { // unread bytes are accepted nevertheless
				t.Errorf("the request was not taken: %v", err)
			}
			waitingFor(t, l, "after the answer", 1)
			c.SetReadDeadline(time.Now().Add(150 * time.Millisecond)) // longer than lookEvery
			if _, err := r.ReadByte(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read behind the answer: %v", err)
			}
			c.Close()
			waitingFor(t, l, "after the device closed", 0)
			if len(tt.request) < 1<<16 { // some bytes of a larger one may be unread when the time is over
				c, r, _ = ask(brief)
				ends("when its time is over", c, r)
			}
		})
	}
}

var timestamps = regexp.MustCompile(`"timestamp":\d+`)

// waitingFor waits until the given number of connections linger.
func waitingFor(t *testing.T, l *device.Lingerer, what string, want int) {
	t.Helper()
	fleettest.Eventually(t, fmt.Sprintf("%s: %d connections linger", what, want), func() bool {
		return l.Waiting() == want
	})
}

func TestLingeringEnds(t *testing.T) {
	l := device.NewLingerer(device.LingerOptions{For: time.Hour, Max: 3})
	addr := lingeringSite(t, l)
	ask := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		io.WriteString(c, rawRequest("POST /xiaozhi/ota/ HTTP/1.1", closing, "{}"))
		r := bufio.NewReader(c)
		answersOf(t, r, 1)
		return c, r
	}
	waiting := func(what string, want int) {
		t.Helper()
		waitingFor(t, l, what, want)
	}
	first, firstReader := ask()
	waiting("one", 1)
	second, _ := ask()
	waiting("two", 2)
	second.Close()
	waiting("the device closed", 1)
	for range 3 {
		ask()
	}
	waiting("too many", 3)
	first.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := firstReader.ReadByte(); err != io.EOF {
		t.Errorf("the oldest: %v", err)
	}
	last, lastReader := ask()
	l.Stop()
	waiting("stopped", 0)
	last.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := lastReader.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after stopping: %v", err)
	}
}
