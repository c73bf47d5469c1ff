package edge

import (
	"log/slog"
	"math"

	mqtt "github.com/mochi-mqtt/server/v2"
)

// maxPacket is the longest packet that an authenticated device may send. Tool results of 200 KB
// are legal, and the read path holds each packet twice.
const maxPacket = 512 << 10

// newServer creates mochi's server without the features that the fleet does not need: no
// sessions, no retained messages, no aliases, no topics about the server. qos.go implements QoS 2;
// mochi never sees it.
func newServer(log *slog.Logger) *mqtt.Server {
	c := mqtt.NewDefaultServerCapabilities()
	c.MaximumClients = math.MaxInt64 // the gate limits them, before a socket costs anything
	c.MaximumClientWritesPending = 32
	c.MaximumPacketSize = maxPacket
	c.MaximumSessionExpiryInterval = 0
	c.ReceiveMaximum = receiveMaximum
	c.MaximumInflight = 32
	c.TopicAliasMaximum = 0
	c.RetainAvailable = 0
	c.SharedSubAvailable = 0
	c.WildcardSubAvailable = 0
	c.SubIDAvailable = 0
	c.Compatibilities.NoInheritedPropertiesOnAck = true
	return mqtt.New(&mqtt.Options{
		Capabilities:             c,
		ClientNetReadBufferSize:  512,
		ClientNetWriteBufferSize: 2048, // allocated only when used
		Logger:                   slog.New(quietHandler{log.Handler()}),
	})
}
