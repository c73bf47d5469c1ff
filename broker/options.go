package broker

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"syscall"
	"time"

	"fleetd/broker/dialect"
	"fleetd/fleet"
)

// Options configures a [Broker]. Devices and at least one address are required.
type Options struct {
	Addr      string      // plain MQTT, ":1883"; "" for none
	TLSAddr   string      // MQTT over TLS, ":8883"; "" for none
	TLSConfig *tls.Config // required with TLSAddr

	// AuthenticateCertificate returns the device to which a client belongs that sent a certificate, and
	// neither user name nor password. Its errors are those of Devices.Authenticate. Nil: no
	// certificate replaces credentials. TLSConfig says which authorities sign certificates.
	AuthenticateCertificate func(clientID string, certificate *x509.Certificate) (fleet.DeviceID, error)

	Devices Devices
	Node    string // names this process in its connections
	Version string // of fleetd, sent to devices
	Logger  *slog.Logger

	// VisionURL returns where a device's camera sends pictures to be explained, or "" for
	// nowhere. Devices forget it at every start, so it is called, and its result sent, at every
	// connection. It must not block for long.
	VisionURL func(id string) (url, token string)

	// Voice relays conversations. Nil means that there is no voice server.
	Voice Voice

	// Agents serves MCP clients. Nil means that they are refused.
	Agents Agents

	// VoiceAddr is the UDP address sent to a device that has no voice server when its user starts
	// to talk. Nothing need listen there: the conversation is ended at once. Default: the address
	// that the device connected to, port 9 (discard).
	VoiceAddr string

	// ChannelTimeout limits a conversation without voice that is kept open for the device's
	// tools. Default: 10m.
	ChannelTimeout time.Duration

	ConnectTimeout time.Duration // from accept to an accepted CONNECT, TLS included. Default: 10s
	WriteTimeout   time.Duration // until a socket that accepts no bytes is closed. Default: 2s
	RequestTimeout time.Duration // initialize, ping, each page of tools/list. Default: 10s
	ProbeEvery     time.Duration // between pings of an unresponsive device. Default: 1m
	ForgetAfter    time.Duration // how long an offline device's late answers are awaited. Default: 24h
	MaxConnections int           // default: 90 % of the process's descriptors
	MaxHandshakes  int           // TLS handshakes that compute at a time. Default: 3/4 of the cores

	// MaxPendingHandshakes limits unfinished TLS handshakes. Default: 2048, and never more than a
	// quarter of MaxConnections.
	MaxPendingHandshakes int

	// ProxyFrom lists the networks whose connections begin with a header of the PROXY protocol,
	// version 2. The header is required from there and refused from elsewhere.
	ProxyFrom []netip.Prefix

	OnboardingLimit  int // devices being listed at a time. Default: 256
	onboardingDelays []time.Duration
	overMQTT         func(dialect.Connect) (dialect.Dialect, fleet.DeviceID)
}

func (o *Options) setDefaults() error {
	if o.Devices == nil {
		return errors.New("broker: no Devices")
	}
	if o.Addr == "" && o.TLSAddr == "" {
		return errors.New("broker: no address to listen on")
	}
	if o.TLSAddr != "" && o.TLSConfig == nil {
		return fmt.Errorf("broker: MQTT over TLS on %s needs a certificate", o.TLSAddr)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.ChannelTimeout = cmp.Or(o.ChannelTimeout, 10*time.Minute)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 10*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 2*time.Second)
	o.RequestTimeout = cmp.Or(o.RequestTimeout, 10*time.Second)
	o.ProbeEvery = cmp.Or(o.ProbeEvery, time.Minute)
	o.ForgetAfter = cmp.Or(o.ForgetAfter, 24*time.Hour)
	o.MaxConnections = cmp.Or(o.MaxConnections, descriptorRoom())
	o.MaxHandshakes = cmp.Or(o.MaxHandshakes, max(1, runtime.GOMAXPROCS(0)*3/4))
	o.MaxPendingHandshakes = cmp.Or(o.MaxPendingHandshakes, 2048)
	o.OnboardingLimit = cmp.Or(o.OnboardingLimit, 256)
	if o.onboardingDelays == nil {
		o.onboardingDelays = []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute}
	}
	if o.overMQTT == nil {
		o.overMQTT = dialect.OverMQTT
	}
	return nil
}

// descriptorRoom returns how many descriptors connections may use: a process that runs out of
// them can neither open a file nor reach its database.
func descriptorRoom() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil || limit.Cur > 1<<24 {
		return 1 << 24
	}
	return int(limit.Cur / 10 * 9)
}
