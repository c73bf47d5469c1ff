package enrolment_test

import "fleetd/fleet"

const unit = fleet.DeviceID("a085e3112233")

var (
	ann = fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "ann", Role: fleet.RoleOperator}
	bob = fleet.Principal{Kind: fleet.KindOperator, ID: "2", Name: "bob", Role: fleet.RoleAdmin}
)
