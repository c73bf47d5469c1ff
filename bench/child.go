package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// A child is this program with another command. It ends when its stdin does.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.Reader
}

// startChild starts the command, through the program before if one is given.
func startChild(command string, before ...string) (*child, error) {
	args := append(before, os.Args[0], command)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &child{cmd, in, out}, cmd.Start()
}

func (c *child) process(name string) process { return process{name: name, pid: c.cmd.Process.Pid} }

func (c *child) stop() {
	c.stdin.Close()
	_ = c.cmd.Wait()
}

// A deviceProcess is the child that simulates devices.
type deviceProcess struct {
	*child
	orders  *json.Encoder
	reports *json.Decoder
}

func startDevices() (*deviceProcess, error) {
	c, err := startChild("devices")
	if err != nil {
		return nil, err
	}
	return &deviceProcess{c, json.NewEncoder(c.stdin), json.NewDecoder(c.stdout)}, nil
}

// connect disconnects the earlier devices and connects these.
func (p *deviceProcess) connect(addr string, parallel int, devices []credentials) (deviceReport, error) {
	var r deviceReport
	if err := p.orders.Encode(deviceOrder{Addr: addr, Parallel: parallel, Devices: devices}); err != nil {
		return r, err
	}
	if err := p.reports.Decode(&r); err != nil {
		return r, fmt.Errorf("the device process ended: %w", err)
	}
	if r.Failed > 0 {
		return r, fmt.Errorf("%d of %d devices did not connect to %s: %s", r.Failed, len(devices), addr, r.Error)
	}
	return r, nil
}

// drop disconnects all devices.
func (p *deviceProcess) drop() error {
	_, err := p.connect("", 1, nil)
	return err
}
