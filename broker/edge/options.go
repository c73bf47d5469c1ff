package edge

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"syscall"
	"time"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
)

// Options configures an [Edge]. Core and at least one address are required.
type Options struct {
	Addr      string      // plain MQTT, ":1883"; "" for none
	TLSAddr   string      // MQTT over TLS, ":8883"; "" for none
	TLSConfig *tls.Config // required with TLSAddr; says which authorities sign certificates of devices

	Core   link.Core
	Node   string // names this edge in its connections
	Logger *slog.Logger

	// Voice relays conversations. Nil means that there is no voice server.
	Voice Voice

	// Agents serves MCP clients. Nil means that they are refused, with a reason.
	Agents Agents

	ConnectTimeout time.Duration // from accept to an accepted CONNECT, TLS included. Default: 10s
	WriteTimeout   time.Duration // until a socket that accepts no bytes is closed. Default: 2s
	SocketHello    time.Duration // from the upgrade of a WebSocket to the device's hello. Default: 30s
	SocketSilence  time.Duration // until a WebSocket without any frame counts as gone. Default: 65s
	WriteBuffer    int           // of the kernel for a socket, in bytes. Default: the system decides
	MaxConnections int           // default: 90 % of the process's descriptors
	MaxHandshakes  int           // TLS handshakes that compute at a time. Default: 3/4 of the cores

	// MaxPendingHandshakes limits unfinished TLS handshakes. Default: 2048, and never more than a
	// quarter of MaxConnections.
	MaxPendingHandshakes int

	DrainNotice time.Duration // from the start of a drain until the first device is asked to move. Default: 3s
	DrainLimit  time.Duration // from the start of a drain until busy devices are asked to move. Default: 1m

	// ProxyFrom lists the networks whose connections begin with a header of the PROXY protocol,
	// version 2. The header is required from there and refused from elsewhere.
	ProxyFrom []netip.Prefix

	// OverMQTT recognises the dialects of clients. Default: dialect.OverMQTT.
	OverMQTT func(dialect.Connect) (dialect.Dialect, fleet.DeviceID)
}

func (o *Options) setDefaults() error {
	if o.Core == nil {
		return errors.New("edge: no Core")
	}
	if o.Addr == "" && o.TLSAddr == "" {
		return errors.New("edge: no address to listen on")
	}
	if o.TLSAddr != "" && o.TLSConfig == nil {
		return fmt.Errorf("edge: MQTT over TLS on %s needs a certificate", o.TLSAddr)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 10*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 2*time.Second)
	o.SocketHello = cmp.Or(o.SocketHello, 30*time.Second)
	o.SocketSilence = cmp.Or(o.SocketSilence, 65*time.Second)
	o.DrainNotice = cmp.Or(o.DrainNotice, 3*time.Second)
	o.DrainLimit = cmp.Or(o.DrainLimit, time.Minute)
	o.MaxConnections = cmp.Or(o.MaxConnections, descriptorRoom())
	o.MaxHandshakes = cmp.Or(o.MaxHandshakes, max(1, runtime.GOMAXPROCS(0)*3/4))
	o.MaxPendingHandshakes = cmp.Or(o.MaxPendingHandshakes, 2048)
	if o.OverMQTT == nil {
		o.OverMQTT = dialect.OverMQTT
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
