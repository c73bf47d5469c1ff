package main

import (
	"context"
	"io"
	"log/slog"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"
)

// startMochi runs a bare mochi with fleetd's settings and without a check of credentials,
// to measure the library alone on this machine.
func startMochi(context.Context) (addr string, stop func(), err error) {
	capabilities := mqtt.NewDefaultServerCapabilities()
	capabilities.MaximumClientWritesPending = 32
	capabilities.ReceiveMaximum = 16
	capabilities.MaximumInflight = 32
	capabilities.TopicAliasMaximum = 0
	srv := mqtt.New(&mqtt.Options{Capabilities: capabilities, ClientNetReadBufferSize: 512, ClientNetWriteBufferSize: 2048,
		SysTopicResendInterval: 300, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err := srv.AddHook(new(allowAll), nil); err != nil {
		return "", nil, err
	}
	if addr, err = freeAddr(); err != nil {
		return "", nil, err
	}
	if err := srv.AddListener(listeners.NewTCP(listeners.Config{ID: "bare", Address: addr})); err != nil {
		return "", nil, err
	}
	if err := srv.Serve(); err != nil {
		return "", nil, err
	}
	return addr, func() { _ = srv.Close() }, waitFor(addr)
}

// allowAll accepts every client: without a hook that does, mochi refuses all.
type allowAll struct{ mqtt.HookBase }

func (*allowAll) Provides(b byte) bool {
	return b == mqtt.OnConnectAuthenticate || b == mqtt.OnACLCheck
}

func (*allowAll) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool { return true }

func (*allowAll) OnACLCheck(*mqtt.Client, string, bool) bool { return true }
