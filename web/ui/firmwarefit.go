package ui

import (
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

// Installed is how many of the matched devices run it already.
func (v FitView) Installed() int {
	if v.Report == nil {
		return 0
	}
	for _, m := range v.Report.Misfits {
		if m.Reason == firmware.SkipInstalled {
			return m.Count
		}
	}
	return 0
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
func (v FitView) misfits() (all []firmware.Misfits) {
	for _, m := range v.Report.Misfits {
		if m.Reason != firmware.SkipInstalled {
			all = append(all, m)
		}
	}
	return all
}

func (v FitView) misfitCount() (n int) {
	for _, m := range v.misfits() {
		n += m.Count
	}
	return n
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
