package telemetry

import (
	"cmp"
	"time"
)

// point is one heartbeat as history keeps it.
func (v Vitals) point(restarted bool) VitalsPoint {
	return VitalsPoint{At: v.At.UTC().Truncate(VitalsStep), Beats: 1, HeapFree: v.HeapFree, HeapMin: v.HeapMin,
		HeapLargest: v.HeapLargest,
		RSSI:        v.RSSI, Temperature: v.Temperature, Reconnects: v.Reconnects, Uptime: v.Uptime, Boots: v.Boots,
		Restarted: restarted}
}

// Merge joins two parts of one step. The store does the same in SQL; a test
// holds the two together.
func (p VitalsPoint) Merge(later VitalsPoint) VitalsPoint {
	return VitalsPoint{
		At: p.At, Beats: p.Beats + later.Beats,
		HeapFree: lowestTold(p.HeapFree, later.HeapFree), HeapMin: lowestTold(p.HeapMin, later.HeapMin),
		HeapLargest: lowestTold(p.HeapLargest, later.HeapLargest),
		RSSI:        lowest(p.RSSI, later.RSSI), Temperature: highest(p.Temperature, later.Temperature),
		Reconnects: max(p.Reconnects, later.Reconnects), Uptime: p.uptimeWith(later), Boots: max(p.Boots, later.Boots),
		Restarted: p.Restarted || later.Restarted || (p.Boots > 0 && later.Boots > 0 && p.Boots != later.Boots),
	}
}

// uptimeWith is the uptime at the end of the step: that of the latest start.
func (p VitalsPoint) uptimeWith(later VitalsPoint) time.Duration {
	switch {
	case p.Boots > later.Boots && later.Boots > 0:
		return p.Uptime
	case later.Boots > p.Boots && p.Boots > 0, later.Restarted:
		return later.Uptime
	}
	return max(p.Uptime, later.Uptime)
}

// lowestTold passes over 0: the device did not tell.
func lowestTold(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

func lowest[T cmp.Ordered](a, b *T) *T {
	if a == nil || (b != nil && *b < *a) {
		return b
	}
	return a
}

func highest[T cmp.Ordered](a, b *T) *T {
	if a == nil || (b != nil && *b > *a) {
		return b
	}
	return a
}
