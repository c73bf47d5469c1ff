package sim

import (
	"context"
	"sync"
)

// A mainTask is the one task on which a device runs its tools and sends its answers, strictly one
// after another. It has a goroutine only while there is work, so an idle device has none.
type mainTask struct {
	ctx context.Context

	mu      sync.Mutex
	jobs    []func(context.Context)
	busy    bool
	stopped bool
	working sync.WaitGroup
}

// add queues a job. After stop it does nothing: the device has restarted.
func (t *mainTask) add(job func(context.Context)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return
	}
	t.jobs = append(t.jobs, job)
	if !t.busy {
		t.busy = true
		t.working.Add(1)
		go t.work()
	}
}

func (t *mainTask) work() {
	defer t.working.Done()
	for {
		job := t.next()
		if job == nil {
			return
		}
		job(t.ctx)
	}
}

func (t *mainTask) next() func(context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.jobs) == 0 || t.ctx.Err() != nil {
		t.jobs, t.busy = nil, false
		return nil
	}
	job := t.jobs[0]
	t.jobs = t.jobs[1:]
	return job
}

// stop waits for the running job, which sees its context end, and drops the others.
func (t *mainTask) stop() {
	t.mu.Lock()
	t.stopped = true
	t.mu.Unlock()
	t.working.Wait()
}

// schedule queues a job on the main task of the running power cycle.
func (d *Device) schedule(job func(context.Context)) {
	d.mu.Lock()
	task := d.main
	d.mu.Unlock()
	if task != nil {
		task.add(job)
	}
}
