package broker

import (
	"time"

	"fleetd/broker/dialect"
)

// A carrier transports the messages of one connection. It is a mochi client or a WebSocket. The
// connection's dialect interprets the messages.
type carrier interface {
	// begin returns the start of a message to the device, with capacity for size bytes of
	// payload. The caller appends the payload.
	begin(to dialect.Address, size int) []byte
	// post sends a message that begin started, or returns an error if it was not sent. It does
	// not wait for the device. A nil error does not prove delivery; only an answer from the
	// device does.
	post(message []byte) error

	// greeted records that the device has sent its hello. audioVersion is the version of its
	// binary messages; 0 changes nothing. It runs on the reader's goroutine.
	greeted(audioVersion int)
	// stream returns the stream that carries audio, or nil if audio uses UDP.
	stream() Stream
	// localHost returns the local address that the device connected to.
	localHost() string

	// finish ends the connection after all queued messages are written.
	finish()
	// farewell tries for at most d to notify the device why its connection is about to be
	// stopped.
	farewell(why causeError, d time.Duration)
	// shut closes the connection on behalf of connection.stop. It does not wait.
	shut(cause error)
	// silence returns the cause for err if err means that the device was silent for too long.
	silence(err error) (why causeError, silent bool)
}

var (
	_ carrier = (*mqttCarrier)(nil)
	_ carrier = (*socket)(nil)
)
