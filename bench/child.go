package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// A deviceProcess is the child that plays devices.
type deviceProcess struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	orders  *json.Encoder
	reports *json.Decoder
}

func startDevices() (*deviceProcess, error) {
	cmd := exec.Command(os.Args[0], "devices")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &deviceProcess{cmd, in, json.NewEncoder(in), json.NewDecoder(out)}, cmd.Start()
}

// connect drops the devices connected before and connects these.
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

func (p *deviceProcess) process() process { return process{name: ofDevices, pid: p.cmd.Process.Pid} }

func (p *deviceProcess) stop() {
	p.stdin.Close()
	_ = p.cmd.Wait()
}
