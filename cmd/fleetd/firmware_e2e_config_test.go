package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
)

// A cable carries the units' connections to the broker, until it is cut.
type cable struct {
	listener net.Listener
	to       string

	mu   sync.Mutex
	cut  bool
	open []net.Conn
}

func newCable(t *testing.T, to string) *cable {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{listener: ln, to: to}
	var carry sync.WaitGroup
	carry.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			carry.Go(func() { c.carry(conn) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		c.set(true)
		carry.Wait()
	})
	return c
}

// set cuts the cable, or mends it.
func (c *cable) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	if cut {
		for _, conn := range c.open {
			conn.Close()
		}
		c.open = nil
	}
}

func (c *cable) carry(near net.Conn) {
	far, err := net.Dial("tcp", c.to)
	if err != nil {
		near.Close()
		return
	}
	c.mu.Lock()
	if c.cut {
		near.Close()
		far.Close()
	}
	c.open = append(c.open, near, far)
	c.mu.Unlock()
	go func() {
		_, _ = io.Copy(far, near)
		far.Close()
	}()
	_, _ = io.Copy(near, far)
	near.Close()
}

type configJSON struct {
	Version, Reverted int
	OnTrial           bool `json:"on_trial"`
	Values            map[string]any
}

func (d *daemon) config(u *unit) (c configJSON) {
	d.t.Helper()
	if status := d.rest("GET", "/devices/"+u.id+"/config", nil, &c); status != http.StatusOK &&
		status != http.StatusNotFound {
		d.t.Fatalf("config of %s: %d", u.id, status)
	}
	return c
}

// A new configuration is on trial. A unit that loses its broker, and then its
// power, returns with the earlier values, and reports that.
func unitIsConfigured(t *testing.T, d *daemon) {
	line := newCable(t, d.mqtt)
	u := newUnit(t, d, 6, "--broker", line.listener.Addr().String())
	u.start()
	d.joined(u)
	document := `{"version":7,"values":{"heartbeat_s":11,"log_level":"debug"}}`
	c, text := d.call(u, "self.config.set", map[string]any{"document": document})
	var reported configJSON
	if err := json.Unmarshal([]byte(text), &reported); err != nil || c.State != "succeeded" || reported.Version != 7 ||
		!reported.OnTrial {
		t.Fatalf("config.set: %v, %+v", err, c)
	}
	d.eventually("reported as on trial", func() bool {
		got := d.config(u)
		return got.Version == 7 && got.OnTrial && got.Values["heartbeat_s"] == 11.0
	})
	if c, _ := d.call(u, "self.config.set",
		map[string]any{"document": `{"version":8,"values":{"heartbeat_s":1}}`}); c.State != "tool_error" {
		t.Errorf("a heartbeat of one second: %+v", c)
	}
	line.set(true)
	d.eventually("not connected", func() bool {
		var v deviceView
		d.rest("GET", "/devices/"+u.id, nil, &v)
		return v.Presence == "offline"
	})
	u.cutPower()
	line.set(false)
	u.start()
	d.online(u)
	_, text = d.call(u, "self.config.get", nil)
	var now configJSON
	if err := json.Unmarshal([]byte(text), &now); err != nil || now.Version != 0 || now.Reverted != 7 || now.OnTrial ||
		now.Values["heartbeat_s"] != 60.0 {
		t.Errorf("config.get: %v, %s", err, text)
	}
	d.eventually("known to be taken back", func() bool {
		got := d.config(u)
		return got.Version == 0 && got.Reverted == 7 && !got.OnTrial && got.Values["heartbeat_s"] == 60.0
	})
}
