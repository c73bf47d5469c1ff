package fleet

import (
	"maps"
	"slices"
)

// SkippedSample is how many devices a group of a preview names.
const SkippedSample = 5

// SkippedDevices groups devices left out for the same reason.
type SkippedDevices struct {
	Reason string // a code such as "device_held"
	Count  int
	Sample []DeviceID
}

// A SkippedTally groups devices by the reason for which they are left out. The
// zero value is empty.
type SkippedTally struct{ groups map[string]*SkippedDevices }

// Add counts a device that is left out.
func (s *SkippedTally) Add(reason string, id DeviceID) {
	group := s.groups[reason]
	if group == nil {
		if s.groups == nil {
			s.groups = make(map[string]*SkippedDevices)
		}
		group = &SkippedDevices{Reason: reason}
		s.groups[reason] = group
	}
	if group.Count++; len(group.Sample) < SkippedSample {
		group.Sample = append(group.Sample, id)
	}
}

// Groups returns the groups, the largest first.
func (s *SkippedTally) Groups() []SkippedDevices {
	var out []SkippedDevices
	for _, reason := range slices.Sorted(maps.Keys(s.groups)) {
		out = append(out, *s.groups[reason])
	}
	slices.SortStableFunc(out, func(a, b SkippedDevices) int { return b.Count - a.Count })
	return out
}
