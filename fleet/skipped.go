package fleet

import (
	"maps"
	"slices"
)

// SkippedSample is the number of devices that a preview lists per group.
const SkippedSample = 5

// SkippedDevices is a group of devices skipped for the same reason.
type SkippedDevices struct {
	Reason string // a code such as "device_held"
	Count  int
	Sample []DeviceID
}

// A SkippedTally groups skipped devices by reason. The zero value is empty.
type SkippedTally struct{ groups map[string]*SkippedDevices }

// Add counts a skipped device.
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
