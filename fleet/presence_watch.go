package fleet

import (
	"slices"
	"sync"
	"sync/atomic"
)

// watchBuffer is far more than a reboot brings: four observations.
const watchBuffer = 64

// presenceWatchers are the few who wait for evidence about single devices. The
// count keeps the many observations that nobody waits for off the lock.
type presenceWatchers struct {
	count    atomic.Int64
	mu       sync.Mutex
	byDevice map[DeviceID][]chan Evidence
}

func (w *presenceWatchers) add(id DeviceID) (<-chan Evidence, func()) {
	c := make(chan Evidence, watchBuffer)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byDevice == nil {
		w.byDevice = make(map[DeviceID][]chan Evidence)
	}
	w.byDevice[id] = append(w.byDevice[id], c)
	w.count.Add(1)
	return c, sync.OnceFunc(func() { w.remove(id, c) })
}

func (w *presenceWatchers) remove(id DeviceID, c chan Evidence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := slices.DeleteFunc(w.byDevice[id], func(other chan Evidence) bool { return other == c })
	if w.byDevice[id] = rest; len(rest) == 0 {
		delete(w.byDevice, id)
	}
	w.count.Add(-1)
	close(c)
}

// tell never blocks.
func (w *presenceWatchers) tell(id DeviceID, e Evidence) {
	if w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.byDevice[id] {
		select {
		case c <- e:
		default:
		}
	}
}
