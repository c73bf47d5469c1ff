package sim

import (
	"context"
	"encoding/base64"
	"errors"
	"time"
)

// errNoReply is returned by a tool whose call must not be answered.
var errNoReply = errors.New("no reply")

// execute runs a tool on the main task and queues its answer.
func (d *Device) execute(ctx context.Context, call Call, t *tool, args []argument) {
	if d.faults.has(FaultSlow) && !d.sleep(ctx, d.fleet.fault(FaultSlow).Delay) {
		return
	}
	if d.faults.has(FaultError) {
		d.replyError(call.ID, "Simulated failure of "+t.name)
		return
	}
	call.At = time.Now()
	d.record(call)
	d.stats().calls.Add(1)
	res, err := t.run(ctx, d, args)
	switch {
	case errors.Is(err, errNoReply) || d.faults.has(FaultSilent):
	case err != nil:
		d.replyError(call.ID, err.Error())
	default:
		d.replyResult(call.ID, res.marshal())
	}
}

// marshal returns the result object. A picture is encoded as JSON inside a string under "image",
// which is not MCP's form but the firmware's (4.4).
func (r result) marshal() []byte {
	b := []byte(`{"content":[{"type":"text","text":`)
	content := r.text
	if r.image != nil {
		b = []byte(`{"content":[{"type":"image","image":`)
		content = `{"type":"image","mimeType":"image/jpeg","data":"` + base64.StdEncoding.EncodeToString(r.image) + `"}`
	}
	return append(appendQuoted(b, content), `}],"isError":false}`...)
}

// reboot queues the restart first, so the answer queued after it is never sent.
func reboot(_ context.Context, d *Device, _ []argument) (result, error) {
	d.schedule(d.restart)
	return done(true)
}

// reconfigureWiFi queues the end of the protocol first, so the answer queued after it is never
// sent.
func reconfigureWiFi(_ context.Context, d *Device, _ []argument) (result, error) {
	d.schedule(func(context.Context) { d.leaveNetwork() })
	return done(true)
}

// upgradeFirmware is answered only if the upgrade fails (4.7).
func upgradeFirmware(_ context.Context, d *Device, args []argument) (result, error) {
	if d.faults.has(FaultSilentAccept) {
		return result{}, errNoReply
	}
	d.schedule(func(ctx context.Context) { d.upgrade(ctx, order{url: args[0].s}) })
	return done(true)
}
