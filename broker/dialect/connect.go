package dialect

import "fleetd/fleet"

// A Connect is what a device's CONNECT says about its dialect.
type Connect struct {
	ClientID   string
	Version    byte       // of MQTT: 3, 4 or 5
	Properties []Property // of MQTT 5
	Will       Will       // zero without one; it is never published
}

// A Will is the message that a device wants published at its end.
type Will struct {
	Topic  string
	Retain bool
}

// overMQTT lists the dialects over MQTT. Each returns nil for a client that it does
// not know; the first that returns a dialect counts.
var overMQTT = []func(Connect) (Dialect, fleet.DeviceID){
	xiaozhiOverMQTT,
}

// OverMQTT returns the dialect of a client that connects by MQTT, and the device
// that its client id names; nil for a client that is no device. Its credentials
// are not checked yet.
func OverMQTT(c Connect) (Dialect, fleet.DeviceID) {
	for _, dialectOf := range overMQTT {
		if d, id := dialectOf(c); d != nil {
			return d, id
		}
	}
	return nil, ""
}
