// Package access defines what the routes of the console and the operations of REST reach. Each of
// them declares its reach, so a new one cannot omit the scope that it is checked against. Each also
// declares whether a language model may use it: see [fleet.ForModels].
package access

import "fleetd/fleet"

// A Reach is the kind of thing that a request may concern.
type Reach string

const (
	// Device is the device in the address. The router looks it up, and requires the principal's
	// role on it.
	Device Reach = "device"
	// Record is something that belongs to one device but does not name it in its address, such as a
	// call. Reads are limited to the scope; a change requires the role on its device.
	Record Reach = "record"
	// Audience is something that concerns many devices, such as a campaign or a fan-out. Reads are
	// limited to the scope; a change requires the role on every device.
	Audience Reach = "audience"
	// List is a read of many devices, limited to the scope.
	List Reach = "list"
	// Shared is a read of images and releases, which belong to no device.
	Shared Reach = "shared"
	// Fleet is what concerns the fleet and no single device. It requires the role on the fleet,
	// which a principal with access to only some devices lacks.
	Fleet Reach = "fleet"
	// Part is a part of the fleet that the principal chooses, within its scope. It requires the role on
	// some devices, and access to all of them: what is chosen from counts the whole fleet.
	Part Reach = "part"
	// Own is the principal's own session, password, preferences or latest acts.
	Own Reach = "own"
)

// Valid reports whether r is one of the constants above.
func (r Reach) Valid() bool {
	switch r {
	case Device, Record, Audience, List, Shared, Fleet, Part, Own:
		return true
	}
	return false
}

// RoleOf returns the role that a request is checked against while its device is still unknown.
func (r Reach) RoleOf(p fleet.Principal) fleet.Role {
	if r == Fleet || r == Part && p.FleetRole() == "" {
		return p.FleetRole()
	}
	return p.Role
}
