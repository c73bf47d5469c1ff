package campaign

import (
	"fleetd/fleet"
	"slices"
	"strconv"
	"strings"
)

// InventoryGate says which of the tools that a device must not lose were
// offered before and are not any more. forbid lists names; "*" at the end
// stands for any ending, so that "*" alone forbids every loss. An unknown
// inventory before the upgrade lost nothing.
func InventoryGate(before, after *fleet.Inventory, forbid []string) error {
	if before == nil || len(forbid) == 0 {
		return nil
	}
	if after == nil {
		after = &fleet.Inventory{}
	}
	var lost []string
	for _, t := range fleet.DiffInventories(before, after).Removed {
		if slices.ContainsFunc(forbid, func(pattern string) bool { return matchesEnding(pattern, t.Name) }) {
			lost = append(lost, t.Name)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	slices.Sort(lost)
	const shown = 5
	if more := len(lost) - shown; more > 0 {
		return failedCheck(ReasonCheckToolsLostAnd, "tools", strings.Join(lost[:shown], ", "), "more", more)
	}
	return failedCheck(ReasonCheckToolsLost, "tools", strings.Join(lost, ", "))
}

func matchesEnding(pattern, name string) bool {
	if start, any := strings.CutSuffix(pattern, "*"); any {
		return strings.HasPrefix(name, start)
	}
	return pattern == name
}

// HeapGate says if the free heap after the upgrade is below percent of that
// before. Bytes; 0 is unknown and passes, as percent 0 does.
func HeapGate(before, after int64, percent int) error {
	if percent <= 0 || before <= 0 || after <= 0 || float64(after)*100 >= float64(before)*float64(percent) {
		return nil
	}
	return failedCheck(ReasonCheckHeap, "after_bytes", after, "before_bytes", before,
		"share", strconv.FormatFloat(100*float64(after)/float64(before), 'f', 0, 64), "least", percent)
}
