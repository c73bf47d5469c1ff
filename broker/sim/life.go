package sim

import (
	"context"
	"errors"
	"time"
)

// A crashError is an abort of the firmware: an exception that nothing catches
// or a failed ESP_ERROR_CHECK (1.6). The device restarts.
type crashError struct{ reason string }

func (e *crashError) Error() string { return "crash: " + e.reason }

// errHang is the dead-lock of the firmware's HTTP client (1.6): the device stays powered but
// stops working.
var errHang = errors.New("answer of 8192 bytes or more: the HTTP client dead-locks")

// live runs a device's power cycles until ctx ends.
func (d *Device) live(ctx context.Context) {
	for ctx.Err() == nil {
		d.powerCycle(ctx)
		d.sleep(ctx, d.fleet.options.BootDelay)
	}
}

// powerCycle runs the device from reset to reset. When it returns, no other goroutine works for
// the device, so the next cycle finds a settled state.
func (d *Device) powerCycle(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	task := d.reset(ctx, cancel)
	err := d.boot(ctx)
	if crash, ok := errors.AsType[*crashError](err); ok {
		d.stats().crashes.Add(1)
		d.log().Warn("device crashed and restarts", "reason", crash.reason)
	}
	if errors.Is(err, errHang) {
		d.stats().crashes.Add(1)
		d.log().Warn("device hangs until somebody switches it off", "reason", err)
		<-ctx.Done()
	}
	cancel()
	task.stop()
}

// reset clears the state in RAM.
func (d *Device) reset(ctx context.Context, cancel context.CancelFunc) *mainTask {
	task := &mainTask{ctx: ctx}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.main, d.restarts = task, cancel
	d.session, d.vision, d.code, d.setup = conversation{}, vision{}, "", nil
	d.onSocket = nil
	d.state.Message, d.state.Lamp = "", false
	return task
}

// boot performs the steps of section 1.1 and then stays on MQTT. It returns when the device
// restarts.
func (d *Device) boot(ctx context.Context) error {
	if d.startImage() {
		d.stats().rollbacks.Add(1)
		d.log().Info("unconfirmed image rolled back", "version", d.running().build.version)
	}
	if d.onTrial() && d.newBuildHas(FaultRollback) {
		return nil // resets before its first poll
	}
	d.downloadAssets(ctx)
	saw, err := d.checkVersion(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}
	d.stats().booted.Add(1)
	return d.startProtocol(ctx, saw)
}

// restart is the end of self.reboot and of an upgrade (4.7).
func (d *Device) restart(ctx context.Context) {
	if !d.sleep(ctx, time.Second) {
		return
	}
	d.closeChannel()
	d.mu.Lock()
	conn := d.conn
	d.mu.Unlock()
	if conn != nil {
		conn.hangUp()
	}
	if d.sleep(ctx, time.Second) {
		d.stats().reboots.Add(1)
		d.restarts()
	}
}

// leaveNetwork ends the session cleanly and opens the access point at which a person sets up the
// Wi-Fi.
func (d *Device) leaveNetwork() {
	d.closeChannel()
	d.mu.Lock()
	conn := d.conn
	d.setup = make(chan struct{})
	d.mu.Unlock()
	if conn != nil {
		conn.hangUp()
	}
}

// SetUpWiFi sets up the Wi-Fi of a device that left the network, as a person would. It has no
// effect on other devices.
func (d *Device) SetUpWiFi() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.setup != nil {
		close(d.setup)
		d.setup = nil
	}
}

// awaitSetUp keeps a device that left the network offline until its Wi-Fi is set up; then it
// polls and connects, as after a restart.
func (d *Device) awaitSetUp(ctx context.Context) {
	d.mu.Lock()
	setup := d.setup
	d.mu.Unlock()
	if setup == nil {
		return
	}
	select {
	case <-setup:
		d.restarts()
	case <-ctx.Done():
	}
}
