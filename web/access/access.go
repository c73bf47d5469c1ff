// Package access says what the routes of the console and the operations of REST
// reach. Each declares it, so that one that is added cannot forget whose scope
// it is held to. Whether a language model may ask for it is declared with it:
// see [fleet.ForModels].
package access

import "fleetd/fleet"

// A Reach is what a request may concern.
type Reach string

const (
	// Device: the device in the address. The door finds it, and asks for the
	// principal's role on it.
	Device Reach = "device"
	// Record: something of one device that the address does not name, such as a
	// call. It is read within the scope; an act asks for the role on its device.
	Record Reach = "record"
	// Audience: many devices as one thing, a campaign or a fan-out. It is read
	// within the scope; an act asks for the role on every device of it.
	Audience Reach = "audience"
	// List: what is read of many devices, within the scope.
	List Reach = "list"
	// Shared: images and releases, which belong to no device, to be read.
	Shared Reach = "shared"
	// Fleet: what concerns the fleet and no single device. It asks for the role on
	// the fleet, which a principal that does not see every device lacks.
	Fleet Reach = "fleet"
	// Own: the principal's own session, password or preferences.
	Own Reach = "own"
)

// Valid reports whether r is one of the constants above.
func (r Reach) Valid() bool {
	switch r {
	case Device, Record, Audience, List, Shared, Fleet, Own:
		return true
	}
	return false
}

// RoleOf is the role that counts for a request before it is known which device
// it concerns.
func (r Reach) RoleOf(p fleet.Principal) fleet.Role {
	if r == Fleet {
		return p.FleetRole()
	}
	return p.Role
}
