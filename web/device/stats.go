package device

import (
	"sync/atomic"

	"fleetd/fleet/enrolment"
)

// Stats are the counters of a [Handler] since its start.
type Stats struct {
	PollsSalvaged   int64 // boot polls with a broken body, which was read up to the break
	PollsUnreadable int64 // boot polls of which only the headers were readable
}

type stats struct{ salvaged, unreadable atomic.Int64 }

func (s *stats) count(p *enrolment.BootPoll) {
	switch {
	case len(p.Salvaged) > 0:
		s.salvaged.Add(1)
	case p.Broken:
		s.unreadable.Add(1)
	}
}

// Stats returns the handler's counters.
func (h *Handler) Stats() Stats {
	return Stats{PollsSalvaged: h.stats.salvaged.Load(), PollsUnreadable: h.stats.unreadable.Load()}
}
