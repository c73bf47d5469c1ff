package fleettest

import "runtime"

// HeapPer returns the bytes of heap that one call of add retains, averaged over n.
func HeapPer(n int, add func(int)) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range n {
		add(i)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	return (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / int64(n)
}
