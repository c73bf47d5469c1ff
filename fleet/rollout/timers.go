package rollout

import (
	"container/heap"
	"time"
)

// timers contain the deployments with a due time: the deadline of a step, the end of a
// back-off, the opening of a window.
type timers []*deployment

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].at.Before(t[j].at) }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer, t[j].timer = i, j
}

// Push implements heap.Interface.
func (t *timers) Push(x any) {
	d := x.(*deployment)
	d.timer = len(*t)
	*t = append(*t, d)
}

// Pop implements heap.Interface.
func (t *timers) Pop() any {
	last := len(*t) - 1
	d := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	d.timer = -1
	return d
}

func (t *timers) set(d *deployment, at time.Time) {
	t.remove(d)
	d.at = at
	heap.Push(t, d)
}

func (t *timers) remove(d *deployment) {
	if d.timer >= 0 {
		heap.Remove(t, d.timer)
	}
}

// due removes and returns the deployment with the earliest due time, or nil if none is due.
func (t *timers) due(now time.Time) *deployment {
	if len(*t) == 0 || (*t)[0].at.After(now) {
		return nil
	}
	return heap.Pop(t).(*deployment)
}

// next returns the earliest due time.
func (t timers) next() (time.Time, bool) {
	if len(t) == 0 {
		return time.Time{}, false
	}
	return t[0].at, true
}
