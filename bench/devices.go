package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Devices run in a separate process, so every broker under test reaches them
// through a socket. The parent sends it lines of JSON.

// deviceOrder is a request of the parent: connect these devices, this many at a
// time.
type deviceOrder struct {
	Addr     string
	Parallel int
	Devices  []credentials
}

// deviceReport is the result of connecting.
type deviceReport struct {
	Connected int
	Failed    int
	Error     string // of one failed device
	Seconds   float64
	P50, P99  float64 // of CONNECT to CONNACK, in milliseconds
}

// runDevices is the child's main function: it connects the devices of each
// order, disconnects those of the previous order, and answers calls until stdin
// ends.
func runDevices() error {
	orders := json.NewDecoder(bufio.NewReader(os.Stdin))
	var conns []net.Conn
	for {
		var o deviceOrder
		if err := orders.Decode(&o); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		for _, c := range conns {
			c.Close()
		}
		var report deviceReport
		conns, report = connectAll(o)
		if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
			return err
		}
	}
}

func connectAll(o deviceOrder) ([]net.Conn, deviceReport) {
	var (
		mu     sync.Mutex
		conns  []net.Conn
		report deviceReport
		times  samples
		queue  = make(chan credentials)
		begin  = time.Now()
	)
	var workers sync.WaitGroup
	for range max(1, o.Parallel) {
		workers.Go(func() {
			for c := range queue {
				start := time.Now()
				conn, r, err := dial(o.Addr, c)
				took := time.Since(start)
				mu.Lock()
				if err != nil {
					report.Failed++
					report.Error = err.Error()
				} else {
					conns = append(conns, conn)
					times = append(times, took)
					go answer(conn, r, c.Up)
				}
				mu.Unlock()
			}
		})
	}
	for _, c := range o.Devices {
		queue <- c
	}
	close(queue)
	workers.Wait()
	report.Connected, report.Seconds = len(conns), time.Since(begin).Seconds()
	report.P50, report.P99 = ms(times.percentile(50)), ms(times.percentile(99))
	return conns, report
}

// answer simulates a device until its connection ends: it answers true to every
// call.
func answer(conn net.Conn, r *bufio.Reader, up string) {
	defer conn.Close()
	var buf []byte
	for {
		kind, body, err := readPacket(r, buf)
		if err != nil {
			return
		}
		buf = body[:0]
		if kind&0xF0 != packetPublish {
			continue
		}
		if reply := replyTo(payload(body)); reply != nil {
			if _, err := conn.Write(publishPacket(up, reply)); err != nil {
				return
			}
		}
	}
}

var (
	idKey      = []byte(`"id":`)
	initialize = []byte(`"method":"initialize"`)
	toolsList  = []byte(`"method":"tools/list"`)
)

const (
	replyTrue  = `{"content":[{"type":"text","text":"true"}],"isError":false}`
	replyInit  = `{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"bench","version":"2.4.2"}}`
	replyTools = `{"tools":[{"name":"self.audio_speaker.set_volume","description":"Set the volume of the audio speaker.","inputSchema":{"type":"object","properties":{"volume":{"type":"integer","minimum":0,"maximum":100}},"required":["volume"]}},` +
		`{"name":"self.reboot","description":"Reboot the system","inputSchema":{"type":"object","properties":{}},"annotations":{"audience":["user"]}}]}`
)

// replyTo returns a device's answer; nil for messages that need none.
func replyTo(request []byte) []byte {
	id := callID(request)
	if id == nil {
		return nil
	}
	result := replyTrue
	switch {
	case bytes.Contains(request, initialize):
		result = replyInit
	case bytes.Contains(request, toolsList):
		result = replyTools
	}
	return fmt.Appendf(nil, `{"session_id":"","type":"mcp","payload":{"jsonrpc":"2.0","id":%s,"result":%s}}`, id, result)
}

// callID returns the digits of the JSON-RPC id.
func callID(msg []byte) []byte {
	i := bytes.Index(msg, idKey)
	if i < 0 {
		return nil
	}
	msg = msg[i+len(idKey):]
	n := 0
	for n < len(msg) && msg[n] >= '0' && msg[n] <= '9' {
		n++
	}
	return msg[:n]
}
