package ui

import (
	"context"
	"slices"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// A FitView says which devices an image or a release fits, which it does not,
// and why: the parameters q, mode and downgrade of its page.
type FitView struct {
	Path      string // of the page
	Query     string // as written
	Mode      firmware.DispatchMode
	Downgrade bool
	BadQuery  string // why the query cannot be read; "" if it can
	Report    *firmware.FitReport
	Chip      string // of the image; "" for a release
	ELF       []string
}

var fitModes = []firmware.DispatchMode{firmware.ModeAuto, firmware.ModePush, firmware.ModePull}

// A misfitGroup is the devices that are left out for one reason, board by board.
type misfitGroup struct {
	reason firmware.SkipReason
	count  int
	boards []firmware.Misfits
}

// misfitGroups joins what follows each other with the same reason.
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

// Installed is how many of the matched devices run it already.
func (v FitView) Installed() int {
	if v.Report == nil {
		return 0
	}
	return countOf(slices.DeleteFunc(slices.Clone(v.Report.Misfits), func(m firmware.Misfits) bool {
		return m.Reason != firmware.SkipInstalled
	}))
}

// refresh is how often, in seconds, the answer is asked for again: judging a
// large fleet takes the database a moment.
func (v FitView) refresh() string {
	if v.Report != nil && v.Report.Matched > 10_000 {
		return "300"
	}
	return "20"
}

// misfits are those that do not fit; that a device runs it already is no misfit.
func (v FitView) misfits() []firmware.Misfits {
	return slices.DeleteFunc(slices.Clone(v.Report.Misfits), func(m firmware.Misfits) bool {
		return m.Reason == firmware.SkipInstalled
	})
}

// listURL leads to the devices with a reason, where the query language can say
// it; "" where it cannot.
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

// misfitBoard names the board of devices that are left out.
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

// An Adoption says how far a release or image has come among the devices that
// can run it.
type Adoption struct {
	Running int // devices in service that run it
	Fit     int // that would fit, and do not yet
}

func (a Adoption) share() float64 {
	if a.Running+a.Fit == 0 {
		return 0
	}
	return float64(a.Running) / float64(a.Running+a.Fit)
}

func (a Adoption) running() Running { return Running{a.Running, a.Running + a.Fit} }
