package broker

import (
	"cmp"
	"crypto/x509"
	"errors"
	"log/slog"
	"time"

	"fleetd/fleet"
)

// Options configures a [Broker]. Devices is required.
type Options struct {
	// AuthenticateCertificate returns the device to which a client belongs that sent a certificate, and
	// neither user name nor password. Its errors are those of Devices.Authenticate. Nil: no
	// certificate replaces credentials.
	AuthenticateCertificate func(clientID string, certificate *x509.Certificate) (fleet.DeviceID, error)

	Devices Devices
	// LatestEpoch is the greatest epoch on record. The epochs of new connections are greater, even
	// if the clock of the process that assigned it was ahead of this one's.
	LatestEpoch int64
	Version     string // of fleetd, sent to devices
	Logger      *slog.Logger

	// VisionURL returns where a device's camera sends pictures to be explained, or "" for
	// nowhere. Devices forget it at every start, so it is called, and its result sent, at every
	// connection. It must not block for long.
	VisionURL func(id string) (url, token string)

	// VoiceAddr is the UDP address sent to a device that has no voice server when its user starts
	// to talk. Nothing need listen there: the conversation is ended at once. Default: the address
	// that the device connected to, port 9 (discard).
	VoiceAddr string

	// ChannelTimeout limits a conversation without voice that is kept open for the device's
	// tools. Default: 10m.
	ChannelTimeout time.Duration

	RequestTimeout time.Duration // initialize, ping, each page of tools/list. Default: 10s
	ProbeEvery     time.Duration // between pings of an unresponsive device. Default: 1m
	ForgetAfter    time.Duration // how long an offline device's late answers are awaited. Default: 24h

	OnboardingLimit  int // devices being listed at a time. Default: 256
	onboardingDelays []time.Duration
}

func (o *Options) setDefaults() error {
	if o.Devices == nil {
		return errors.New("broker: no Devices")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.ChannelTimeout = cmp.Or(o.ChannelTimeout, 10*time.Minute)
	o.RequestTimeout = cmp.Or(o.RequestTimeout, 10*time.Second)
	o.ProbeEvery = cmp.Or(o.ProbeEvery, time.Minute)
	o.ForgetAfter = cmp.Or(o.ForgetAfter, 24*time.Hour)
	o.OnboardingLimit = cmp.Or(o.OnboardingLimit, 256)
	if o.onboardingDelays == nil {
		o.onboardingDelays = []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute}
	}
	return nil
}
