package broker

import (
	"time"

	"fleetd/broker/dialect"
)

// A carrier moves the messages of one connection: a client of mochi, or a
// WebSocket. What the messages mean is the matter of the connection's dialect.
type carrier interface {
	// begin returns the start of a message to the device, with room for a payload of
	// so many bytes. The payload is to be appended.
	begin(to dialect.Address, size int) []byte
	// post sends a message of begin with its payload, or returns an error if it was
	// not sent. It does not wait for the device. A nil error does not prove delivery:
	// only an answer does.
	post(message []byte) error

	// greeted notes that the device has introduced itself. audioVersion is that of
	// its binary messages, 0 for no change. It runs on the goroutine that reads.
	greeted(audioVersion int)
	// stream carries audio; nil: UDP does.
	stream() Stream
	// localHost is the address that the device connected to.
	localHost() string

	// finish ends the connection when what was sent before is written.
	finish()
	// farewell tries to notify the device, for that long at most, why its connection
	// is about to be stopped.
	farewell(why causeError, d time.Duration)
	// shut closes the connection for connection.stop. It does not wait.
	shut(cause error)
	// silence returns the cause that err is, if it means that the device showed no
	// sign of life for too long.
	silence(err error) (why causeError, silent bool)
}

var (
	_ carrier = (*mqttCarrier)(nil)
	_ carrier = (*socket)(nil)
)
