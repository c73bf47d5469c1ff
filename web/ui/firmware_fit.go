package ui

import (
	"context"
	"slices"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// A FitView shows which devices an image or a release fits, which it does not fit, and why: the
// parameters q, mode and downgrade of its page.
type FitView struct {
	Path      string // of the page
	Query     string // as written
	Mode      firmware.DispatchMode
	Downgrade bool
	BadQuery  string // why the query is invalid; "" if it is valid
	Report    *firmware.FitReport
	Chip      string // of the image; "" for a release
	ELF       []string
}

var fitModes = []firmware.DispatchMode{firmware.ModeAuto, firmware.ModePush, firmware.ModePull}

// A misfitGroup is the devices that are left out for one reason, by board.
type misfitGroup struct {
	reason firmware.SkipReason
	count  int
	boards []firmware.Misfits
}

// misfitGroups joins adjacent entries with the same reason.
func misfitGroups(sorted []firmware.Misfits) (all []misfitGroup) {
	for _, m := range sorted {
		if n := len(all); n == 0 || all[n-1].reason != m.Reason {
			all = append(all, misfitGroup{reason: m.Reason})
		}
		last := &all[len(all)-1]
		last.count += m.Count
		last.boards = append(last.boards, m)
	}
	return all
}

func countOf(all []firmware.Misfits) (n int) {
	for _, m := range all {
		n += m.Count
	}
	return n
}

// Installed returns how many of the matched devices already run it.
func (v FitView) Installed() int {
	if v.Report == nil {
		return 0
	}
	return countOf(slices.DeleteFunc(slices.Clone(v.Report.Misfits), func(m firmware.Misfits) bool {
		return m.Reason != firmware.SkipInstalled
	}))
}

// refresh returns after how many seconds the page requests the result again: judging a large fleet
// takes the database a moment.
func (v FitView) refresh() string {
	if v.Report != nil && v.Report.Matched > 10_000 {
		return "300"
	}
	return "20"
}

// misfits returns the devices that it does not fit; devices that already run it are not misfits.
func (v FitView) misfits() []firmware.Misfits {
	return slices.DeleteFunc(slices.Clone(v.Report.Misfits), func(m firmware.Misfits) bool {
		return m.Reason == firmware.SkipInstalled
	})
}

// listURL returns the list of the devices with a reason, or "" if the query language cannot express
// it.
func (v FitView) listURL(r firmware.SkipReason) string {
	switch r {
	case firmware.SkipHeld:
		return QueryPath(v.and("hold"))
	case firmware.SkipNotEnrolled:
		return QueryPath(v.and("-enrolment:enrolled"))
	case firmware.SkipChip:
		if v.Chip != "" {
			return QueryPath(v.and("-" + Term("chip", v.Chip)))
		}
	case firmware.SkipNoTool:
		return QueryPath(v.and("-" + Term("tool", fleet.ToolUpgradeFirmware)))
	case firmware.SkipInstalled:
		if len(v.ELF) == 1 {
			return QueryPath(v.and(Term("elf", v.ELF[0])))
		}
	}
	return ""
}

// misfitBoard returns the name of the board of devices that are left out.
func misfitBoard(ctx context.Context, board string) string {
	if board == "" {
		return reasonText(ctx, fleet.Because(firmware.FitUnnamedBoard))
	}
	return board
}

func (v FitView) and(term string) string {
	if v.Query == "" {
		return term
	}
	return v.Query + " " + term
}

// An Adoption is the share of a release or image among the devices that can run it.
type Adoption struct {
	Running int // devices in service that run it
	Fit     int // devices that it fits, and that do not run it yet
}

func (a Adoption) share() float64 {
	if a.Running+a.Fit == 0 {
		return 0
	}
	return float64(a.Running) / float64(a.Running+a.Fit)
}

func (a Adoption) running() Running { return Running{a.Running, a.Running + a.Fit} }
