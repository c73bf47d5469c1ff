package enrolment

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"golang.org/x/time/rate"

	"fleetd/fleet"
)

// offerTimeout bounds how long choosing the offer may delay the answer. The device waits 30
// seconds for the answer, but the whole fleet may have booted at once.
const offerTimeout = 2 * time.Second

// doubtsPerMinute bounds the log entries about polls that contradict themselves.
const doubtsPerMinute = 10

// Offers chooses the firmware that a polling device is offered; the campaign engine implements it.
type Offers interface {
	// Poll handles the boot poll of an enrolled device and returns the firmware to install now, or
	// nil for none. firstBoot reports that the poll names a different build than the previous one.
	Poll(ctx context.Context, p BootPoll, firstBoot bool) *fleet.FirmwareOffer
}

// A VoiceServer is notified of devices that start and can make them show a code.
type VoiceServer interface {
	// Polled handles the boot poll of an enrolled device. It does not block.
	Polled(p BootPoll)
	// Code returns the code that the device shows until it is bound to an account of its voice
	// server, or nil for none. It is called once per start of a device.
	Code(id fleet.DeviceID) *Activation
}

// BootPollsOptions configures [BootPolls]. Enrolments, Presences and Answers
// are required.
type BootPollsOptions struct {
	Enrolments *Service
	Presences  interface {
		Polled(id fleet.DeviceID, at time.Time, elfSHA256 string)
	}
	Offers  Offers      // nil: no device is offered firmware
	Voice   VoiceServer // nil: none
	Answers *PollAnswers
	Log     *slog.Logger // nil: silent
}

// BootPolls answers boot polls. It connects enrolment, presence and campaigns.
type BootPolls struct {
	o      BootPollsOptions
	doubts *rate.Limiter
}

// NewBootPolls returns a BootPolls service with the given options.
func NewBootPolls(o BootPollsOptions) *BootPolls {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &BootPolls{o: o, doubts: rate.NewLimiter(rate.Every(time.Minute/doubtsPerMinute), doubtsPerMinute)}
}

// Answer handles a boot poll step by step and returns the body of the answer:
//
//	doubt  logs a poll whose body names a different device than its header; the header counts
//	admit  gives the device credentials, a code, or nothing
//	note   records that an enrolled device started, and its build
//	offer  chooses the firmware that the campaigns want installed now
//	voice  adds the code of its voice server, unless the device has to install an image or to
//	       confirm one: a device that shows a code is not connected
//	body   encodes the answer as JSON, without any part that would harm the device
//
// The last four steps return no error: a known device must be answered, or it rolls back a new
// image (protocol 1.5). The error of Answer is that of [Service.Poll].
func (b *BootPolls) Answer(ctx context.Context, p BootPoll) ([]byte, error) {
	b.doubt(p)
	answer, err := b.o.Enrolments.Poll(p)
	if err != nil {
		return nil, err
	}
	if answer.Session != nil { // without a session, anyone may have sent the poll
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
		b.o.Enrolments.Settled(p.Device) // the device does not connect before its next poll
	}
	body, err := b.o.Answers.Body(answer, p.At)
	if err != nil {
		b.o.Log.Error("withheld a part of the answer that would harm the device", "device", p.Device, "err", err)
	}
	return body, nil
}

// doubt logs polls whose body names a different device than their header. The header counts:
// the device uses it everywhere else.
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

// offer asks the campaigns for the firmware that the device installs now. If they fail or
// panic, the device still gets its answer.
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
