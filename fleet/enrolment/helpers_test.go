package enrolment_test

import "fleetd/fleet"

const unit = fleet.DeviceID("a085e3112233")

var (
	ann = fleet.Actor{Kind: fleet.ActorOperator, ID: "1", Name: "ann", Role: fleet.RoleOperator}
	bob = fleet.Actor{Kind: fleet.ActorOperator, ID: "2", Name: "bob", Role: fleet.RoleAdmin}
)
