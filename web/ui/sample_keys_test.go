package ui_test

import (
	"time"

	"github.com/a-h/templ"

	"fleetd/fleet/enrolment"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

func serialsPage() templ.Component {
	at := now.Add(-time.Hour)
	return ui.SerialsPage{List: list(ui.PathSerials, ""), Admin: true, Counts: enrolment.SerialCounts{Total: 4200,
		Unused: 4198, Bound: 1, Conflicts: 1, Refused: 1},
		Problem: i18n.Mark("Nothing was loaded. These lines are wrong:"), More: 7,
		Problems: []enrolment.LineProblem{{Line: 7, Code: enrolment.LineKey}, {Line: 9, Code: enrolment.LineDuplicate,
			Other: 2}},
		Rows: []enrolment.SerialKey{
			{Serial: "SN-0123456789ABCDEF0123456789AB-", LoadedAt: at, LoadedBy: "anna", Device: "a085e3112233", BoundAt: &at},
			{Serial: "SN-0123456789ABCDEF0123456789AC-", LoadedAt: at, LoadedBy: "anna", Device: "a085e3112244", BoundAt: &at,
				ConflictDevice: "a085e3112255", ConflictAt: &at, WrongProofs: 12, WrongAt: &at},
			{Serial: "SN-0123456789ABCDEF0123456789AD-", LoadedAt: at, LoadedBy: hostile[0]},
		}}.Page()
}

func keysPage() templ.Component {
	at := now.Add(-time.Hour)
	return ui.KeysPage{List: list(ui.PathKeys, ""), Admin: true, Generation: 1, Counts: enrolment.RotationCounts{New: 4100,
		Old: 90, NotSeen: 10},
		Rotation: enrolment.KeyRotation{ID: 1, ToGeneration: 1, State: enrolment.RotationRunning, StartedAt: at,
			StartedBy: "anna"},
		Rows: []enrolment.RotationDevice{
			{Device: "a085e3112233", Name: hostile[0], Group: enrolment.RotationOld, LastSeen: &at},
			{Device: "a085e3112244", Name: "Kitchen", Group: enrolment.RotationNotSeen},
		}}.Page()
}
