package dialect

import "fleetd/fleet"

// A Connect contains the fields of a device's CONNECT that identify its dialect.
type Connect struct {
	ClientID   string
	Username   string
	Version    byte       // of MQTT: 3, 4 or 5
	Properties []Property // of MQTT 5
	Will       Will       // zero without one; it is never published
}

// A Will is the message that a device asks to have published when its connection ends.
type Will struct {
	Topic  string
	Retain bool
}

// overMQTT lists the dialects over MQTT. Each returns nil for a client that it does not
// recognise; the first dialect returned is used.
var overMQTT = []func(Connect) (Dialect, fleet.DeviceID){
	xiaozhiOverMQTT, mcpOverMQTT,
}

// OverMQTT returns the dialect of a client that connects by MQTT, and the device in its client
// id; nil if the client is no device. Its credentials are not yet checked.
func OverMQTT(c Connect) (Dialect, fleet.DeviceID) {
	for _, dialectOf := range overMQTT {
		if d, id := dialectOf(c); d != nil {
			return d, id
		}
	}
	return nil, ""
}
