package enrolment

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"golang.org/x/time/rate"

	"fleetd/fleet"
)

// offerTimeout is what the offer may take of a poll's time. The device waits for
// 30 seconds, but the fleet may have booted together.
const offerTimeout = 2 * time.Second

// doubtsPerMinute bounds the log lines about polls that contradict themselves.
const doubtsPerMinute = 10

// Offers decides what a polling device is offered; the campaign engine does.
type Offers interface {
	// Poll sees the boot poll of an enrolled device, and returns the firmware it
	// shall install now, nil for none. firstBoot says that the poll names another
	// build than the one before.
	Poll(ctx context.Context, p BootPoll, firstBoot bool) *fleet.FirmwareOffer
}

// A VoiceServer may want to know of devices that start, and to have them show a
// code.
type VoiceServer interface {
	// Polled sees the boot poll of an enrolled device. It waits for nothing.
	Polled(p BootPoll)
	// Code is what the device is to show until it is bound to an account of its voice
	// server; nil for none. It is called once for each start of a device.
	Code(id fleet.DeviceID) *Activation
}

// BootPollsOptions configures [BootPolls]. Enrolments, Presences and Answers
// are required.
type BootPollsOptions struct {
	Enrolments *Service
	Presences  interface {
		Polled(id fleet.DeviceID, at time.Time, elfSHA256 string)
	}
	Offers  Offers      // nil: no device is offered any firmware
	Voice   VoiceServer // nil: none
	Answers *PollAnswers
	Log     *slog.Logger // nil: silent
}

// BootPolls answers boot polls: it is where enrolment, presence and campaigns
// meet.
type BootPolls struct {
	o      BootPollsOptions
	doubts *rate.Limiter
}

// NewBootPolls returns the service.
func NewBootPolls(o BootPollsOptions) *BootPolls {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &BootPolls{o: o, doubts: rate.NewLimiter(rate.Every(time.Minute/doubtsPerMinute), doubtsPerMinute)}
}

// Answer handles a boot poll step by step and returns the body of the answer:
//
//	doubt  a poll whose body names another device is logged; its header counts
//	admit  the device gets credentials, a code, or nothing
//	note   that an enrolled device started, and with which build
//	offer  what the campaigns would have it install now
//	voice  the code of its voice server, for a device that is neither to install
//	       anything nor to confirm an image: it is not connected while it shows one
//	body   the answer in JSON, without what would harm the device
//
// The last four have no error: a known device must be answered, or a new image
// of it is rolled back (protocol 1.5). An error is that of [Service.Poll].
func (b *BootPolls) Answer(ctx context.Context, p BootPoll) ([]byte, error) {
	b.doubt(p)
	answer, err := b.o.Enrolments.Poll(p)
	if err != nil {
		return nil, err
	}
	if answer.Session != nil { // without one, anyone may have sent the poll
		b.o.Presences.Polled(p.Device, p.At, p.ELFSHA256)
		answer.Offer = b.offer(ctx, p, answer.FirstBoot)
		if v := b.o.Voice; v != nil {
			v.Polled(p)
			if answer.Offer == nil && !answer.FirstBoot {
				answer.Activation = v.Code(p.Device)
			}
		}
	}
	if answer.Offer != nil || answer.Session != nil && answer.Activation != nil {
		b.o.Enrolments.Settled(p.Device) // it does not connect before its next poll
	}
	body, err := b.o.Answers.Body(answer, p.At)
	if err != nil {
		b.o.Log.Error("a part of the answer withheld: it would harm the device", "device", p.Device, "err", err)
	}
	return body, nil
}

// doubt logs polls whose body names another device than their header. The
// header counts: it is what the device uses everywhere else.
func (b *BootPolls) doubt(p BootPoll) {
	if p.BodyMAC == "" {
		return
	}
	if other, err := fleet.ParseDeviceID(p.BodyMAC); err == nil && other == p.Device {
		return
	}
	if b.doubts.AllowN(p.At, 1) {
		b.o.Log.Warn("suspicious boot poll: the body names another device", "device", p.Device, "body_mac", p.BodyMAC,
			"remote", p.RemoteAddr)
	}
}

// offer asks the campaigns what the device shall install now. Whatever goes
// wrong there, the device gets its answer.
func (b *BootPolls) offer(ctx context.Context, p BootPoll, firstBoot bool) (offer *fleet.FirmwareOffer) {
	if b.o.Offers == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, offerTimeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			b.o.Log.Error("no firmware offered", "device", p.Device, "panic", v, "stack", string(debug.Stack()))
			offer = nil
		}
	}()
	return b.o.Offers.Poll(ctx, p, firstBoot)
}
