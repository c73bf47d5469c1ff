package broker

import (
	"regexp"

	"fleetd/fleet"
)

// clientIDPattern is the form of the client ids that fleetd issues, which is
// the vendor's: group, device, and the device's own UUID. Names that mean
// something inside of mochi, such as "inline", are not among them.
var clientIDPattern = regexp.MustCompile(`^GID_[A-Za-z0-9_.-]{1,32}@@@([a-z0-9._-]{1,64})@@@[A-Za-z0-9._-]{1,64}$`)

// deviceOfClientID returns the device that a client id names, or "" if the id
// is not of our form.
func deviceOfClientID(clientID string) fleet.DeviceID {
	m := clientIDPattern.FindStringSubmatch(clientID)
	if m == nil {
		return ""
	}
	id, err := fleet.ParseDeviceID(m[1])
	if err != nil {
		return ""
	}
	return id
}

// upTopic is the topic that a device publishes to, and downTopic the topic of
// messages to it.
func upTopic(id fleet.DeviceID) string   { return "fleet/" + string(id) + "/up" }
func downTopic(id fleet.DeviceID) string { return "devices/p2p/" + string(id) }
