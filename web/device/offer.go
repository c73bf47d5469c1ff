package device

import (
	"context"
	"runtime/debug"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// offerPatience is what the campaigns may take of a poll's time. The device
// waits for 30 seconds, but the fleet may have booted together.
const offerPatience = 2 * time.Second

// offer asks the campaigns what the device shall install now. Whatever goes
// wrong there, the device gets its answer: without one a new image of it would
// be rolled back.
func (h *Handler) offer(ctx context.Context, p enrolment.BootPoll, firstBoot bool) (offer *fleet.FirmwareOffer) {
	if h.o.Firmware == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, offerPatience)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			h.o.Log.Error("no firmware offered", "device", p.Device, "panic", v, "stack", string(debug.Stack()))
			offer = nil
		}
	}()
	return h.o.Firmware.Poll(ctx, p, firstBoot)
}
