package broker

import "sync"

// A pool runs jobs on a bounded number of goroutines, which exist only while there is work. When
// a whole fleet returns at once, it limits how many devices are listed at a time.
type pool struct {
	limit   int
	running sync.WaitGroup

	mu      sync.Mutex
	workers int
	waiting []func()
}

// submit queues a job. A connection submits at most one job of each kind, so the number of
// connections bounds the queue.
func (p *pool) submit(job func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.workers < p.limit {
		p.workers++
		p.running.Go(func() { p.work(job) })
		return
	}
	p.waiting = append(p.waiting, job)
}

func (p *pool) work(job func()) {
	for job != nil {
		job()
		job = p.next()
	}
}

func (p *pool) next() func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		p.workers--
		p.waiting = nil
		return nil
	}
	job := p.waiting[0]
	p.waiting[0] = nil
	p.waiting = p.waiting[1:]
	return job
}

func (p *pool) busy() (workers, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.workers, len(p.waiting)
}
